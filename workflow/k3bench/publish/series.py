"""What the figures draw, taken from a comparison record: pairs in run order, a row an observation, a bar a family.

Pure: no drawing library. Out of scope: colours, axes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from k3bench.records.comparison import (
    Comparison,
    FamilyMechanism,
    LevelResult,
    ObservationLevel,
    ObservationRow,
    ReportedFigure,
    RunValue,
)
from k3bench.units import delta_pct


@dataclass(frozen=True)
class PairPoint:
    """One pair: two neighbouring runs of a block. `index` counts the observation's pairs from 1."""

    observation: str
    zero_change: bool
    concurrency: int
    index: int
    before_first: bool
    delta_pct: float


def pairs(record: Comparison) -> list[PairPoint]:
    """Every usable pair at every level, in run order. A pair with an unusable run is left out, as in the statistics."""
    zero = {row.observation: row.zero_change for row in record.observations}
    groups: dict[tuple[str, int, int], list[RunValue]] = defaultdict(list)
    for run in record.runs:
        groups[run.observation, run.concurrency, (run.position - 1) // 2].append(run)
    found = []
    for (observation, concurrency, index), two in sorted(groups.items()):
        value = {run.arm: run.value for run in two if run.valid and run.value is not None}
        before, after = value.get("before"), value.get("after")
        if before is None or after is None:
            continue
        first = min(two, key=lambda run: run.position).arm == "before"
        found.append(
            PairPoint(
                observation, zero.get(observation, False), concurrency, index + 1, first, delta_pct(before, after)
            )
        )
    return found


def primary_level(record: Comparison) -> LevelResult:
    """The level whose verdict is the headline."""
    return next(level for level in record.levels if level.is_primary)


def levels(record: Comparison) -> list[int]:
    """The concurrency levels in ascending order."""
    return sorted(level.concurrency for level in record.levels)


def at_primary(record: Comparison, row: ObservationRow) -> ObservationLevel | None:
    """An observation's result at the primary level."""
    return next((level for level in row.levels if level.concurrency == record.primary_level), None)


def n_pairs(record: Comparison, *, zero_change: bool) -> int:
    """How many usable pairs stand behind the primary level."""
    return sum(p.zero_change == zero_change and p.concurrency == record.primary_level for p in pairs(record))


def order_known(record: Comparison) -> bool:
    """True when runs were measured in a declared order, so that pairs mean something."""
    return record.kind == "measured" and bool(record.runs)


@dataclass(frozen=True)
class Dot:
    """One run in the main figure; `spread` keeps the runs of a level apart."""

    concurrency: int
    value: float
    spread: float
    says: str


def values(record: Comparison, arm: str) -> list[Dot]:
    """Every usable run of one arm outside zero-change observations, or the published levels of a claim."""
    zero = {row.observation for row in record.observations if row.zero_change}
    runs = [r for r in record.runs if r.arm == arm and r.valid and r.value is not None and r.observation not in zero]
    found = []
    for concurrency in levels(record):
        here = [(r.value, r.record_id) for r in runs if r.concurrency == concurrency and r.value is not None]
        here += [(v, f"{f.observation}, published") for f in _claims(record, concurrency) if (v := _side(f, arm))]
        for (value, says), spread in zip(here, spreads(len(here), 0.07), strict=True):
            found.append(Dot(concurrency, value, spread, f"{says}: {value:.4f} {record.metric_unit}"))
    return found


def _claims(record: Comparison, concurrency: int) -> list[ReportedFigure]:
    figures = record.reported.figures if record.reported else ()
    return [f for f in figures if f.concurrency == concurrency]


def _side(figure: ReportedFigure, arm: str) -> float | None:
    return figure.before_ms if arm == "before" else figure.after_ms


def spreads(n: int, width: float) -> list[float]:
    """Even places in [-width, width], so that equal values stay apart without chance."""
    return [0.0] if n == 1 else [width * (2 * i / (n - 1) - 1) for i in range(n)]


def medians(record: Comparison, arm: str) -> dict[int, float]:
    """The arm's median at each level that has one, in level order; for a claim, the levels of its sweep."""
    found = {}
    for level in sorted(record.levels, key=lambda lv: lv.concurrency):
        value = level.before_median if arm == "before" else level.after_median
        shown = claim(record, level.concurrency)
        if shown is not None:
            value = _side(shown, arm)
        if value is not None:
            found[level.concurrency] = value
    return found


def claim(record: Comparison, concurrency: int) -> ReportedFigure | None:
    """The published figure of the sweep at one level: of the observation that shows most levels."""
    if record.reported is None or record.kind != "reported":
        return None
    shown = [f.observation for f in record.reported.figures]
    swept = max(shown, key=lambda name: (shown.count(name), name), default="")
    return next((f for f in _claims(record, concurrency) if f.observation == swept), None)


def claim_of(record: Comparison, observation: str) -> ReportedFigure | None:
    """An observation's published figure at the primary level, where no interval can be formed."""
    if record.reported is None or has_pairs(record):
        return None
    return next((f for f in _claims(record, record.primary_level) if f.observation == observation), None)


def has_pairs(record: Comparison) -> bool:
    """True when some level has pairs behind it."""
    return any(level.n_pairs for level in record.levels)


def order_panels(record: Comparison) -> list[str]:
    """Observations that have pairs at the primary level, real ones first."""
    have = {p.observation for p in pairs(record) if p.concurrency == record.primary_level}
    rows = sorted(record.observations, key=lambda row: row.zero_change)
    return [row.observation for row in rows if row.observation in have]


@dataclass(frozen=True)
class FamilyBar:
    """One family in one arm: busy time, the part of it on two streams, and the most that overlap could hide."""

    family: str
    arm: str
    busy_ms: float | None
    residency_ms: float | None
    bound_ms: float | None
    says: str


def family_bars(record: Comparison) -> list[FamilyBar]:
    """Bars in the order family, before, after. The bound stands at the before bar's headroom on the after bar."""
    rows = record.mechanism.families if record.mechanism else ()
    headroom = {row.family: row.headroom_ms_per_step for row in rows if row.headroom_ms_per_step is not None}
    ordered = sorted(rows, key=lambda row: (row.family, row.arm != "before"))
    return [
        FamilyBar(
            row.family,
            row.arm,
            row.busy_ms_per_step,
            row.two_stream_residency_ms_per_step,
            headroom.get(row.family) if row.arm == "after" else None,
            _bar_says(row),
        )
        for row in ordered
    ]


def _bar_says(row: FamilyMechanism) -> str:
    busy = "busy not shown" if row.busy_ms_per_step is None else f"busy {row.busy_ms_per_step:.3f}"
    if row.two_stream_residency_ms_per_step is None:
        return busy
    text = f"{busy}, two streams {row.two_stream_residency_ms_per_step:.3f}"
    return text + (f" ({row.share_of_busy_pct:.1f} %)" if row.share_of_busy_pct else "")
