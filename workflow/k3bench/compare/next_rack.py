"""What a rack that was not tested may show: random effects with a prediction interval.

In: estimates and variances of three or more observations. Out: `NextRack`. Informative only; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3bench.compare.meta import meta_line
from k3bench.compare.pairs import Floats

#: With two observations the t quantile is 12.7: a line nobody could use.
MIN_OBSERVATIONS = 3


@dataclass(frozen=True)
class NextRack:
    """Paule-Mandel mean, its t interval (k-1 df) and the interval for one further rack, in log units."""

    k: int
    tau2: float
    mean: float
    se: float
    ci95: tuple[float, float]
    pi95: tuple[float, float]

    @property
    def expected_to_hold(self) -> bool:
        """The mean over racks is off zero; else the result is shown on the tested racks only."""
        return self.ci95[0] > 0 or self.ci95[1] < 0


def next_rack(means: Floats, variances: Floats, tau0: float) -> NextRack | None:
    """None below three observations. The floor is added to every variance."""
    k = len(means)
    v = np.asarray(variances) + tau0**2
    if k < MIN_OBSERVATIONS or not (v > 0).all():
        return None
    return random_effects(np.asarray(means), v)


def random_effects(means: Floats, variances: Floats) -> NextRack:
    """Paule-Mandel with t and a scale never below 1: the modified Hartung-Knapp interval."""
    line = meta_line(means, variances, "PM", "adhoc")
    return NextRack(len(means), line.tau2, line.estimate, line.se, line.ci95, line.pi95)
