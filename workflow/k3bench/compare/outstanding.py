"""What a reviewer would still have to ask for, as `Outstanding`s: what was planned and is missing, or does not decide.

In: the plan, residency by observation, what `kinds` found, the judged levels. Out: one line each, with its
cure. Out of scope: what records cite (`cited`), the machine (`machine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k3bench.records.comparison import (
    EqualityRow,
    LevelResult,
    Mechanism,
    ObservationRow,
    Outstanding,
    ZeroChange,
)
from k3bench.records.plan import Plan
from k3bench.records.residency import Residency

#: Verdicts that an unchanged build should not get.
CALLED_AT_ZERO = ("improvement", "regression", "disagreement")


def not_profiled(plan: Plan, residency: Mapping[str, Residency]) -> tuple[Outstanding, ...]:
    """Profiled runs that the plan names and no trace is of."""
    seen = {(name, t.arm, t.level) for name, record in residency.items() for t in record.traces}
    missing = dict.fromkeys(p.observation for p in plan.profiles if (p.observation, p.arm, p.level) not in seen)
    if not missing:
        return ()
    what = f"profiled runs of {', '.join(missing)} are missing"
    return (Outstanding(kind="residency", what=what, fix="k3bench profile, then k3bench trace"),)


def left_open(
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
    """Levels significant alone that wait for the primary level, in one line: more blocks of theirs do not help them."""
    barred = [str(level.concurrency) for level in levels if level.inconclusive_because == "primary_not_called"]
    if not barred:
        return []
    named = f"primary_level: {barred[0]}," if len(barred) == 1 else "a primary_level that is one of them,"
    fix = f"a recipe with {named} named before it is measured"
    blocks = next((level.blocks_to_settle for level in levels if level.is_primary), None)
    if blocks is not None:
        fix = f"settle the primary level first (blocks: {blocks}), or {fix}"
    what = f"inconclusive at concurrency {', '.join(barred)}: significant alone, but the primary level was not called"
    return [Outstanding(kind="time", what=what, fix=fix)]


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
