"""Runs in their measured order become pair log-ratios, ln(after/before), whatever ran first.

In: run values and arms, positions along the last axis. Out: `Pairs`. Out of scope: what the pairs say (`interval`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from k3bench.errors import StatisticsError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Pairs:
    """Neighbouring runs (1,2), (3,4), ... of each observation.

    `log_ratio[..., k, n]` is NaN where a pair was dropped; `order` is +1 where before ran first, -1 where after did.
    """

    log_ratio: Floats
    order: Floats

    @property
    def valid(self) -> Bools:
        """Pairs whose two runs are both valid."""
        return ~np.isnan(self.log_ratio)

    def flipped(self) -> Pairs:
        """The same pairs for a metric of which more is better: from here on, down is good."""
        return Pairs(-self.log_ratio, self.order)

    def without(self, flagged: Bools) -> Pairs:
        """A copy with the flagged pairs dropped; the original keeps them."""
        return Pairs(np.where(flagged, np.nan, self.log_ratio), self.order)


def log_of(values: ArrayLike, *, where: str = "", absent: Bools | None = None) -> Floats:
    """Natural log of run values; NaN where `absent`. Refuses anything else that is not a positive finite number."""
    array = np.asarray(values, dtype=np.float64)
    missing = np.zeros(array.shape, dtype=bool) if absent is None else absent
    bad = ~missing & ~(np.isfinite(array) & (array > 0))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise StatisticsError(
            f"{array[at]!s} is no measurement: run values are positive finite numbers",
            where=f"{where} index {at}".strip(),
            fix="mark the run invalid with its reason; its pair is then dropped whole",
        )
    return np.log(array, out=np.full(array.shape, np.nan), where=~missing)


def pair_up(log_values: Floats, after: Bools) -> Pairs:
    """Pairs of neighbouring runs. `after` says which runs are the after arm and broadcasts to `log_values`."""
    if log_values.shape[-1] % 2:
        raise StatisticsError(
            f"{log_values.shape[-1]} run positions do not make pairs",
            fix="pass every planned run of a block, the invalid ones as absent",
        )
    first, second = log_values[..., 0::2], log_values[..., 1::2]
    first_after, second_after = after[..., 0::2], after[..., 1::2]
    ratio = np.where(first_after, first - second, second - first)
    same = np.isfinite(ratio) & (first_after == second_after)
    if same.any():
        raise StatisticsError(
            f"pair {int(np.argwhere(same)[0][-1]) + 1} holds one arm twice",
            fix="a pair is one run of each arm: blocks are ABBA or BAAB",
        )
    return Pairs(ratio, np.broadcast_to(np.where(first_after, -1.0, 1.0), ratio.shape))
