"""Health of the runs as findings, and the flags they put on a level.

In: the run table. Out: `Health`, flags by level. Out of scope: the statistics themselves (`health`). Large campaigns
list what is flagged; what is in order is counted only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from k3bench.compare import health
from k3bench.compare.outliers import ODD_Z, modified_z
from k3bench.compare.pairs import Floats, Pairs
from k3bench.compare.table import RunTable
from k3bench.records.comparison import Arm, Finding, Flag, Health


@dataclass(frozen=True)
class Checked:
    """The record's part and the flags of each level index."""

    health: Health
    flags: dict[int, set[Flag]]


def check_runs(table: RunTable, metric: int, pairs: Pairs, real: list[int]) -> Checked:
    """All checks over the real observations, headline metric."""
    flags: dict[int, set[Flag]] = {i: set() for i in range(len(table.levels))}
    found: list[Finding] = []
    residual = health.centred(np.log(table.values[metric][:, real]), table.after[real])
    for findings, flag in (
        (_drift(table, residual, real), "drift"),
        (_states(table, residual, real), "bimodal"),
        (_steady(table, real), "not_steady"),
        (_odd_pairs(table, pairs, real), "outliers"),
    ):
        for level, finding in findings:
            found.append(finding)
            if finding.flagged:
                flags[level].add(flag)  # type: ignore[arg-type]
    counts = _counts(table, real)
    if counts["lopsided"]:
        for level in flags:
            flags[level].add("missing_not_at_random")
        found.insert(0, _lopsided(counts))
    for level in {place[0] for place in table.invalid if place[1] in real}:
        flags[level].add("dropped_runs")
    return Checked(_health(table, counts, tuple(found), real), flags)


def _drift(table: RunTable, residual: Floats, real: list[int]) -> list[tuple[int, Finding]]:
    tau, p = health.trend(residual)
    return [
        (
            int(i),
            Finding(
                kind="drift",
                flagged=True,
                observation=table.observations[real[o]].id,
                concurrency=table.levels[i],
                statistic="Kendall tau of residual against run position",
                value=float(tau[i, o]),
                threshold=health.DRIFT_P,
                p=float(p[i, o]),
            ),
        )
        for i, o in np.argwhere(p < health.DRIFT_P)
    ]


def _states(table: RunTable, residual: Floats, real: list[int]) -> list[tuple[int, Finding]]:
    distance = health.two_states(residual)
    return [
        (
            int(i),
            Finding(
                kind="bimodal",
                flagged=True,
                observation=table.observations[real[o]].id,
                concurrency=table.levels[i],
                statistic="distance of two groups of runs in joint sd (two-state clocks?)",
                value=float(distance[i, o]),
                threshold=health.TWO_STATE_D,
            ),
        )
        for i, o in np.argwhere(np.nan_to_num(distance) > health.TWO_STATE_D)
    ]


def _steady(table: RunTable, real: list[int]) -> list[tuple[int, Finding]]:
    """Second half of a run's batches against the first, mean over the runs of a level."""
    sums, counts = _half_differences(table, set(real))
    return [
        (
            i,
            Finding(
                kind="warm_up",
                flagged=bool(abs(sums[i] / counts[i]) > health.STEADY_LOG),
                concurrency=level,
                statistic="mean log difference of the second half of a run's batches against the first",
                value=float(sums[i] / counts[i]),
                threshold=health.STEADY_LOG,
            ),
        )
        for i, level in enumerate(table.levels)
        if counts[i]
    ]


def _half_differences(table: RunTable, real: set[int]) -> tuple[Floats, Floats]:
    """Summed log differences of the halves of valid runs, and their number, by level."""
    sums, counts = np.zeros(len(table.levels)), np.zeros(len(table.levels))
    by_length: dict[int, list[tuple[int, tuple[float, ...]]]] = {}
    for place, point in table.points.items():
        if place[1] in real and place not in table.invalid:
            by_length.setdefault(len(point.batch_tpot_ms), []).append((place[0], point.batch_tpot_ms))
    for length, runs in by_length.items():
        if length >= 2:
            level, batches = np.array([i for i, _ in runs]), np.log(np.array([b for _, b in runs]))
            difference = np.median(batches[:, -(length // 2) :], axis=1) - np.median(batches[:, : length // 2], axis=1)
            sums += np.bincount(level, weights=difference, minlength=len(sums))
            counts += np.bincount(level, minlength=len(sums))
    return sums, counts


def _odd_pairs(table: RunTable, pairs: Pairs, real: list[int]) -> list[tuple[int, Finding]]:
    z = modified_z(pairs)
    return [
        (
            int(i),
            Finding(
                kind="outlier",
                flagged=True,
                observation=table.observations[real[o]].id,
                concurrency=table.levels[i],
                where=f"pair {n + 1}",
                statistic="modified z of the pair's log-ratio",
                value=float(z[i, o, n]),
                threshold=ODD_Z,
            ),
        )
        for i, o, n in np.argwhere(np.nan_to_num(z) > ODD_Z)
    ]


def _counts(table: RunTable, real: list[int]) -> dict[str, float | int | bool]:
    """Runs of each arm, a run being invalid if it is so at any level."""
    bad = {(o, position) for (_, o, position) in table.invalid if o in set(real)}
    seen = table.measured[:, real].any(axis=0)
    after = table.after[real]
    invalid_after = sum(bool(table.after[o, position]) for o, position in bad)
    invalid_before = len(bad) - invalid_after
    n_after, n_before = int((seen & after).sum()), int((seen & ~after).sum())
    p = health.missing_p(invalid_before, n_before - invalid_before, invalid_after, n_after - invalid_after)
    return {
        "before": invalid_before,
        "after": invalid_after,
        "measured": n_before + n_after,
        "p": p,
        "lopsided": health.missing_not_at_random(invalid_before, invalid_after, p),
    }


def _lopsided(counts: dict[str, float | int | bool]) -> Finding:
    arm: Arm = "before" if counts["before"] > counts["after"] else "after"
    return Finding(
        kind="missing_not_at_random",
        flagged=True,
        arm=arm,
        statistic="invalid runs in one arm (Fisher's exact p)",
        value=float(max(counts["before"], counts["after"])),
        threshold=health.MISSING_P,
        p=float(counts["p"]),
    )


def _health(
    table: RunTable, counts: dict[str, float | int | bool], found: tuple[Finding, ...], real: list[int]
) -> Health:
    reasons = Counter(r.partition(":")[0] for (_, o, _), r in table.invalid.items() if o in set(real))
    return Health(
        n_runs_planned=int(table.planned[real].sum()),
        n_runs_measured=int(counts["measured"]),
        n_runs_valid=int(counts["measured"]) - int(counts["before"]) - int(counts["after"]),
        n_invalid_before=int(counts["before"]),
        n_invalid_after=int(counts["after"]),
        missing_p=float(counts["p"]),
        reasons=dict(sorted(reasons.items())),
        findings=found,
    )
