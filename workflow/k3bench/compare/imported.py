"""Runs that were imported: which of their metrics say the same thing twice, and which pairs were not side by side.

In: a `Reported` record with imported runs. Out: `Witnesses`, outstanding rows. Only the headline of imported runs is
judged, so nothing corroborates it here; that ITL or tps/user restate it is shown all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from k3bench.compare import witnesses
from k3bench.metrics import HEADLINE, IDENTITIES, METRICS
from k3bench.records.comparison import LevelResult, Outstanding, Restatement, Witnesses
from k3bench.records.reported import Reported, ReportedRun


def imported_witnesses(reported: Reported, primary: LevelResult) -> Witnesses | None:
    """None where no imported run has more than the headline."""
    runs = [r for r in reported.runs if r.imported is not None and HEADLINE in r.metrics]
    metrics = [m for m in METRICS if any(m in r.metrics for r in runs)]
    if len(metrics) < 2:
        return None
    return Witnesses(
        restatements=tuple(row for level in sorted({r.level for r in runs}) for row in _restated(runs, level)),
        n_metrics=len(metrics),
        n_corroborations=0,
        n_replications=max(0, primary.n_observations - 1),
    )


def _restated(runs: Sequence[ReportedRun], level: int) -> Iterator[Restatement]:
    here = [r for r in runs if r.level == level]
    shared = [HEADLINE, *(m for m in METRICS if m != HEADLINE and all(m in r.metrics for r in here))]
    if len(here) < witnesses.MIN_RESIDUALS or len(shared) < 2:
        return
    logs = np.log(np.array([[r.metrics[m] for r in here] for m in shared]))
    _, groups = np.unique([f"{r.observation}/{r.arm}" for r in here], return_inverse=True)
    for row in witnesses.restated(logs, groups):
        name, of = shared[row.metric], shared[row.of]
        yield Restatement(
            metric=name,
            of=of,
            kind=row.kind,
            factor=row.factor,
            cv=row.cv,
            r2=row.r2,
            concurrency=level,
            declared=any({name, of} == {a, b} for a, b, _ in IDENTITIES),
        )


def imported_outstanding(reported: Reported) -> Iterator[Outstanding]:
    """What runs from files leave open, beside what every published record does."""
    imported = [r for r in reported.runs if r.imported is not None]
    if not imported:
        return
    yield Outstanding(
        kind="zero_change",
        what="no zero-change observation is among the imported runs: the floor is assumed",
        fix="zero-change observations of the same design",
    )
    apart = sum(r.imported is not None and r.imported.apart and r.arm == "before" for r in imported)
    if apart:
        yield Outstanding(
            kind="time",
            what=f"{apart} pairs were not measured side by side: drift between them is in the difference",
            fix="run the arms in ABBA or BAAB blocks",
        )
