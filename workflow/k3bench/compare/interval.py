"""The pairs of an observation become its estimate, variance, interval and order effect.

In: `Pairs`, any number of observations and levels at once. Out: arrays with one entry an observation.
Out of scope: several observations together (`pooled`, `agreement`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3bench.compare.pairs import Bools, Floats, Ints, Pairs

#: Differences below this are rounding of the logarithm, not noise: a noiseless simulation has no order effect.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A mean of log-ratios, its squared standard error and degrees of freedom. NaN where there are too few pairs."""

    mean: Floats
    variance: Floats
    df: Floats

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Two-sided t interval."""
        half = stats.t.ppf(0.5 + level / 2, self.df) * np.sqrt(self.variance)
        return self.mean - half, self.mean + half

    def p(self) -> Floats:
        """Two-sided p of a zero mean."""
        return two_sided_p(self.mean, np.sqrt(self.variance), self.df)


@dataclass(frozen=True)
class PerObservation:
    """One-sample statistics of each observation's pairs, and the same adjusted for which arm ran first."""

    n: Ints
    sd: Floats
    plain: Estimate
    adjusted: Estimate
    order_p: Floats

    def order_effect(self, alpha: float = 0.05) -> Bools:
        """Where before-first and after-first pairs differ."""
        return self.order_p < alpha

    def reported(self, alpha: float = 0.05) -> Estimate:
        """The interval to print for an observation: adjusted where the order shows, plain elsewhere."""
        pick = self.order_effect(alpha) & np.isfinite(self.adjusted.variance)
        return Estimate(
            np.where(pick, self.adjusted.mean, self.plain.mean),
            np.where(pick, self.adjusted.variance, self.plain.variance),
            np.where(pick, self.adjusted.df, self.plain.df),
        )


def two_sided_p(mean: Floats, se: Floats, df: Floats) -> Floats:
    """p of |mean|/se under t; without any spread 1 for a mean of exactly 0, else 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((se == 0) & (mean == 0), 0.0, np.abs(mean) / se)
    return 2.0 * stats.t.sf(ratio, df)


def per_observation(pairs: Pairs) -> PerObservation:
    """Mean, variance and t degrees of freedom over the valid pairs of every observation."""
    n, mean, variance = _moments(pairs.log_ratio, pairs.valid)
    df = np.where(n >= 2, n - 1.0, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        plain = Estimate(mean, variance / n, df)
    adjusted, order_p = _by_order(pairs)
    return PerObservation(n, np.sqrt(variance), plain, adjusted, order_p)


def _moments(values: Floats, valid: Bools) -> tuple[Ints, Floats, Floats]:
    """Count, mean and sample variance along the last axis over `valid`; NaN where undefined."""
    n = valid.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(valid, values, 0.0).sum(axis=-1) / n
        squares = np.where(valid, values - mean[..., None], 0.0) ** 2
        variance = np.where(n >= 2, squares.sum(axis=-1) / (n - 1), np.nan)
    return n, mean, variance


def _by_order(pairs: Pairs) -> tuple[Estimate, Floats]:
    """Ordinary least squares of d on [1, order], and Welch's t between the two orders."""
    n1, mean1, var1 = _moments(pairs.log_ratio, pairs.valid & (pairs.order > 0))
    n2, mean2, var2 = _moments(pairs.log_ratio, pairs.valid & (pairs.order < 0))
    n = n1 + n2
    with np.errstate(invalid="ignore", divide="ignore"):
        v1, v2 = var1 / n1, var2 / n2
        gap = np.abs(mean1 - mean2)
        welch_df = (v1 + v2) ** 2 / (v1**2 / (n1 - 1) + v2**2 / (n2 - 1))
        order_p = np.where(gap < _ROUNDING, 1.0, 2.0 * stats.t.sf(gap / np.sqrt(v1 + v2), welch_df))
        order_p = np.where((v1 + v2 == 0) & (gap >= _ROUNDING), 0.0, order_p)
        order_p = np.where(np.isnan(v1 + v2), np.nan, order_p)
        residual = (np.nan_to_num(var1) * (n1 - 1) + np.nan_to_num(var2) * (n2 - 1)) / (n - 2)
        enough = (n1 >= 1) & (n2 >= 1) & (n >= 3)
        variance = np.where(enough, residual * (1.0 / n1 + 1.0 / n2) / 4.0, np.nan)
    return Estimate((mean1 + mean2) / 2.0, variance, np.where(enough, n - 2.0, np.nan)), order_p
