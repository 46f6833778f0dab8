"""One preset made ready for probing: its models and the serial references that probes compare with.

In: a preset, its options, a device. Out: models (built when first asked for), sessions, serial traces.
Out of scope: what is compared with them.
"""

from __future__ import annotations

from typing import Any

import torch

from k3model.capture import Decode
from k3model.config import K3Config, preset
from k3model.decode import K3, build, checked_device
from k3model.equivalence.bits import Trace, traces
from k3model.equivalence.rows import Outcome, failed
from k3model.policy import POLICIES, OverlapPolicy
from k3model.streams import Forks

SERIAL = POLICIES["serial"]
#: Prompt and generated tokens of the greedy probes, and a page to spare.
CONTEXT_TOKENS = 320


class Rig:
    """Models of one preset, each with a serial session a batch and what that session computes."""

    def __init__(self, name: str, options: dict[str, Any], *, device: str, max_batch: int, seed: int = 0) -> None:
        self.name, self.options, self.max_batch, self.seed = name, options, max_batch, seed
        self.device = checked_device(device)
        self._models: dict[tuple[tuple[str, Any], ...], K3] = {}
        self._sessions: dict[tuple[int, int], Decode] = {}
        self._references: dict[tuple[int, int, bool], tuple[Trace, ...]] = {}

    @property
    def config(self) -> K3Config:
        """The preset with its options."""
        return preset(self.name, **self.options)

    @property
    def rank(self) -> int:
        """Which of the ranks this process is."""
        return self.model().collectives.rank

    def any_rank(self, flag: bool) -> bool:
        """Ranks decide together: whether any of them says so. One that went its own way would leave others waiting."""
        return self.model().collectives.any_of(flag, self.device) if self.config.collectives == "distributed" else flag

    def together(self, outcome: Outcome) -> Outcome:
        """An outcome that the next question hangs on: it is a pass only if it is one on every rank."""
        apart = self.any_rank(outcome.status != "pass")
        return failed("not on this rank, but on another") if apart and outcome.status == "pass" else outcome

    @property
    def has_cuda(self) -> bool:
        """Whether there are streams and graphs to probe."""
        return self.device.type == "cuda"

    def model(self, **changed: Any) -> K3:
        """The preset's model, or one with further options changed."""
        key = tuple(sorted(changed.items()))
        if key not in self._models:
            config = preset(self.name, **{**self.options, **changed})
            model = build(
                config, device=str(self.device), seed=self.seed, max_batch=self.max_batch, context=CONTEXT_TOKENS
            )
            self._models[key] = model
            if self.has_cuda:
                model.side_stream = _apart_from_capture(self.device)
        return self._models[key]

    def session(self, policy: OverlapPolicy, batch: int, forks: Forks, model: K3 | None = None) -> Decode:
        """A session on these forks, for eager steps."""
        return Decode(model or self.model(), policy, batch, forks=forks)

    def captured(self, policy: OverlapPolicy, batch: int, forks: Forks, model: K3 | None = None) -> Decode:
        """A session on these forks with its graph. Rows start empty: other batches leave theirs at other positions."""
        session = self.session(policy, batch, forks, model)
        session.clear()
        session.capture()
        return session

    def serial(self, batch: int, model: K3 | None = None) -> Decode:
        """The captured serial session of a batch (eager on a CPU)."""
        model = model or self.model()
        key = (id(model), batch)
        if key not in self._sessions:
            self._sessions[key] = self.captured(SERIAL, batch, Forks(SERIAL, model.side_stream), model)
        return self._sessions[key]

    def reference(self, batch: int, *, eager: bool = False, model: K3 | None = None) -> tuple[Trace, ...]:
        """Serial traces of a batch: from the captured step, or from an eager one."""
        model = model or self.model()
        key = (id(model), batch, eager)
        if key not in self._references:
            session = Decode(model, SERIAL, batch) if eager else self.serial(batch, model)
            self._references[key] = traces(session)
        return self._references[key]

    def close(self) -> None:
        """Give the memory back."""
        self._sessions.clear()
        self._references.clear()
        self._models.clear()

    def settle(self) -> None:
        """Wait for the device, so that its errors belong to the probe that caused them."""
        if self.has_cuda:
            torch.cuda.synchronize(self.device)


def _apart_from_capture(device: torch.device) -> torch.cuda.Stream:
    """A side stream that is not the stream graphs are captured on: streams come from a pool that starts over."""
    stream = torch.cuda.Stream(device)
    while stream == getattr(torch.cuda.graph, "default_capture_stream", None):
        stream = torch.cuda.Stream(device)
    return stream
