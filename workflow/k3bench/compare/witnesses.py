"""Which metrics say the same thing twice: exact and near restatements, and levels that move together.

In: log run values shaped (metric, run) with a group an arm of an observation; pair residuals shaped (level, pair).
Out: `Restated` rows, the effective number, correlations. Out of scope: what corroborates a headline (`campaign`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from k3bench.compare.pairs import Floats, Ints

#: y/x (or xy) that varies less than this over all runs is an identity, not a correlation.
EXACT_CV = 2e-4
#: Residuals that share this much variance carry no second opinion.
NEAR_R2 = 0.95
#: Levels measured after one start that correlate more than this count as one.
ONE_LEVEL_R = 0.5
#: Fewer residual degrees of freedom than this say nothing about correlation.
MIN_RESIDUALS = 4


@dataclass(frozen=True)
class Restated:
    """Metric `metric` restates `of`; `factor` is the mean of metric/of or of metric x of."""

    metric: int
    of: int
    kind: Literal["exact_ratio", "exact_product", "near"]
    factor: float
    cv: float
    r2: float | None


def residuals(log_values: Floats, groups: Ints) -> Floats:
    """Subtract each group's mean: the effect itself would correlate everything with everything."""
    counts = np.maximum(np.bincount(groups), 1)
    means = np.stack([np.bincount(groups, weights=row) / counts for row in log_values])
    return np.asarray(log_values - means[:, groups])


def correlations(residual: Floats) -> Floats:
    """Correlation matrix of the rows; 0 beside a row that does not vary."""
    scale = np.sqrt((residual**2).sum(axis=-1))
    still = scale < 1e-12
    unit = residual / np.where(still, 1.0, scale)[..., None]
    unit[still] = 0.0
    matrix = unit @ unit.T
    np.fill_diagonal(matrix, 1.0)
    return np.asarray(np.clip(matrix, -1.0, 1.0))


def exact_factor(log_x: Floats, log_y: Floats) -> tuple[Literal["exact_ratio", "exact_product"], float, float]:
    """The steadier of y/x and xy: which, its mean and its coefficient of variation over all runs."""
    ratio, product = np.exp(log_y - log_x), np.exp(log_y + log_x)
    cv_ratio, cv_product = (float(np.std(z, ddof=1) / np.mean(z)) for z in (ratio, product))
    if cv_ratio <= cv_product:
        return "exact_ratio", float(np.mean(ratio)), cv_ratio
    return "exact_product", float(np.mean(product)), cv_product


def restated(log_values: Floats, groups: Ints, headline: int = 0) -> list[Restated]:
    """Every metric that restates the headline or an earlier metric, each once, the headline tried first.

    Where runs are so alike that any ratio is constant, a metric counts as restated too: a witness has to be able to
    say something else.
    """
    corr = correlations(residuals(log_values, groups))
    enough = log_values.shape[-1] - len(set(groups.tolist())) >= MIN_RESIDUALS
    order = [headline, *(m for m in range(len(log_values)) if m != headline)]
    found: list[Restated] = []
    for i, metric in enumerate(order):
        row = next(
            (r for of in order[:i] if (r := _pair(log_values, metric, of, corr, enough)) is not None),
            None,
        )
        if row is not None:
            found.append(row)
    return found


def _pair(log_values: Floats, metric: int, of: int, corr: Floats, enough: bool) -> Restated | None:
    kind, factor, cv = exact_factor(log_values[of], log_values[metric])
    r2 = float(corr[metric, of] ** 2) if enough else None
    if cv < EXACT_CV:
        return Restated(metric, of, kind, factor, cv, r2)
    if r2 is not None and r2 >= NEAR_R2:
        return Restated(metric, of, "near", factor, cv, r2)
    return None


def effective_number(corr: Floats) -> float:
    """(sum l)^2 / sum l^2 over the eigenvalues: how many independent rows the matrix is worth."""
    eigenvalues = np.linalg.eigvalsh(corr)
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def clusters(corr: Floats, threshold: float = ONE_LEVEL_R) -> list[list[int]]:
    """Groups of rows tied by correlations above the threshold, each in order, chains included."""
    left, groups = list(range(len(corr))), []
    while left:
        group, edge = [left.pop(0)], 0
        while edge < len(group):
            tied = [j for j in left if corr[group[edge], j] > threshold]
            left = [j for j in left if j not in tied]
            group.extend(tied)
            edge += 1
        groups.append(sorted(group))
    return groups
