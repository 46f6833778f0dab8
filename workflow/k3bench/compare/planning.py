"""How many blocks it takes: power of a design, and the blocks that would settle an open question.

In: run standard deviation, floor, number of observations, effect. Out: power and block counts.
Out of scope: what a block costs (`cost`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats
from statsmodels.stats.power import TTestPower

from k3bench.compare.pairs import Floats
from k3bench.compare.pooled import DEFAULT_FLOOR

#: One block has two pairs; an observation needs four before it counts.
MIN_BLOCKS = 2
#: Nobody runs more than this; "more than" is then the honest answer.
MAX_BLOCKS = 400


@dataclass(frozen=True)
class Design:
    """What is known before a campaign. `pair_sd_log` is sqrt(2) times the run sd unless it was measured itself."""

    observations: int
    pair_sd_log: float
    tau0: float = DEFAULT_FLOOR

    @classmethod
    def of_runs(cls, observations: int, run_sd_log: float, tau0: float = DEFAULT_FLOOR) -> Design:
        """From the standard deviation of ln of single runs, slow runs included."""
        return cls(observations, math.sqrt(2.0) * run_sd_log, tau0)

    def se(self, blocks: Floats) -> Floats:
        """Standard error of the pooled estimate."""
        k = self.observations
        return np.sqrt(self.pair_sd_log**2 / (2.0 * blocks * k) + self.tau0**2 / k)

    def df(self, blocks: Floats) -> Floats:
        """Its degrees of freedom: all pairs, less one an observation."""
        return self.observations * (2.0 * blocks - 1.0)


def power(design: Design, effect_log: float, blocks: Floats, alpha: float = 0.05) -> Floats:
    """Probability that an effect of that size is called in its own direction."""
    df, se = design.df(blocks), design.se(blocks)
    return stats.nct.sf(stats.t.ppf(1.0 - alpha / 2.0, df), df, abs(effect_log) / se)


def harmless_power(design: Design, margin_log: float, blocks: Floats, alpha: float = 0.05) -> Floats:
    """Probability that a zero change passes non-inferiority at the margin."""
    df, se = design.df(blocks), design.se(blocks)
    return stats.nct.sf(stats.t.ppf(1.0 - alpha, df), df, margin_log / se)


def within_noise_power(design: Design, effect_log: float, margin_log: float, blocks: Floats) -> Floats:
    """Probability that the 90 % interval lies inside the margin, should the true change be `effect_log`."""
    df, se = design.df(blocks), design.se(blocks)
    crit = stats.t.ppf(0.95, df)
    upper = stats.nct.sf(crit, df, (margin_log - effect_log) / se)
    lower = stats.nct.sf(crit, df, (margin_log + effect_log) / se)
    return np.maximum(0.0, upper + lower - 1.0)


def blocks_for(design: Design, effect_log: float, target: float = 0.9, alpha: float = 0.05) -> int | None:
    """Fewest blocks an observation with that power; None if more than MAX_BLOCKS (the floor may forbid it)."""
    blocks = _grid()
    return _first(power(design, effect_log, blocks, alpha) >= target)


def blocks_for_harmless(design: Design, margin_log: float, target: float = 0.9) -> int | None:
    """Fewest blocks with which a zero change passes non-inferiority that often."""
    return _first(harmless_power(design, margin_log, _grid()) >= target)


@lru_cache(maxsize=4096)
def blocks_to_settle(design: Design, estimate_log: float, margin_log: float, alpha: float = 0.05) -> int | None:
    """Fewest blocks that end, at 90 %, in improvement, regression or within noise, if the estimate is the truth."""
    blocks = _grid()
    called = power(design, estimate_log, blocks, alpha)
    harmless = within_noise_power(design, estimate_log, margin_log, blocks)
    return _first(np.maximum(called, harmless) >= 0.9)


def pairs_for(effect: float, pair_sd: float, target: float = 0.9, alpha: float = 0.05) -> float:
    """Pairs of one observation without a floor, as a fraction (the textbook sample size)."""
    return float(TTestPower().solve_power(effect_size=effect / pair_sd, alpha=alpha, power=target))


def power_of_pairs(effect: float, pair_sd: float, pairs: float, alpha: float = 0.05) -> float:
    """Power of that many pairs of one observation without a floor, calls in either direction."""
    return float(TTestPower().power(effect / pair_sd, pairs, alpha))


def _grid() -> Floats:
    return np.arange(MIN_BLOCKS, MAX_BLOCKS + 1, dtype=np.float64)


def _first(reached: np.ndarray) -> int | None:
    return int(np.argmax(reached)) + MIN_BLOCKS if reached.any() else None
