"""Published figures seen through their own numbers: recomputed deltas, ratio gap, spread, what is not shown.

In: a `Reported` record. Out: `ReportedSummary` and its parts. None of it is a verdict; nothing not shown is filled in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from k3bench.compare.levels import interval_pct
from k3bench.compare.noise import MIN_RUNS_FOR_RANGE, range_exceeded_p
from k3bench.compare.published import (
    Printed,
    alike,
    gap_of_printed,
    implied_busy,
    t_over_observations,
)
from k3bench.records.comparison import EqualityRow, FamilyMechanism, Mechanism, ReportedFigure, ReportedSummary
from k3bench.records.reported import Reported, ReportedDelta, ReportedResidency
from k3bench.units import delta_pct, pct_from_log

#: A spread over fewer observations than this has no t line worth printing.
MIN_FOR_T = 3


def recomputed_pct(row: ReportedDelta) -> float | None:
    """From the row's own levels; None where one is not shown."""
    if row.before_tpot_ms is None or row.after_tpot_ms is None:
        return None
    return delta_pct(row.before_tpot_ms, row.after_tpot_ms)


def best_ratio(row: ReportedDelta) -> float | None:
    """after/before from the levels where both are shown, else from the published delta."""
    if row.before_tpot_ms is not None and row.after_tpot_ms is not None:
        return row.after_tpot_ms / row.before_tpot_ms
    return None if row.delta_pct is None else 1.0 + row.delta_pct / 100.0


def figure_of(row: ReportedDelta, reported: Reported) -> ReportedFigure:
    """One published cell, and what its own numbers and band give."""
    recomputed = recomputed_pct(row)
    delta = recomputed if recomputed is not None else row.delta_pct
    band = next((b for b in reported.bands if b.level == row.level), None)
    beyond = None if band is None or delta is None else abs(delta) > band.band_pct
    testable = band is not None and band.runs is not None and band.runs >= MIN_RUNS_FOR_RANGE and bool(delta)
    return ReportedFigure(
        observation=row.observation,
        concurrency=row.level,
        before_ms=row.before_tpot_ms,
        after_ms=row.after_tpot_ms,
        published_delta_pct=row.delta_pct,
        recomputed_delta_pct=recomputed,
        reproduces=None
        if recomputed is None or row.delta_pct is None
        else Printed.parse(row.delta_pct).admits(recomputed),
        published_band_pct=None if band is None else band.band_pct,
        band_runs=None if band is None else band.runs,
        beyond_band=beyond,
        range_rule_p=range_exceeded_p(band.runs, abs(delta) / band.band_pct)  # type: ignore[union-attr,arg-type]
        if testable
        else None,
    )


def summary_of(reported: Reported) -> ReportedSummary:
    """Everything that follows from the printed numbers alone."""
    at_primary = {r.observation: r for r in reported.deltas if r.level == reported.primary_level}
    shown = {o: ratio for o, r in at_primary.items() if (ratio := best_ratio(r)) is not None}
    claim = reported.agreement[0] if reported.agreement else None
    between = claim.between if claim else tuple(shown) if len(shown) == 2 else ()
    gap = _gap([at_primary[o] for o in between if o in shown]) if len(between) == 2 else None
    logs = np.log(list(shown.values())) if shown else np.array([])
    line = t_over_observations(logs) if len(logs) >= MIN_FOR_T else None
    return ReportedSummary(
        figures=tuple(figure_of(row, reported) for row in reported.deltas),
        published_ratio_gap_pct=None if claim is None else claim.value_pct,
        published_ratio_gap_between=between,
        ratio_gap_pct=None if gap is None else gap[0],
        ratio_gap_range_pct=None if gap is None else gap[1],
        spread_pct=100.0 * (max(shown.values()) / min(shown.values()) - 1.0) if len(shown) >= 2 else None,
        spread_over=tuple(shown) if len(shown) >= 2 else (),
        t_delta_pct=None if line is None else pct_from_log(line.mean),
        t_ci95=None if line is None else interval_pct(*line.ci95),
        t_p=None if line is None else line.p,
        t_pi95=None if line is None else interval_pct(*line.pi95),
        not_shown=tuple(not_shown(reported)),
    )


