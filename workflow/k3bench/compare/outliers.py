"""Odd pairs are flagged, never dropped: the verdict stands only if it does not hang on them.

In: `Pairs` and a rule. Out: the verdict with every pair, the one without flagged pairs, and where the two part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from k3bench.compare.pairs import Bools, Floats, Pairs
from k3bench.compare.verdict import (
    DISAGREEMENT,
    IMPROVEMENT,
    INCONCLUSIVE,
    INSUFFICIENT,
    REGRESSION,
    WITHIN_NOISE,
    Rule,
    Verdict,
    judge,
)

#: Modified z of a pair log-ratio from which on it is flagged.
ODD_Z = 3.5
#: Median absolute deviation of normal noise to its standard deviation.
MAD_TO_SD = 1.4826


@dataclass(frozen=True)
class Sweep:
    """`verdict` is final: `inconclusive` where a claim hangs on flagged pairs."""

    verdict: Verdict
    without: Verdict
    flagged: Bools
    hangs: Bools


def modified_z(pairs: Pairs) -> Floats:
    """|x - median of its observation| over 1.4826 MAD of the level: an observation's few pairs give no scale."""
    distance = pairs.log_ratio - median_of_valid(pairs.log_ratio)[..., None]
    mad = MAD_TO_SD * median_of_valid(np.abs(distance).reshape(*distance.shape[:-2], -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(distance) / np.where(mad > 0, mad, np.nan)[..., None, None]


def judge_sweep(pairs: Pairs, rule: Rule) -> Sweep:
    """The public rule: the verdict with every pair, made inconclusive where leaving odd pairs out would change it."""
    full = judge(pairs, rule)
    flagged = np.nan_to_num(modified_z(pairs)) > ODD_Z
    if not flagged.any():
        return Sweep(full, full, flagged, np.zeros(full.code.shape, dtype=bool))
    without = judge(pairs.without(flagged), rule, standing=full)
    claims = np.isin(full.code, (IMPROVEMENT, REGRESSION, WITHIN_NOISE))
    hangs = claims & (without.code != full.code) & (without.code != INSUFFICIENT) & (without.code != DISAGREEMENT)
    return Sweep(replace(full, code=np.where(hangs, INCONCLUSIVE, full.code)), without, flagged, hangs)


def median_of_valid(values: Floats) -> Floats:
    """Median over valid pairs of the last axis; NaN, without a warning, where there is none."""
    order = np.sort(values, axis=-1)  # NaN sorts last
    n = np.isfinite(values).sum(axis=-1)
    low = np.take_along_axis(order, np.maximum((n - 1) // 2, 0)[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(order, np.minimum(n // 2, values.shape[-1] - 1)[..., None], axis=-1)[..., 0]
    return np.where(n > 0, (low + high) / 2.0, np.nan)
