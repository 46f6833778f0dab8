"""The other two kinds of evidence: residency and sameness, beside time.

In: residency and equivalence records. Out: `Mechanism`, `EqualityRow`s. Out of scope: what is missing (`outstanding`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from k3bench.records.comparison import (
    EqualityRow,
    FamilyMechanism,
    Mechanism,
    TracesOf,
)
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Arm
from k3bench.records.residency import FamilySummary, Residency

#: Less overlap inside lanes than this share of busy is skew of timestamps, not programmatic dependent launch.
SKEW = 0.01


def mechanism(
    of: Mapping[str, Residency], gain_ms: float | None, sure_gain_ms: float | None = None
) -> Mechanism | None:
    """Families of every record's summaries averaged over records; None without a trace of either arm.

    `sure_gain_ms` is the low end of the gain's interval: only a gain that is surely beyond the ideal is called so.
    """
    records = tuple(of.values())
    rows = [s for record in records for s in record.summaries if s.arm is not None]
    if not rows:
        return None
    keys = list(dict.fromkeys((s.arm, s.family) for s in rows))
    families = tuple(_family([s for s in rows if (s.arm, s.family) == key], records) for key in keys)
    explained = _difference(families, "busy_ms_per_step")
    overlap = _difference(families, "two_stream_residency_ms_per_step")
    ideals = [r.headroom.ideal_ms_per_step for r in records if r.headroom is not None]
    ideal = sum(ideals) / len(ideals) if ideals else None
    devices = [d for record in records for t in record.traces for d in t.devices]
    collectives = [d.collectives for d in devices if d.collectives is not None]
    return Mechanism(
        families=families,
        gain_ms_per_step=gain_ms,
        explained_ms_per_step=explained,
        ceiling_ms_per_step=None if overlap is None else -overlap,
        ideal_ms_per_step=ideal,
        achieved_share=None if gain_ms is None or not ideal else gain_ms / ideal,
        beyond_ceiling=None if sure_gain_ms is None or ideal is None else sure_gain_ms > ideal,
        sources=tuple(sorted(t.file for r in records for t in r.traces)),
        traces=tuple(found for name, record in of.items() for found in _traces(name, record)),
        n_collectives=sum(c.n_kernels for c in collectives) if collectives else None,
        collectives_concurrent_ns=sum(c.concurrent_ns for c in collectives) if collectives else None,
        same_lane_ms_per_step=_same_lane([row for row in rows if row.arm == "before"], len(records)),
    )


def _traces(observation: str, record: Residency) -> Iterator[TracesOf]:
    n = Counter((t.level, t.arm) for t in record.traces if t.arm is not None)
    for level in dict.fromkeys(level for level, _ in n):
        yield TracesOf(
            observation=observation, concurrency=level, n_before=n[level, "before"], n_after=n[level, "after"]
        )


def _same_lane(rows: Sequence[FamilySummary], n_records: int) -> float | None:
    """Overlap inside single lanes in one arm, milliseconds a step: mean over records; None where it is but skew."""
    inside = sum(row.same_lane_only_ms_per_step for row in rows)
    return inside / n_records if inside > SKEW * sum(row.busy_ms_per_step for row in rows) else None


def _family(rows: Sequence[FamilySummary], records: Sequence[Residency]) -> FamilyMechanism:
    def mean(name: str) -> float | None:
        values = [v for row in rows if (v := getattr(row, name)) is not None]
        return sum(values) / len(values) if values else None

    first = rows[0]
    assert first.arm is not None
    forks = [[f for f in r.headroom.forks if f.family == first.family] for r in records if r.headroom is not None]
    ideal = [sum(f.ideal_ms_per_step for f in group) for group in forks if group]
    return FamilyMechanism(
        arm=first.arm,
        family=first.family,
        segments_per_step=mean("segments_per_step"),
        busy_ms_per_step=mean("busy_ms_per_step"),
        two_stream_residency_ms_per_step=mean("two_stream_residency_ms_per_step"),
        share_of_busy_pct=mean("share_of_busy_pct"),
        headroom_ms_per_step=sum(ideal) / len(ideal) if ideal and first.arm == "before" else None,
        profiled_over_unprofiled=mean("profiled_over_unprofiled"),
        worst_rank_residency_ms_per_step=(
            min(row.worst_residency_ms_per_step for row in rows) if any(row.n_traces > 1 for row in rows) else None
        ),
    )


def _difference(families: Sequence[FamilyMechanism], name: str) -> float | None:
    """Sum over families of before minus after, where both arms show the family."""
    by_arm = {arm: {f.family: getattr(f, name) for f in families if f.arm == arm} for arm in ("before", "after")}
    both = [f for f in by_arm["before"] if by_arm["before"][f] is not None and by_arm["after"].get(f) is not None]
    return sum(by_arm["before"][f] - by_arm["after"][f] for f in both) if both else None


def equality(
    records: Sequence[Equivalence], elsewhere: Mapping[str, tuple[Arm, ...]]
) -> tuple[EqualityRow, ...] | None:
    """Every probe of every record; None where none was verified. `elsewhere`: observations probed on other builds."""
    rows = tuple(
        EqualityRow(
            kind=row.kind,
            status=row.status,
            what=row.what,
            preset=row.preset,
            batch=row.batch,
            policy=row.policy,
            reason=row.reason or None,
            other_builds=record.observation in elsewhere and row.status != "not_run",
        )
        for record in records
        for row in record.rows
    )
    return rows or None
