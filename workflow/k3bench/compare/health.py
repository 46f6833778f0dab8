"""Are the runs themselves in order? Steadiness, drift, two-state behaviour, missing runs. Nothing is dropped by value.

In: log values shaped (level, observation, position), the arms, first and second halves of runs. Out: statistics and
flags as arrays. Out of scope: turning them into findings (`findings`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import stats

from k3bench.compare.pairs import Bools, Floats

#: p below which a trend over run positions is flagged; low, since every observation and level is tested.
DRIFT_P = 0.01
#: Log difference of second against first half of runs, on average, beyond which a level is not steady.
STEADY_LOG = 0.005
#: Two groups of runs this far apart, in joint standard deviations, are two states and not one noisy one.
TWO_STATE_D = 6.0
#: Share of runs that the smaller state must hold; a lone slow run is an outlier, not a state.
TWO_STATE_SHARE = 0.2
#: Fewer runs split into two far groups by chance.
MIN_RUNS_FOR_STATES = 12
#: More invalid runs in one arm by so many, against none in the other, is reported first whatever the p.
ONE_SIDED_FAILURES = 3
MISSING_P = 0.05


def centred(log_values: Floats, after: Bools) -> Floats:
    """Log values less the mean of their arm in their observation; NaN stays NaN."""
    out = np.full(log_values.shape, np.nan)
    for arm in (False, True):
        members = (after == arm) & ~np.isnan(log_values)
        n = members.sum(axis=-1, keepdims=True)
        mean = np.where(members, log_values, 0.0).sum(axis=-1, keepdims=True) / np.maximum(n, 1)
        out = np.where(members, log_values - mean, out)
    return out


def trend(residual: Floats) -> tuple[Floats, Floats]:
    """Kendall's tau of residual against position along the last axis, and its p (1 where too few or all tied)."""
    valid = ~np.isnan(residual)
    n = valid.sum(axis=-1)
    later = np.triu(np.ones((residual.shape[-1],) * 2, dtype=bool), 1)
    with np.errstate(invalid="ignore"):
        sign = np.sign(residual[..., None, :] - residual[..., :, None])
    score = np.where(later & np.isfinite(sign), sign, 0.0).sum(axis=(-1, -2))
    pairs = n * (n - 1) / 2.0
    with np.errstate(invalid="ignore", divide="ignore"):
        tau = np.where(pairs > 0, score / pairs, np.nan)
    p = np.array([_trend_p(int(k), abs(float(s))) for k, s in zip(n.ravel(), score.ravel(), strict=True)])
    return tau, p.reshape(n.shape)


@lru_cache(maxsize=65536)
def _trend_p(n: int, score: float) -> float:
    """Exact two-sided p of Kendall's score; the normal law beyond 60 runs."""
    if n < 4:
        return 1.0
    if n > 60:
        spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
        return float(2.0 * stats.norm.sf(score / spread))
    pairs = n * (n - 1) // 2
    # concordant pairs are at least (pairs + score)/2
    least = math.ceil((pairs + score) / 2.0 - 1e-9)
    return min(1.0, 2.0 * float(_inversions(n)[least:].sum()))


@lru_cache(maxsize=64)
def _inversions(n: int) -> Floats:
    """Share of orders of n values with 0, 1, 2, ... inversions."""
    mass = np.ones(1)
    for size in range(2, n + 1):
        mass = np.convolve(mass, np.full(size, 1.0 / size))
    return mass


def two_states(residual: Floats) -> Floats:
    """Largest separation of a split into two groups, in joint sd, smaller group at least a fifth; NaN below 12 runs."""
    order = np.sort(residual, axis=-1)
    n = np.isfinite(order).sum(axis=-1)
    size = np.arange(1, order.shape[-1])
    filled, squares = np.nan_to_num(order).cumsum(axis=-1), np.nan_to_num(order**2).cumsum(axis=-1)
    low_n, high_n = size, n[..., None] - size
    allowed = np.minimum(low_n, high_n) >= np.maximum(3, TWO_STATE_SHARE * n[..., None])
    allowed &= (n >= MIN_RUNS_FOR_STATES)[..., None]
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = filled[..., :-1] / low_n, (filled[..., -1:] - filled[..., :-1]) / high_n
        spread = squares[..., :-1] - low_n * low**2 + squares[..., -1:] - squares[..., :-1] - high_n * high**2
        sd = np.sqrt(np.maximum(spread, 0.0) / (n[..., None] - 2))
        distance = np.where(allowed & (sd > 1e-12), (high - low) / sd, np.nan)
    best = np.where(np.isnan(distance), -1.0, distance).max(axis=-1, initial=-1.0)
    return np.where(best > 0, best, np.nan)


def missing_p(invalid_before: int, valid_before: int, invalid_after: int, valid_after: int) -> float:
    """Fisher's exact p that invalid runs fall on both arms alike."""
    table = [[invalid_before, valid_before], [invalid_after, valid_after]]
    return float(stats.fisher_exact(table).pvalue)


def missing_not_at_random(invalid_before: int, invalid_after: int, p: float) -> bool:
    """One arm fails more than the other: to be reported before any number."""
    one_sided = min(invalid_before, invalid_after) == 0 and max(invalid_before, invalid_after) >= ONE_SIDED_FAILURES
    return p < MISSING_P or one_sided
