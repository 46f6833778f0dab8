"""All probes of sameness for the presets named: subjects and a device in, one row a probe out, whatever happens.

What needs CUDA on a machine without it is `not_run`, in one row for all its policies and batches. A probe that raises
is `fail` with what it raised; one that runs out of memory or time is `not_run`. Out of scope: records and files.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from k3model.config import preset
from k3model.equivalence.across import across_probes
from k3model.equivalence.controls import control_probes
from k3model.equivalence.forks import PRESSED, fork_probes
from k3model.equivalence.greedy import PROMPTS, greedy_probes
from k3model.equivalence.rig import Rig
from k3model.equivalence.rows import Kind, Outcome, Probe, Row, failed, not_run
from k3model.policy import FORKS, POLICIES, OverlapPolicy, policies

#: Small enough to be decoded whole on a CPU; the others need a GPU even for what needs no streams.
CPU_PRESETS = ("nano", "nano-res", "small", "small-16")
NO_CUDA = "no CUDA device"
LEFT_WAITING = "memory that runs out on one rank would leave the others waiting in a collective"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """A preset with its options, and the policies whose sameness is claimed."""

    preset: str
    options: dict[str, Any] = field(default_factory=dict)
    policies: tuple[str, ...] = ("before", "after")

    def probed(self) -> tuple[OverlapPolicy, ...]:
        """Each fork alone, the three of the change, all, and the subject's own; one name for each set of forks."""
        named = [POLICIES[name] for name in (*FORKS, "three", "all")] + self._own()
        return tuple({p.forks: p for p in named if p.forks}.values())

    def whole(self) -> tuple[OverlapPolicy, ...]:
        """Policies for whole greedy decodes: all forks, and the subject's own that have several."""
        named = [POLICIES["all"], *self._own()]
        return tuple({p.forks: p for p in named if len(p.forks) > 1}.values())

    def _own(self) -> list[OverlapPolicy]:
        return [policy for name in self.policies for policy in policies(name)]


def probe_rows(
    subject: Subject,
    *,
    device: str,
    batches: tuple[int, ...] = (1, 2, 4, 8),
    budget_s: float | None = None,
    say: Say = lambda text: None,
) -> Iterator[Row]:
    """Every row of one subject. Raises `K3ModelError` before any work if something named does not exist."""
    preset(subject.preset, **subject.options)
    clock, probed = _Clock(budget_s), subject.probed()
    rig = Rig(subject.preset, subject.options, device=device, max_batch=max(PROMPTS, *batches))
    waiting: dict[tuple[Kind, str], list[Probe]] = {}
    for probe in _probes(rig, subject, probed, batches):
        if _lacks_cuda(rig, probe):
            waiting.setdefault((probe.kind, probe.what), []).append(probe)
            continue
        row = _row(subject.preset, probe, _outcome(rig, probe, clock))
        say(f"{row.preset} {row.kind} {row.policy} batch {row.batch}: {row.what}: {row.status} {row.reason}")
        yield row
    for (kind, what), probes in waiting.items():
        named = ", ".join(dict.fromkeys(probe.policy for probe in probes))
        yield Row(kind, "not_run", what, subject.preset, None, named, NO_CUDA)
    rig.close()
    _recover()


def _probes(
    rig: Rig, subject: Subject, policies: tuple[OverlapPolicy, ...], batches: tuple[int, ...]
) -> Iterator[Probe]:
    forks = list(fork_probes(rig, policies, batches))
    distributed = rig.config.collectives == "distributed"
    if distributed and rig.name in CPU_PRESETS:  # deeper or wider ones amplify rounding beyond any useful bound
        yield from across_probes(rig)
    yield from (probe for probe in forks if probe.what != PRESSED)
    yield from greedy_probes(rig, subject.whole())
    yield from control_probes(rig, batches)
    for probe in forks:
        if probe.what == PRESSED:
            yield replace(probe, left_out=LEFT_WAITING) if distributed else probe


def _lacks_cuda(rig: Rig, probe: Probe) -> bool:
    return not rig.has_cuda and (probe.needs_cuda or rig.name not in CPU_PRESETS)


def _outcome(rig: Rig, probe: Probe, clock: _Clock) -> Outcome:
    if not probe.left_out and rig.any_rank(clock.is_over):
        return not_run(f"the time for probes, {clock.budget_s:.0f} s, was over")
    return ask(probe, rig.settle)


def ask(probe: Probe, settle: Callable[[], None] = lambda: None) -> Outcome:
    """Run one probe; an error is an outcome too. `settle` waits for the device, whose errors come late."""
    if probe.left_out:
        return not_run(probe.left_out)
    try:
        with torch.no_grad():
            outcome = probe.run()
        settle()
        return outcome
    except torch.OutOfMemoryError:
        _recover()
        return not_run("out of device memory")
    except Exception as error:
        _recover()
        return failed(f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def _recover() -> None:
    """Give back what was held, and leave the capture stream: a capture that fails stays on it."""
    gc.collect()
    # After a fatal error the device answers nothing any more; the rows still have to be written.
    with contextlib.suppress(Exception):
        if torch.cuda.is_available():
            torch.cuda.set_stream(torch.cuda.default_stream())
            torch.cuda.empty_cache()


def _row(preset: str, probe: Probe, outcome: Outcome, *, every_batch: bool = False) -> Row:
    batch = None if every_batch else probe.batch
    return Row(probe.kind, outcome.status, probe.what, preset, batch, probe.policy, outcome.reason, **outcome.measures)


class _Clock:
    """Seconds since the first probe, against a budget."""

    def __init__(self, budget_s: float | None) -> None:
        self.budget_s = budget_s
        self._started = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the budget is spent; never without one."""
        return self.budget_s is not None and time.monotonic() - self._started > self.budget_s