def _gap(rows: Sequence[ReportedDelta]) -> tuple[float, tuple[float, float]] | None:
    """The ratio gap of two observations, the earlier first, and the range that rounding of the inputs allows."""
    if len(rows) != 2:
        return None
    first, second = rows
    if first.delta_pct is None or second.delta_pct is None:
        a, b = best_ratio(first), best_ratio(second)
        return None if a is None or b is None else (100 * abs(b / a - 1), (100 * abs(b / a - 1),) * 2)
    deltas = alike((Printed.parse(first.delta_pct), Printed.parse(second.delta_pct)))
    levels = [None if x is None else Printed.parse(x) for x in (second.before_tpot_ms, second.after_tpot_ms)]
    gap = gap_of_printed((deltas[0], deltas[1]), *levels)
    return gap.from_levels_pct if gap.from_levels_pct is not None else gap.from_deltas_pct, gap.range_pct


def not_shown(reported: Reported) -> list[str]:
    """What a reader would need and the source does not print."""
    lines = []
    for row in reported.deltas:
        if recomputed_pct(row) is None:
            lines.append(f"before and after of {row.observation} at concurrency {row.level}")
    for observation in reported.observations:
        absent = [name for name in ("rack", "build", "job") if getattr(observation, name) is None]
        if absent:
            lines.append(f"{' and '.join(absent)} of {observation.id}")
    if reported.deltas and not reported.runs:
        lines.append("the runs behind each figure: how many, in which order, their spread")
    if reported.bands and not reported.runs:
        lines.append("the zero-change runs behind the noise bands")
    levels = {row.level for row in reported.deltas}
    for observation in reported.observations:
        have = {row.level for row in reported.deltas if row.observation == observation.id}
        lost = sorted(levels - have)
        if have and lost:
            lines.append(f"{observation.id} at concurrency {', '.join(map(str, lost))}")
    for residency in reported.residency:
        if residency.device_busy_ms_per_step is None:
            lines.append(f"{residency.family} busy time of {residency.arm}, the denominator of its share")
    return lines


def mechanism_of(reported: Reported) -> Mechanism | None:
    """Published residency; what the shares imply about busy time is said apart from what is shown."""
    if not reported.residency:
        return None
    implied = [_implied_saved(after, reported) for after in reported.residency if after.arm == "after"]
    overlap = [r.two_stream_residency_ms_per_step for r in reported.residency if r.arm == "after"]
    whole = bool(implied) and all(v is not None for v in implied)
    return Mechanism(
        families=tuple(
            FamilyMechanism(
                arm=row.arm,
                family=row.family,
                segments_per_step=row.segments_per_step,
                busy_ms_per_step=row.device_busy_ms_per_step,
                two_stream_residency_ms_per_step=row.two_stream_residency_ms_per_step,
                share_of_busy_pct=row.share_of_busy_pct,
            )
            for row in reported.residency
        ),
        explained_ms_per_step=math.fsum(v for v in implied if v is not None) if whole else None,
        ceiling_ms_per_step=math.fsum(v for v in overlap if v is not None)
        if overlap and all(v is not None for v in overlap)
        else None,
        sources=(reported.source.title,),
    )


def _implied_saved(after: ReportedResidency, reported: Reported) -> float | None:
    """Busy time before less the busy time that the published share implies."""
    before = next((r for r in reported.residency if r.arm == "before" and r.family == after.family), None)
    if before is None or before.device_busy_ms_per_step is None:
        return None
    if after.device_busy_ms_per_step is not None:
        return before.device_busy_ms_per_step - after.device_busy_ms_per_step
    if not after.two_stream_residency_ms_per_step or not after.share_of_busy_pct:
        return None
    shown = implied_busy(
        before.device_busy_ms_per_step, after.two_stream_residency_ms_per_step, after.share_of_busy_pct
    )
    return shown.saved_ms


def equality_of(reported: Reported) -> tuple[EqualityRow, ...] | None:
    """A claim that something was run counts as run; an argument does not."""
    rows = tuple(
        EqualityRow(
            kind="greedy" if "greedy" in claim.what else "fork",
            status="pass" if claim.kind == "measured" else "not_run",
            what=claim.what,
            reason=claim.claim,
        )
        for claim in reported.equality
    )
    return rows or None
