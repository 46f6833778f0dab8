"""Which side moved: is an observation's delta odd because its before was slow, or because its after was fast?

In: medians of both arms, one an observation. Out: each side's change against the other observations. It explains; it
decides nothing.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from k3bench.compare.pairs import Floats

#: Percent. A side that changed less against the others did not move.
MOVED_PCT = 0.5
Side = Literal["before", "after", "both", "neither"]


def moved_pct(medians: Floats) -> Floats:
    """100 (own/median of the others - 1) along the last axis; NaN where there is no other, or no own."""
    k = medians.shape[-1]
    others = np.broadcast_to(medians[..., None, :], (*medians.shape, k)).copy()
    others[..., np.arange(k), np.arange(k)] = np.nan
    order = np.sort(others, axis=-1)
    n = np.isfinite(others).sum(axis=-1)
    low = np.take_along_axis(order, np.maximum((n - 1) // 2, 0)[..., None], axis=-1)[..., 0]
    high = np.take_along_axis(order, np.minimum(n // 2, k - 1)[..., None], axis=-1)[..., 0]
    with np.errstate(invalid="ignore"):
        return np.where(n > 0, 100.0 * (medians / ((low + high) / 2.0) - 1.0), np.nan)


def side_moved(before_pct: float, after_pct: float) -> Side | None:
    """In a word; None where either is unknown."""
    if np.isnan(before_pct) or np.isnan(after_pct):
        return None
    before, after = abs(before_pct) > MOVED_PCT, abs(after_pct) > MOVED_PCT
    return "both" if before and after else "before" if before else "after" if after else "neither"
