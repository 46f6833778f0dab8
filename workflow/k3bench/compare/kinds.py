"""The other two kinds of evidence, and what is outstanding: residency and sameness beside time.

In: residency and equivalence records. Out: `Mechanism`, `EqualityRow`s, `Outstanding`s. Nothing is measured here; what
is not there is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from k3bench.records.comparison import (
    EqualityRow,
    FamilyMechanism,
    LevelResult,
    Mechanism,
    ObservationRow,
    Outstanding,
    TracesOf,
    ZeroChange,
)
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Arm
from k3bench.records.plan import Plan
from k3bench.records.residency import FamilySummary, Residency

#: Verdicts that an unchanged build should not get.
CALLED_AT_ZERO = ("improvement", "regression", "disagreement")
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


def not_profiled(plan: Plan, residency: Mapping[str, Residency]) -> tuple[Outstanding, ...]:
    """Profiled runs that the plan names and no trace is of."""
    seen = {(name, t.arm, t.level) for name, record in residency.items() for t in record.traces}
    missing = dict.fromkeys(p.observation for p in plan.profiles if (p.observation, p.arm, p.level) not in seen)
    if not missing:
        return ()
    what = f"profiled runs of {', '.join(missing)} are missing"
    return (Outstanding(kind="residency", what=what, fix="k3bench profile, then k3bench trace"),)


def not_its_own(traced: Mapping[str, str]) -> tuple[Outstanding, ...]:
    """Traces that say nothing of the observation in whose folder they lie; its mechanism is made without them."""
    return tuple(
        Outstanding(
            kind="residency",
            what=f"the traces of {observation} do not count: they are {why}",
            fix="restore its residency.json, or k3bench profile, then k3bench trace",
        )
        for observation, why in traced.items()
    )


def not_of_these_builds(elsewhere: Mapping[str, tuple[Arm, ...]]) -> tuple[Outstanding, ...]:
    """Sameness of other builds is none of these."""
    return tuple(
        Outstanding(
            kind="equality",
            what=f"the probes of {observation} are not of the builds that it timed ({', '.join(arms)})",
            fix=f"k3bench verify PLAN {observation}",
        )
        for observation, arms in elsewhere.items()
    )


def outstanding(
    mechanism_: Mechanism | None,
    equality_: tuple[EqualityRow, ...] | None,
    observations: Sequence[ObservationRow],
    levels: Sequence[LevelResult],
    zero: ZeroChange | None,
) -> tuple[Outstanding, ...]:
    """What a reviewer would still have to ask for."""
    found = [*_missing_kinds(mechanism_, equality_), *_missing_observations(observations)]
    if zero is None or zero.n_observations == 0:
        found.append(
            Outstanding(
                kind="zero_change",
                what="no usable zero-change observation: the floor is assumed and no band is measured",
                fix="zero_change: 3 (or more) in the recipe",
            )
        )
    if zero is not None and zero.called:
        found.append(_called(zero))
    found += _behind_the_primary(levels)
    found += [_open_level(level) for level in levels if _is_open(level)]
    found += _wide_margin(levels)
    if all(level.n_observations <= 1 for level in levels):
        found.append(
            Outstanding(kind="replication", what="not replicated on another rack", fix="add observations to the recipe")
        )
    return tuple(found)


def _called(zero: ZeroChange) -> Outstanding:
    """Something was called that cannot be there."""
    words = ", ".join(f"{r.word} at concurrency {r.concurrency}" for r in zero.levels if r.word in CALLED_AT_ZERO)
    p = "" if zero.called_p_holm is None else f" (Holm p = {zero.called_p_holm:.2g})"
    use = "; its bands and floor are not used" if zero.blocked else ""
    return Outstanding(
        kind="zero_change",
        what=f"zero-change observations were called {words}{p}{use}",
        fix="look at what differs between their arms (build, order, clocks, drift), then measure them again",
    )


def _missing_kinds(mechanism_: Mechanism | None, equality_: tuple[EqualityRow, ...] | None) -> list[Outstanding]:
    found = []
    if mechanism_ is None:
        found.append(
            Outstanding(
                kind="residency", what="two-stream residency from GPU traces", fix="trace: {tool: ...} in the recipe"
            )
        )
    if equality_ is None:
        found.append(
            Outstanding(kind="equality", what="sameness of outputs (bitwise, greedy tokens)", fix="k3bench verify")
        )
    return [*found, *_not_probed(equality_ or ()), *_open_probes(equality_ or ())]


def _not_probed(rows: Sequence[EqualityRow]) -> list[Outstanding]:
    """Equal bits are worth what a control shows that they are, and say nothing about tokens."""
    kinds = {row.kind for row in rows}
    if not any(row.kind in ("fork", "greedy") and row.status == "pass" for row in rows):
        return []
    needed = (("control", "no control was probed"), ("greedy", "no greedy tokens were compared"))
    return [Outstanding(kind="equality", what=what, fix="k3bench verify") for kind, what in needed if kind not in kinds]


def _open_probes(rows: Sequence[EqualityRow]) -> list[Outstanding]:
    """Probes that did not pass, one line for each kind of probe; the rows themselves are in `equality`."""
    groups: dict[tuple[str, str], list[EqualityRow]] = {}
    for row in rows:
        if row.status != "pass":
            groups.setdefault((row.what, "failed" if row.status == "fail" else "not run"), []).append(row)
    found = []
    for (what, state), members in groups.items():
        total = sum(row.what == what for row in rows)
        count = "" if total == 1 else f" ({len(members)} of {total} probes)"
        reasons = list(dict.fromkeys(row.reason for row in members if row.reason))
        more = f"; and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
        found.append(Outstanding(kind="equality", what=f"{what}: {state}{count}", fix="".join(reasons[:1]) + more))
    return found


def _missing_observations(observations: Sequence[ObservationRow]) -> list[Outstanding]:
    return [
        Outstanding(
            kind="observation",
            what=f"{row.observation} is {row.status}: {row.reason}",
            fix="run the recipe again: finished blocks are kept",
        )
        for row in observations
        if row.status != "complete"
    ]


def _is_open(level: LevelResult) -> bool:
    """Whether more of the same campaign would say more about this level."""
    return level.word in ("inconclusive", "disagreement") and level.inconclusive_because != "primary_not_called"


def _behind_the_primary(levels: Sequence[LevelResult]) -> list[Outstanding]:
    """Levels that only a primary level of their own can settle, in one line: the primary is named before the data."""
    barred = [str(level.concurrency) for level in levels if level.inconclusive_because == "primary_not_called"]
    if not barred:
        return []
    named = f"primary_level: {barred[0]}," if len(barred) == 1 else "a primary_level that is one of them,"
    what = f"inconclusive at concurrency {', '.join(barred)}: significant alone, but the primary level was not called"
    return [Outstanding(kind="time", what=what, fix=f"a recipe with {named} named before it is measured")]


def _open_level(level: LevelResult) -> Outstanding:
    if level.word == "disagreement":
        return Outstanding(
            kind="replication",
            what=f"observations disagree at concurrency {level.concurrency}",
            fix="add an observation on a further rack",
        )
    blocks, why = level.blocks_to_settle, ""
    if level.inconclusive_because == "significant_alone":
        why = ": significant alone, not over the sweep"
    cure = "no number of blocks settles it while the floor is this wide" if blocks is None else f"blocks: {blocks}"
    return Outstanding(kind="time", what=f"inconclusive at concurrency {level.concurrency}{why}", fix=cure)


def _wide_margin(levels: Sequence[LevelResult]) -> list[Outstanding]:
    """A margin narrower than what a zero change shows cannot be kept by anybody."""
    return [
        Outstanding(
            kind="zero_change",
            what=f"at concurrency {level.concurrency} a zero change shows {level.delta_band.half_width_pct:.2f} %, "
            f"more than the margin of {level.margin_pct:g} %",
            fix="state a margin no narrower than that, or measure more blocks",
        )
        for level in levels
        if level.delta_band is not None and level.delta_band.half_width_pct > level.margin_pct
    ]
