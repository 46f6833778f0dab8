"""Second opinions on an observation's pairs that assume no normal noise: sign flips and signed ranks.

In: pair log-ratios. Out: exact p-values, Hodges-Lehmann. They are printed beside the t interval and are no verdict.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import stats

from k3bench.compare.pairs import Floats

#: All 2^n sign patterns are tried up to here; above it the signed-rank p stands alone.
MAX_SIGN_FLIP_PAIRS = 12
#: With fewer pairs neither test can reach 0.05, so that its silence means nothing.
MIN_PAIRS_TO_DISAGREE = 6


@lru_cache(maxsize=16)
def _signs(n: int) -> Floats:
    """Half of all sign patterns: the first sign stays +, the other half mirrors it."""
    bits = (np.arange(2 ** (n - 1))[:, None] >> np.arange(n - 1)[None, :]) & 1
    return np.concatenate([np.ones((bits.shape[0], 1)), 1.0 - 2.0 * bits], axis=1)


def sign_flip_p(pairs: Floats) -> Floats:
    """Exact two-sided sign-flip p of each row of at most MAX_SIGN_FLIP_PAIRS: share of patterns at least as far off."""
    rows = np.atleast_2d(pairs)
    sums = np.abs(rows @ _signs(rows.shape[-1]).T)
    seen = np.abs(rows.sum(axis=-1, keepdims=True))
    # equal sums differ by rounding
    return np.asarray((sums >= seen - 1e-12 * np.abs(rows).sum(axis=-1, keepdims=True)).mean(axis=-1))


def wilcoxon_p(pairs: Floats) -> Floats:
    """Exact two-sided signed-rank p of each row; zero and tied differences take mid-ranks on the untied table."""
    rows = np.atleast_2d(pairs)
    n = rows.shape[-1]
    ranks = stats.rankdata(np.abs(rows), axis=-1)
    plus = np.where(rows > 0, ranks, 0.0).sum(axis=-1) + np.where(rows == 0, ranks / 2, 0.0).sum(axis=-1)
    low = np.minimum(plus, n * (n + 1) / 2 - plus)
    return np.minimum(1.0, 2.0 * _signed_rank_cdf(n)[np.floor(low + 1e-9).astype(int)])


@lru_cache(maxsize=64)
def _signed_rank_cdf(n: int) -> Floats:
    """P(W <= w) for w = 0, 1, ...: every rank counts or not, each with one half."""
    mass = np.zeros(n * (n + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(mass)
        shifted[rank:] = mass[:-rank]
        mass = (mass + shifted) / 2.0
    return np.cumsum(mass)


def hodges_lehmann(pairs: Floats) -> float:
    """Median of all pairwise means (a pair with itself included)."""
    return float(np.median(_walsh(pairs)))


def hodges_lehmann_interval(pairs: Floats, level: float = 0.95) -> tuple[float, float]:
    """Exact signed-rank interval from the ordered pairwise means."""
    means = _walsh(pairs)
    rank = max(1, int(np.searchsorted(_signed_rank_cdf(len(pairs)), (1.0 - level) / 2.0)))
    return float(means[rank - 1]), float(means[len(means) - rank])


def _walsh(pairs: Floats) -> Floats:
    i, j = np.triu_indices(len(pairs))
    return np.sort((pairs[i] + pairs[j]) / 2.0)


def median_ranks(n: int, level: float = 0.95) -> tuple[int, int, float]:
    """Ranks of the order-statistic interval of a median and its coverage; rank 0 means unbounded (below six values)."""
    lower = int(stats.binom.ppf((1.0 - level) / 2.0, n, 0.5))
    while lower > 0 and stats.binom.cdf(lower - 1, n, 0.5) > (1.0 - level) / 2.0:
        lower -= 1
    return lower, n + 1 - lower, float(1.0 - 2.0 * stats.binom.cdf(lower - 1, n, 0.5))
