"""Probes of kind fork: a policy's decode steps against serial ones, bit by bit.

In: a rig, a policy, a batch. Out: outcomes. Captured, captured with either leg late, eager under memory pressure, and,
on any machine, with the legs in the other order. Out of scope: greedy decoding, controls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from k3model.equivalence.bits import COMPARED, Trace, first_difference, is_telling, traces
from k3model.equivalence.legs import Late, ProbeForks, SwappedForks, tight_memory
from k3model.equivalence.rig import Rig
from k3model.equivalence.rows import Outcome, Probe, failed, not_run, passed
from k3model.policy import OverlapPolicy
from k3model.streams import multi_stream

LATES: tuple[Late, ...] = ("left", "right")
#: Slow, so the suite asks it last.
PRESSED = "eager step against serial, forks forced on, memory recycled and overwritten"


def fork_probes(rig: Rig, policies: tuple[OverlapPolicy, ...], batches: tuple[int, ...]) -> Iterator[Probe]:
    """Every probe of this kind, the most telling first."""
    for batch in batches:
        yield Probe("fork", "serial step twice: same bits", "serial", batch, lambda b=batch: repeated(rig, b))  # type: ignore[misc]
    for what, probe, at in (
        ("captured step against serial", undelayed, batches),
        ("captured step against serial, each leg late in turn", delayed, batches),
        (PRESSED, pressed, tuple(sorted({min(batches), max(batches)}))),
    ):
        for policy in policies:
            for batch in at:
                yield Probe("fork", what, policy.name, batch, lambda f=probe, p=policy, b=batch: f(rig, p, b))  # type: ignore[misc]
    every = max(policies, key=lambda policy: len(policy.forks))
    what = "captured step against serial, FP8 KV cache with its gate in place"
    yield Probe("fork", what, every.name, max(batches), lambda: gated(rig, every, max(batches)))
    for policy in policies:
        what = "eager step against serial, right leg before left on one thread"
        yield Probe("fork", what, policy.name, None, lambda p=policy: swapped(rig, p, batches), needs_cuda=False)  # type: ignore[misc]


def repeated(rig: Rig, batch: int) -> Outcome:
    """Serial against itself: without this, no other comparison means anything."""
    expected = rig.reference(batch)
    blind = is_telling(expected)
    return failed(blind) if blind else same(expected, traces(rig.serial(batch)))


def undelayed(rig: Rig, policy: OverlapPolicy, batch: int) -> Outcome:
    """The captured step as an engine replays it."""
    return captured(rig, policy, batch, "")


def delayed(rig: Rig, policy: OverlapPolicy, batch: int) -> Outcome:
    """A missing dependency must show: first the left legs come late, then the right legs."""
    outcome = rig.together(captured(rig, policy, batch, "left"))
    return captured(rig, policy, batch, "right") if outcome.status == "pass" else outcome


def captured(rig: Rig, policy: OverlapPolicy, batch: int, late: Late) -> Outcome:
    """One graph, replayed from fresh inputs."""
    forks = ProbeForks(policy, rig.model().side_stream, late=late)
    session = rig.captured(policy, batch, forks)
    return answer(forks.split, rig.reference(batch), traces(session), f"{late} leg late: " if late else "")


def gated(rig: Rig, policy: OverlapPolicy, batch: int) -> Outcome:
    """What the control without the gate differs from: fork 3 stays serial, the others overlap."""
    model = rig.model(kv_cache="fp8")
    forks = ProbeForks(policy, model.side_stream, late="left")
    session = rig.captured(policy, batch, forks, model)
    if forks.split["mla_absorb_rope"]:
        return failed("fork 3 was split although the cache is FP8")
    return answer(forks.split, rig.reference(batch, model=model), traces(session), "left leg late: ")


def pressed(rig: Rig, policy: OverlapPolicy, batch: int) -> Outcome:
    """Freed blocks are taken and overwritten at once, and the allocator may hardly grow."""
    expected = rig.reference(batch, eager=True)
    with tight_memory(rig.device), multi_stream():
        outcomes = (_pressed(rig, policy, batch, late, expected) for late in LATES)
        return next((outcome for outcome in outcomes if outcome.status != "pass"), passed(steps=COMPARED))


def _pressed(rig: Rig, policy: OverlapPolicy, batch: int, late: Late, expected: tuple[Trace, ...]) -> Outcome:
    forks = ProbeForks(policy, rig.model().side_stream, late=late, churn=True)
    return answer(forks.split, expected, traces(rig.session(policy, batch, forks)), f"{late} leg late: ")


def swapped(rig: Rig, policy: OverlapPolicy, batches: tuple[int, ...]) -> Outcome:
    """Legs that are independent may run in either order."""
    outcomes = (rig.together(_swapped(rig, policy, batch)) for batch in batches)
    every = "batches " + ", ".join(str(batch) for batch in batches)
    return next((outcome for outcome in outcomes if outcome.status != "pass"), passed(every, steps=COMPARED))


def _swapped(rig: Rig, policy: OverlapPolicy, batch: int) -> Outcome:
    forks = SwappedForks(policy)
    with multi_stream():
        found = traces(rig.session(policy, batch, forks))
    return answer(forks.split, rig.reference(batch, eager=True), found, f"batch {batch}: ")


def answer(split: Counter[str], expected: tuple[Trace, ...], found: tuple[Trace, ...], where: str) -> Outcome:
    """Same bits or the first difference; no answer if no fork was split, since then nothing was compared."""
    if not split:
        return not_run("this fork does not occur in this configuration")
    return same(expected, found, where)


def same(expected: tuple[Trace, ...], found: tuple[Trace, ...], where: str = "") -> Outcome:
    """Pass if no bit differs."""
    difference = first_difference(expected, found)
    return failed(where + difference, steps=COMPARED) if difference else passed(steps=COMPARED)
