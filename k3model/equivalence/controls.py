"""Negative controls: forks broken on purpose, which the probes of `forks.py` must see. A control that is caught passes.

In: a rig, a batch. Out: outcomes. A probe that cannot catch these is no probe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k3model.decode import K3
from k3model.equivalence.bits import COMPARED, Trace, first_difference, traces
from k3model.equivalence.legs import LeakyForks, ProbeForks, SwappedForks, UngatedForks, UnjoinedForks, UnopenedForks
from k3model.equivalence.rig import SERIAL, Rig
from k3model.equivalence.rows import Outcome, Probe, caught, not_run
from k3model.policy import PR_FORKS, with_forks
from k3model.streams import multi_stream

#: Right legs of these return a tensor that a leak can be added to.
LEAKY = ("kda_staging", "mla_q_kv", "routed_shared")
#: Only the right leg of fork 2 reads what this very step wrote before the fork. That of fork 1 reads what earlier steps
#: wrote, which the comparison after each step waits for; fork 3 takes cache places, which could then be any number.
UNOPENED = ("mla_q_kv",)


def control_probes(rig: Rig, batches: tuple[int, ...]) -> Iterator[Probe]:
    """Every control, on streams where there are streams and by swapped legs where that can show the fault."""
    for batch in batches:
        yield from _on_streams(rig, batch)
    batch = max(batches)
    yield _probe(
        "fork 3 under FP8 KV cache, gate removed; legs swapped", ungated_swapped, rig, batch, "mla_absorb_rope"
    )
    for fork in LEAKY:
        yield _probe("right leg reads what the left writes; legs swapped", leaky_swapped, rig, batch, fork)


def _on_streams(rig: Rig, batch: int) -> Iterator[Probe]:
    yield _probe("fork 3 under FP8 KV cache, gate removed", ungated, rig, batch, "mla_absorb_rope")
    for fork in PR_FORKS:
        yield _probe("join removed", unjoined, rig, batch, fork)
    for fork in LEAKY:
        yield _probe("right leg reads what the left writes", leaky, rig, batch, fork)
    for fork in UNOPENED:
        yield _probe("opening wait removed, eager", unopened, rig, batch, fork)


def _probe(what: str, run: Callable[[Rig, int, str], Outcome], rig: Rig, batch: int, fork: str) -> Probe:
    needs_cuda = not what.endswith("legs swapped")
    return Probe("control", what, fork, batch, lambda: run(rig, batch, fork), needs_cuda)


def ungated(rig: Rig, batch: int, fork: str) -> Outcome:
    """Under an FP8 cache the right leg reads what the left writes; the gate alone prevents that."""
    model = rig.model(kv_cache="fp8")
    forks = UngatedForks(with_forks(fork, fork), model.side_stream, late="left")
    return _captured(rig, batch, forks, rig.reference(batch, model=model), model)


def unjoined(rig: Rig, batch: int, fork: str) -> Outcome:
    """Main reads before the right leg has written. The MoE fork stays joined, which a capture needs to end."""
    model = rig.model()
    forks = UnjoinedForks(with_forks(fork, fork, "routed_shared"), model.side_stream, fork)
    return _captured(rig, batch, forks, rig.reference(batch), model)


def leaky(rig: Rig, batch: int, fork: str) -> Outcome:
    """The reference has the same leak, in order."""
    model = rig.model()
    ordered = LeakyForks(SERIAL, model.side_stream, fork, rig.device)
    session = rig.captured(SERIAL, batch, ordered)
    forks = LeakyForks(with_forks(fork, fork), model.side_stream, fork, rig.device)
    return _captured(rig, batch, forks, traces(session), model)


def unopened(rig: Rig, batch: int, fork: str) -> Outcome:
    """Cannot be captured, since the side stream would not take part; so eager."""
    forks = UnopenedForks(with_forks(fork, fork), rig.device)
    return _eager(rig, batch, forks, rig.reference(batch, eager=True), rig.model())


def ungated_swapped(rig: Rig, batch: int, fork: str) -> Outcome:
    """As `ungated`, with the legs swapped instead of late."""
    model = rig.model(kv_cache="fp8")
    forks = SwappedForks(with_forks(fork, fork), ungated=True)
    return _eager(rig, batch, forks, rig.reference(batch, eager=True, model=model), model)


def leaky_swapped(rig: Rig, batch: int, fork: str) -> Outcome:
    """As `leaky`, with the legs swapped instead of late."""
    ordered = LeakyForks(SERIAL, None, fork, rig.device)
    forks = LeakyForks(with_forks(fork, fork), None, fork, rig.device)
    return _eager(rig, batch, forks, traces(rig.session(SERIAL, batch, ordered)), rig.model())


def _captured(rig: Rig, batch: int, forks: ProbeForks, expected: tuple[Trace, ...], model: K3) -> Outcome:
    session = rig.captured(forks.policy, batch, forks, model)
    return _judge(forks, expected, traces(session))


def _eager(rig: Rig, batch: int, forks: ProbeForks | SwappedForks, expected: tuple[Trace, ...], model: K3) -> Outcome:
    with multi_stream():
        return _judge(forks, expected, traces(rig.session(forks.policy, batch, forks, model)))


def _judge(forks: ProbeForks | SwappedForks, expected: tuple[Trace, ...], found: tuple[Trace, ...]) -> Outcome:
    if not forks.split[forks.policy.name]:
        return not_run("this fork does not occur in this configuration")
    return caught(first_difference(expected, found), steps=COMPARED)
