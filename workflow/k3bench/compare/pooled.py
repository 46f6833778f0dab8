"""Observations become one estimate: each counts once, with a floor for what differs between them anyway.

In: one estimate an observation. Out: `Pooled`. Out of scope: do they agree (`agreement`), other racks (`next_rack`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3bench.compare.interval import Estimate, two_sided_p
from k3bench.compare.pairs import Bools, Floats, Ints
from k3bench.records.comparison import LEAST_FLOOR

#: Log units: what a rebuild or a placement changes between observations when nothing was changed, until calibrated.
DEFAULT_FLOOR = LEAST_FLOOR
#: An observation with fewer valid pairs is set aside: one block cannot show a small effect, and looks as if it could.
MIN_PAIRS = 4


@dataclass(frozen=True)
class Pooled:
    """The mean over the usable observations. NaN everywhere where there is none."""

    k: Ints
    mean: Floats
    se: Floats
    df: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Two-sided t interval."""
        half = stats.t.ppf(0.5 + level / 2, self.df) * self.se
        return self.mean - half, self.mean + half

    def p(self) -> Floats:
        """Two-sided p of no change."""
        return two_sided_p(self.mean, self.se, self.df)

    def p_not_above(self, bound: float) -> Floats:
        """One-sided p against 'the true mean is `bound` or more'."""
        return _lower_tail(self.mean - bound, self.se, self.df)

    def p_not_below(self, bound: float) -> Floats:
        """One-sided p against 'the true mean is `bound` or less'."""
        return _lower_tail(bound - self.mean, self.se, self.df)


def _lower_tail(distance: Floats, se: Floats, df: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((se == 0) & (distance == 0), 0.0, distance / se)
    return stats.t.cdf(ratio, df)


def pool(each: Estimate, usable: Bools, tau0: float) -> Pooled:
    """Plain mean over the last axis; variance from the pairs plus tau0^2/k; Satterthwaite df, capped.

    The cap at the summed df matters: without it one lucky small variance makes the degrees of freedom huge.
    """
    k = usable.sum(axis=-1)
    v = np.where(usable, each.variance, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(usable, each.mean, 0.0).sum(axis=-1) / k
        se2 = v.sum(axis=-1) / k**2 + tau0**2 / k
        own = (np.where(usable, v**2 / each.df, 0.0)).sum(axis=-1) / k**4
        df = np.minimum(se2**2 / own, np.where(usable, each.df, 0.0).sum(axis=-1))
        df = np.where((own == 0) & (k > 0), np.where(usable, each.df, 0.0).sum(axis=-1), df)
    none = k == 0
    return Pooled(k, np.where(none, np.nan, mean), np.where(none, np.nan, np.sqrt(se2)), np.where(none, np.nan, df))
