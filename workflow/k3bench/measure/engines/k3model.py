"""K3 decode in this process: both arms from the same weights, one captured step per arm and batch size.

Each batch starts from a stored cache snapshot. Step times are CUDA events on a GPU, perf_counter_ns elsewhere; a step's
time is host launch to device completion of one token for every row. Out of scope: prompts, serving, profiling.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch

from k3bench.errors import K3Error, MeasureError
from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.metrics import BatchTimes
from k3bench.records.measurement import Arm, Check, Restart
from k3bench.runnable import same_sources, source_digest
from k3model.cache import Snapshot
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import K3, build, device_of
from k3model.errors import K3ModelError
from k3model.policy import policy


class InProcessK3:
    """One model, a session per arm and level, a snapshot per level."""

    restart: Restart = "none"
    simulated = False

    def __init__(self, request: EngineRequest) -> None:
        recipe = request.recipe
        self.osl_tokens = recipe.workload.osl_tokens
        self.model = build_model(request)
        self.device = self.model.device.type
        self._policies = {arm: build.policy for arm, build in request.builds.items()}
        self._snapshots = snapshots(self.model, request)
        self._sessions: dict[tuple[Arm, int], Decode] = {}
        self._tokens: dict[tuple[Arm, int], torch.Tensor] = {}
        self._repeats = True
        for level in recipe.workload.levels:
            for arm in self._policies:
                self._open(arm, level)

    def _open(self, arm: Arm, level: int) -> None:
        """Every graph is captured before the first timed step; a zero-change observation captures its twin anew."""
        session = Decode(self.model, policy(self._policies[arm], level), level)
        session.restore(self._snapshots[level])
        session.capture()
        self._sessions[arm, level] = session

    def start(self, context: RunContext) -> None:
        """Reset to the stored snapshot; collect garbage now rather than inside a timed step."""
        self._repeats = True
        self._sessions[context.arm, context.level].restore(self._snapshots[context.level])
        gc.collect()

    def batch(self, context: RunContext) -> BatchTimes:
        """OSL greedy steps for `level` rows from the snapshot."""
        session = self._sessions[context.arm, context.level]
        session.restore(self._snapshots[context.level])
        self.model.collectives.barrier()
        timed = time_on_device if self.device == "cuda" else time_on_host
        gc.disable()
        try:
            step_ns = timed(session.step, self.osl_tokens)
        finally:
            gc.enable()
        self._remember(context, session.history)
        return BatchTimes(step_ns=step_ns)

    def _remember(self, context: RunContext, history: torch.Tensor) -> None:
        first = self._tokens.setdefault((context.arm, context.level), history.clone())
        self._repeats &= torch.equal(first, history)

    def history(self, context: RunContext) -> torch.Tensor:
        """What the last batch of this arm and level chose."""
        return self._sessions[context.arm, context.level].history

    def checks(self, context: RunContext) -> tuple[Check, ...]:
        """The same snapshot must give the same tokens, batch after batch."""
        detail = "" if self._repeats else "two batches from one snapshot chose different tokens"
        return (Check(name="tokens_repeat", ok=self._repeats, detail=detail),)

    def close(self) -> None:
        """Give the memory back."""
        self._sessions.clear()
        self._snapshots.clear()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def open_engine(request: EngineRequest) -> InProcessK3:
    """Build the model and capture every step. Raises `MeasureError` where the machine cannot, or runs other sources."""
    for made in request.builds.values():
        if other := same_sources(made, source_digest(Path(inspect.getfile(K3)).parent)):
            fix = "remove the campaign's builds/ folder, so that it is built from what is measured"
            raise MeasureError(f"this process does not run what was built: {other}", where=made.pair, fix=fix)
    try:
        return InProcessK3(request)
    except K3ModelError as error:
        raise MeasureError(error.what, where=error.where or request.observation.id, fix=error.fix) from None
    except torch.cuda.OutOfMemoryError as error:
        raise _too_large(error) from None


def _too_large(error: Exception) -> K3Error:
    return MeasureError(
        f"the GPU has too little memory: {str(error).splitlines()[0]}",
        fix="choose a smaller preset, fewer rows or a shorter context",
    )


def build_model(request: EngineRequest) -> K3:
    """The recipe's preset, wide and long enough for its workload."""
    recipe = request.recipe
    device = device_of(recipe.engine.device)
    if device == "cpu":
        torch.set_num_threads(1)  # tiny operations: a second thread only waits, and waits longest on a busy machine
    return build(
        preset(recipe.engine.preset, **recipe.engine.options),
        device=device,
        seed=recipe.seed,
        max_batch=max(recipe.workload.levels),
        context=recipe.workload.isl_tokens + recipe.workload.osl_tokens,
    )


def snapshots(model: K3, request: EngineRequest) -> dict[int, Snapshot]:
    """Caches after ISL tokens, filled once at the largest batch: smaller levels are its first rows.

    A seeded random prompt run for real, or seeded noise where the recipe says so.
    """
    recipe, levels = request.recipe, request.recipe.workload.levels
    widest = Decode(model, policy("serial"), max(levels))
    widest.clear()
    if recipe.engine.context == "noise":
        widest.fill(recipe.workload.isl_tokens, seed=recipe.seed)
    else:
        generator = torch.Generator().manual_seed(recipe.seed)
        shape = (max(levels), recipe.workload.isl_tokens)
        widest.prefill(torch.randint(model.config.vocab, shape, generator=generator))
    return {level: Decode(model, policy("serial"), level).snapshot() for level in levels}


def time_on_host(step: Callable[[], None], steps: int) -> tuple[int, ...]:
    """Durations of consecutive steps by the host's monotonic clock, ns."""
    stamps = [time.perf_counter_ns()]
    for _ in range(steps):
        step()
        stamps.append(time.perf_counter_ns())
    return tuple(b - a for a, b in itertools.pairwise(stamps))


def time_on_device(step: Callable[[], None], steps: int) -> tuple[int, ...]:
    """Durations between events recorded after consecutive steps, ns; the host waits once, at the end."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return tuple(round(a.elapsed_time(b) * 1e6) for a, b in itertools.pairwise(events))
