"""What zero-change runs show: the range band with its false-positive rate, the better 95 % band, and the floor.

In: zero-change runs, or the estimates of zero-change observations. Out: bands, run sd, tau0.
Out of scope: deciding anything (`verdict`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy import integrate, optimize, stats

from k3bench.compare.interval import Estimate
from k3bench.compare.meta import tau_squared
from k3bench.compare.pairs import Floats, Pairs, log_of
from k3bench.compare.pooled import DEFAULT_FLOOR, pool

#: One or two runs have no band worth printing.
MIN_RUNS_FOR_RANGE = 3
#: Fewer zero-change observations cannot replace the assumed floor.
MIN_OBSERVATIONS_FOR_FLOOR = 3


def range_band_pct(runs: ArrayLike) -> float | None:
    """100 (max/min - 1) of n zero-change runs; None below three."""
    values = np.asarray(runs, dtype=np.float64)
    log_of(values, where="zero-change runs")
    return 100.0 * float(values.max() / values.min() - 1.0) if values.size >= MIN_RUNS_FOR_RANGE else None


@lru_cache(maxsize=256)
def range_exceeded_p(n: int, ratio: float = 1.0) -> float:
    """P(|after - before| > ratio x range of n zero-change runs), one before, one after, independent normal runs.

    With ratio 1 it is the false-positive rate of the range band; with ratio |delta|/band the p of a seen delta.
    """

    def integrand(z: float) -> float:
        below = stats.studentized_range.cdf(z * math.sqrt(2.0) / ratio, n, np.inf)
        return float(below * 2.0 * stats.norm.pdf(z))

    value, _ = integrate.quad(integrand, 0.0, 9.0, epsabs=1e-10, epsrel=1e-10, limit=200)
    return float(value)


@lru_cache(maxsize=64)
def range_multiplier(n: int, rate: float = 0.05) -> float:
    """What the range of n runs must be multiplied by to hold `rate` false positives."""
    return float(optimize.brentq(lambda ratio: range_exceeded_p(n, ratio) - rate, 0.05, 100.0, xtol=1e-7))


def run_sd(runs: ArrayLike) -> float:
    """Standard deviation of ln of zero-change runs."""
    return float(np.std(log_of(runs, where="zero-change runs"), ddof=1))


def lone_pair_band(runs: ArrayLike, before: int = 1, after: int = 1) -> float:
    """Log half-width a zero change stays inside with 95 %: mean of `before` runs against mean of `after` runs."""
    n = np.asarray(runs).size
    return float(stats.t.ppf(0.975, n - 1)) * run_sd(runs) * math.sqrt(1.0 / before + 1.0 / after)


def design_band(each: Estimate, tau0: float, observations: int | None = None) -> tuple[float, float]:
    """Log half-width and df a zero change of the same design stays inside with 95 %, from zero-change pairs.

    `observations` is the number of observations of the comparison the band is for; None means as many as here.
    """
    usable = np.isfinite(each.variance)
    pooled = pool(each, usable, tau0)
    here = int(pooled.k)
    scale = math.sqrt(here / (observations or here))
    half = float(stats.t.ppf(0.975, pooled.df) * pooled.se) * scale
    return half, float(pooled.df)


def pooled_run_sd(pairs: Pairs) -> Floats:
    """Run standard deviation from zero-change pairs, slow runs included: sd of pairs within observations / sqrt 2."""
    valid = pairs.valid
    n = valid.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(valid, pairs.log_ratio, 0.0).sum(axis=-1, keepdims=True) / n[..., None]
        squares = np.where(valid, pairs.log_ratio - mean, 0.0) ** 2
        df = np.where(n >= 2, n - 1, 0).sum(axis=-1)
        total = np.where(n >= 2, squares.sum(axis=-1), 0.0).sum(axis=-1)
        return np.where(df > 0, np.sqrt(total / np.where(df > 0, df, 1) / 2.0), np.nan)


def calibrated_floor(means: Floats, variances: Floats) -> float | None:
    """tau0 from zero-change observations: max(0.003, Paule-Mandel tau); None below three of them."""
    if len(means) < MIN_OBSERVATIONS_FOR_FLOOR or not (np.asarray(variances) > 0).all():
        return None
    return max(DEFAULT_FLOOR, math.sqrt(tau_squared(np.asarray(means), np.asarray(variances), "PM")))


@lru_cache(maxsize=64)
def tolerance_factor(n: int, content: float = 0.95, confidence: float = 0.95) -> float:
    """k such that mean +- k sd of n normal values holds `content` of them with `confidence` (exact, two-sided)."""
    df = n - 1

    def covers(k: float) -> float:
        def integrand(z: float) -> float:
            # z: distance of the sample mean from the true one, in standard errors
            shift = z / math.sqrt(n)
            reach = optimize.brentq(
                lambda r: stats.norm.cdf(shift + r) - stats.norm.cdf(shift - r) - content, 1e-9, 40.0, xtol=1e-12
            )
            return float(stats.chi2.sf(df * reach**2 / k**2, df) * 2.0 * stats.norm.pdf(z))

        return float(integrate.quad(integrand, 0.0, 8.0, epsabs=1e-8, limit=100)[0])

    return float(optimize.brentq(lambda k: covers(k) - confidence, 1.0, 500.0, xtol=1e-6))
