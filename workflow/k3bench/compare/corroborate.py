"""Who corroborates the headline, and how often was it replicated? The two are counted apart.

In: the run table, the levels' results, declared identities. Out: `Witnesses`. A restated metric is no witness; levels
that move together count as one; another allocation is a replication, not a corroboration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k3bench.compare import witnesses
from k3bench.compare.pairs import Floats, Pairs
from k3bench.compare.table import RunTable
from k3bench.metrics import IDENTITIES
from k3bench.records.comparison import LevelCorrelation, LevelResult, MetricResult, Restatement, Witnesses

CALLED = ("improvement", "regression")
CHUNK_MEAN = "itl_mean_ms"
#: A factor that is further from the stream interval than this is another factor.
MAX_FACTOR_OFF = 0.05


def restatements(table: RunTable, headline: int, real: list[int]) -> list[Restatement]:
    """Every metric that restates another, level by level, with what is declared about it."""
    found = []
    for i, level in enumerate(table.levels):
        logs, groups, rows = _rows_at(table, i, real)
        if logs.shape[-1] < witnesses.MIN_RESIDUALS or len(rows) < 2 or headline not in rows:
            continue
        for r in witnesses.restated(logs, groups, rows.index(headline)):
            name, of = table.metrics[rows[r.metric]], table.metrics[rows[r.of]]
            found.append(
                Restatement(
                    metric=name,
                    of=of,
                    kind=r.kind,
                    factor=r.factor,
                    cv=r.cv,
                    r2=r.r2,
                    concurrency=level,
                    declared=any({name, of} == {a, b} for a, b, _ in IDENTITIES),
                )
            )
    return found


def _rows_at(table: RunTable, level: int, real: list[int]) -> tuple[Floats, np.ndarray, list[int]]:  # type: ignore[type-arg]
    """Log values (metric, run) of the runs in which every metric present at this level was measured, and groups."""
    values = table.values[:, level][:, real]
    rows = [m for m in range(len(table.metrics)) if np.isfinite(values[m]).any()]
    whole = np.isfinite(values[rows]).all(axis=0) if rows else np.zeros(values.shape[1:], dtype=bool)
    groups = 2 * np.arange(len(real))[:, None] + table.after[real]
    _, compact = np.unique(groups[whole], return_inverse=True)
    return np.log(values[rows][:, whole]), compact, rows


def contradicted(table: RunTable, found: Sequence[Restatement]) -> tuple[str, ...]:
    """Declared identities of this campaign's metrics that the data do not show at any level, or show otherwise."""
    groups = _chains({frozenset((r.metric, r.of)) for r in found})
    asked = [(a, b, text) for a, b, text in IDENTITIES if a in table.metrics and b in table.metrics]
    shown = {text for a, b, text in asked if any({a, b} <= group for group in groups)}
    interval = table.plan.recipe.workload.stream_interval
    shown -= {text for a, b, text in asked for r in found if (r.metric, r.of) == (a, b) and _off(r, interval)}
    return tuple(dict.fromkeys(text for _, _, text in asked if text not in shown))


def _off(row: Restatement, stream_interval: int) -> bool:
    """Chunks of another size than the recipe asked for. Only a mean gap can tell: medians lean away from stalls."""
    if row.metric != CHUNK_MEAN or row.factor is None:
        return False
    return abs(row.factor / stream_interval - 1.0) > MAX_FACTOR_OFF


def _chains(links: set[frozenset[str]]) -> list[set[str]]:
    groups: list[set[str]] = []
    for link in links:
        tied = [g for g in groups if g & link]
        groups = [g for g in groups if not g & link] + [set(link).union(*tied)]
    return groups


def level_correlations(pairs: Pairs, levels: Sequence[int]) -> tuple[Floats | None, list[LevelCorrelation]]:
    """Correlation of pair log-ratios between levels, each observation's mean taken out; None where too few pairs."""
    d = pairs.log_ratio
    whole = np.isfinite(d).all(axis=0)
    if len(levels) < 2 or whole.sum() < witnesses.MIN_RESIDUALS:
        return None, []
    groups = np.broadcast_to(np.arange(d.shape[1])[:, None], whole.shape)[whole]
    _, groups = np.unique(groups, return_inverse=True)
    corr = witnesses.correlations(witnesses.residuals(d[:, whole], groups))
    return corr, [
        LevelCorrelation(
            concurrency_a=levels[i],
            concurrency_b=levels[j],
            r=float(corr[i, j]),
            shares_start=True,
            counts_as_one=bool(corr[i, j] > witnesses.ONE_LEVEL_R),
        )
        for i in range(len(levels))
        for j in range(i + 1, len(levels))
    ]


def count_witnesses(
    table: RunTable,
    headline: int,
    primary: int,
    real: list[int],
    pairs: Pairs,
    levels: Sequence[LevelResult],
    others: Sequence[MetricResult],
    dependent: frozenset[str] = frozenset(),
) -> Witnesses:
    """The record's part. Only a witness with the headline's own word corroborates it; `dependent` metrics never do."""
    found = restatements(table, headline, real)
    corr, rows = level_correlations(pairs, table.levels)
    word = levels[primary].word
    apart = [o for o in others if o.metric not in dependent]
    agreeing = [*_other_metrics(apart, primary, word, found, table), *_other_levels(levels, primary, word, corr)]
    logs, groups, _ = _rows_at(table, primary, real)
    effective = None
    if logs.shape[0] >= 1 and logs.shape[-1] >= witnesses.MIN_RESIDUALS:
        effective = witnesses.effective_number(witnesses.correlations(witnesses.residuals(logs, groups)))
    return Witnesses(
        restatements=tuple(found),
        contradicted=contradicted(table, found),
        n_metrics=len(table.metrics),
        effective_number=effective,
        level_correlations=tuple(rows),
        corroborating=tuple(agreeing) if word in CALLED else (),
        n_corroborations=len(agreeing) if word in CALLED else 0,
        n_replications=max(0, levels[primary].n_observations - 1),
    )


def _other_metrics(
    others: Sequence[MetricResult], primary: int, word: str, found: Sequence[Restatement], table: RunTable
) -> list[str]:
    """Metrics that restate nothing at the primary level and were called the same way there."""
    level = table.levels[primary]
    restating = {r.metric for r in found if r.concurrency == level}
    return [o.metric for o in others if o.metric not in restating and o.levels[primary].word == word]


def _other_levels(levels: Sequence[LevelResult], primary: int, word: str, corr: Floats | None) -> list[str]:
    """One name for each group of levels that does not move with the headline's and was called the same way."""
    if corr is None:
        return []
    names = []
    for group in witnesses.clusters(corr):
        called = [levels[i].concurrency for i in group if levels[i].word == word]
        if primary not in group and called:
            names.append("concurrency " + ", ".join(map(str, called)))
    return names
