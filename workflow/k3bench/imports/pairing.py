"""Imported runs in; the same runs with pair, partner and position, out: a pure function of their numbers and clocks.

Two ways to number are known. Each arm for itself: run n of `before` and run n of `after` are pair n, and the files'
clocks say which came first. Or all runs of an observation in the order in which they ran: (1, 2), (3, 4) are pairs, as
in ABBA blocks. No number is in both arms then, and no pair holds an arm twice; that tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from k3bench.records.reported import Imported, ReportedRun


def source_of(run: ReportedRun) -> Imported:
    """The file of an imported run."""
    assert run.imported is not None, "runs of an imported record carry their file"
    return run.imported


@dataclass(frozen=True)
class Paired:
    """A run in its place. `partner` is None for a run without one; `order_known` says that its order is no guess."""

    run: ReportedRun
    partner: ReportedRun | None
    order_known: bool


def pair_runs(runs: Sequence[ReportedRun]) -> list[Paired]:
    """All runs with pair and position set, in a fixed order."""
    through = {o for o in {r.observation for r in runs} if _numbered_through([r for r in runs if r.observation == o])}
    ordered = sorted(runs, key=lambda r: (r.observation, r.level, source_of(r).run, r.arm != "before"))
    at = {_spot(r, r.observation in through): r for r in ordered}
    paired = [_paired(r, at, r.observation in through) for r in ordered]
    return [replace(p, run=_marked(p.run, _is_apart(p, paired))) for p in paired]


def _marked(run: ReportedRun, apart: bool) -> ReportedRun:
    return run.model_copy(update={"imported": source_of(run).model_copy(update={"apart": apart})})


def _numbered_through(runs: Sequence[ReportedRun]) -> bool:
    """Numbers count all runs of the observation, not those of each arm."""
    numbers = {arm: {source_of(r).run for r in runs if r.arm == arm} for arm in ("before", "after")}
    slots = [(arm, (n - 1) // 2) for arm, found in numbers.items() for n in found]
    return all(numbers.values()) and not numbers["before"] & numbers["after"] and len(slots) == len(set(slots))


def _pair(run: ReportedRun, through: bool) -> int:
    number = source_of(run).run - 1
    return number // 2 if through else number


def _spot(run: ReportedRun, through: bool) -> tuple[str, int, int, str]:
    return run.observation, run.level, _pair(run, through), run.arm


def _paired(run: ReportedRun, at: dict[tuple[str, int, int, str], ReportedRun], through: bool) -> Paired:
    pair = _pair(run, through)
    partner = at.get((run.observation, run.level, pair, "after" if run.arm == "before" else "before"))
    clocks = None if partner is None else ran_first(run, partner)
    before_first = run.arm == "before" if clocks is None else clocks
    first = source_of(run).run % 2 == 1 if through else before_first
    placed = run.model_copy(update={"pair": pair, "position": 2 * pair + (1 if first else 2)})
    return Paired(placed, partner, through or clocks is not None)


def ran_first(run: ReportedRun, other: ReportedRun) -> bool | None:
    """By the clocks of one tool; None where they do not tell."""
    mine, theirs = source_of(run).started_s, source_of(other).started_s
    return None if mine is None or theirs is None or mine == theirs else mine < theirs


def order_contradicted(paired: Sequence[Paired]) -> Iterator[ReportedRun]:
    """First runs of pairs that began after their partner by the clocks: the declared order is not the measured one."""
    for p in paired:
        if p.partner is not None and (p.run.position or 0) % 2 == 1 and ran_first(p.run, p.partner) is False:
            yield p.run


def _is_apart(p: Paired, paired: Sequence[Paired]) -> bool:
    """By the clocks another run of the observation and level began between this one and its partner."""
    ends = [source_of(r).started_s for r in (p.run, p.partner) if r is not None]
    if len(ends) < 2 or None in ends:
        return False
    low, high = sorted(e for e in ends if e is not None)
    return any(low < at < high for at in _starts(p.run, paired))


def _starts(run: ReportedRun, paired: Sequence[Paired]) -> Iterator[float]:
    for p in paired:
        at = source_of(p.run).started_s
        if at is not None and (p.run.observation, p.run.level) == (run.observation, run.level):
            yield at
