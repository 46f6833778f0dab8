"""Do the observations agree? F test of their spread against their own noise and the floor.

In: one estimate an observation. Out: `Agreement`, own intervals, ratio gap, spread. Out of scope: the verdict's word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3bench.compare.interval import Estimate
from k3bench.compare.pairs import Bools, Floats, Ints


@dataclass(frozen=True)
class Agreement:
    """F with its degrees of freedom and p; Cochran's Q and I2 for readers used to them. NaN below two observations."""

    k: Ints
    f: Floats
    df_between: Floats
    df_within: Floats
    p: Floats
    q: Floats
    i2: Floats
    own_low: Floats
    own_high: Floats
    same_side: Bools


def agreement(each: Estimate, usable: Bools, tau0: float) -> Agreement:
    """Homogeneity of the usable observations along the last axis, and each one's own interval with the floor."""
    k = usable.sum(axis=-1)
    own = Estimate(each.mean, each.variance + tau0**2, each.df)
    low, high = own.interval(0.95)
    below, above = (~usable | (high < 0)).all(axis=-1), (~usable | (low > 0)).all(axis=-1)
    f, df_between, df_within, p = _f_test(each, usable, k, tau0)
    q = _cochran_q(own, usable)
    with np.errstate(invalid="ignore", divide="ignore"):
        i2 = np.where(k >= 2, np.clip(1.0 - (k - 1) / np.where(q > 0, q, np.nan), 0.0, None), np.nan)
    i2 = np.where((k >= 2) & np.isnan(i2), 0.0, i2)
    return Agreement(
        k, f, df_between, df_within, p, np.where(k >= 2, q, np.nan), i2, low, high, (k > 0) & (below | above)
    )


def _f_test(each: Estimate, usable: Bools, k: Ints, tau0: float) -> tuple[Floats, Floats, Floats, Floats]:
    m, v = np.where(usable, each.mean, 0.0), np.where(usable, each.variance, 0.0)
    df = np.where(usable, each.df, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = m.sum(axis=-1) / k
        between = np.where(usable, m - centre[..., None], 0.0) ** 2
        spread = between.sum(axis=-1) / (k - 1)
        within = v.sum(axis=-1) / k + tau0**2
        own = np.where(usable, v**2 / each.df, 0.0).sum(axis=-1) / k**2
        df_within = np.where(own > 0, np.minimum(within**2 / own, df.sum(axis=-1)), df.sum(axis=-1))
        f = np.where((within == 0) & (spread == 0), 0.0, spread / within)
    testable = k >= 2
    f, df_between = np.where(testable, f, np.nan), np.where(testable, k - 1.0, np.nan)
    return f, df_between, np.where(testable, df_within, np.nan), stats.f.sf(f, df_between, df_within)


def _cochran_q(own: Estimate, usable: Bools) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.where(usable, 1.0 / own.variance, 0.0)
        m = np.where(usable, own.mean, 0.0)
        centre = (weight * m).sum(axis=-1) / weight.sum(axis=-1)
        return (weight * (m - centre[..., None]) ** 2).sum(axis=-1)


def ratio_gap_pct(first: float, second: float) -> float:
    """100 |r2/r1 - 1| of two ratios after/before, the earlier observation first."""
    return 100.0 * abs(second / first - 1.0)


def spread_pct(ratios: Floats) -> float:
    """100 (max r / min r - 1) over all observations: the largest pairwise difference."""
    return 100.0 * (float(np.max(ratios)) / float(np.min(ratios)) - 1.0)
