"""Greedy decoding of a batch under one policy: static buffers in, tokens out, one captured CUDA graph per batch.

`Decode` is what an engine measures. On a GPU a step is one replay; elsewhere, or before `capture`, it runs eagerly.
Sessions on one model share weights, caches and buffers, so arms can be interleaved in one process: restore a snapshot
before each run. Out of scope: timing, prompts as text, sampling.
"""

from __future__ import annotations

import torch

from k3model.cache import Snapshot
from k3model.decode import K3
from k3model.errors import CapacityError
from k3model.policy import OverlapPolicy
from k3model.ranges import Ranges, no_ranges, nvtx_range
from k3model.streams import Forks, capture_stream, multi_stream

WARM_UP_STEPS = 2
#: Tokens of a prompt run at once; bounds the memory of prefill.
PREFILL_CHUNK = 512


class Decode:
    """One policy and one batch size on a model. Rows 0..batch-1 of its caches and buffers are this session's."""

    def __init__(
        self,
        model: K3,
        policy: OverlapPolicy,
        batch: int,
        *,
        forks: Forks | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        """`ranges` are opened by eager steps and by the capture; without them the capture alone opens NVTX ranges."""
        model.caches.check(batch)
        self.model, self.policy, self.batch = model, policy, batch
        self.forks = forks if forks is not None else Forks(policy, model.side_stream)
        self.forks.side_first = model.config.leg_order == "side"
        self.rows = model.caches.rows(batch)
        self.ranges = ranges
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None

    # --- buffers, at fixed addresses
    @property
    def tokens(self) -> torch.Tensor:
        """[batch] the token that the next step reads; after a step, the one it chose."""
        return self.model.caches.tokens[: self.batch]

    @property
    def positions(self) -> torch.Tensor:
        """[batch] where the next token goes."""
        return self.model.caches.positions[: self.batch]

    @property
    def history(self) -> torch.Tensor:
        """[batch, context] chosen tokens: the one chosen by the step at position p lies at column p."""
        return self.model.caches.history[: self.batch]

    @property
    def logits(self) -> torch.Tensor:
        """[batch, vocab] of the last step."""
        return self.model.caches.logits[: self.batch]

    # --- filling the context
    def fill(self, context: int, *, seed: int = 0) -> None:
        """Caches as after `context` tokens, from seeded noise: cheap, right in shape and size, no prompt behind it."""
        caches = self.model.caches
        caches.check(self.batch, context)
        generator = torch.Generator(self.model.device).manual_seed(seed)
        caches.fill(self.batch, context, generator)

    @torch.no_grad()
    def prefill(self, prompt: torch.Tensor, *, chunk: int = PREFILL_CHUNK) -> None:
        """Run a prompt [batch, T] after what the rows already hold; chooses the first token. Eager, one stream."""
        start = self.position()
        self.model.caches.check(self.batch, start + prompt.shape[1])
        logits = None
        for part in prompt.to(self.model.device).split(chunk, dim=1):
            logits = self.model.prefill(part, self.rows, start, self.forks)
            start += part.shape[1]
        if logits is not None:
            self.positions.fill_(start - 1)
            self._choose(logits)

    def position(self) -> int:
        """The common position of the rows. Waits for the device: not for use inside a timed loop."""
        positions = set(self.positions.tolist())
        if len(positions) != 1:
            raise CapacityError(f"rows stand at different positions {sorted(positions)}")
        return positions.pop()

    def clear(self) -> None:
        """Empty caches at position 0."""
        self.model.caches.clear(self.batch)

    def snapshot(self) -> Snapshot:
        """All that steps change; valid for any session of this batch on this model."""
        return self.model.caches.snapshot(self.batch)

    def restore(self, snapshot: Snapshot) -> None:
        """Back to the snapshot; refuses one of another batch."""
        if snapshot.batch != self.batch:
            raise CapacityError(f"a snapshot of batch {snapshot.batch} cannot restore a session of batch {self.batch}")
        self.model.caches.restore(snapshot)

    # --- stepping
    def check_steps(self, steps: int) -> None:
        """Refuse before any work if that many steps would run past the cache."""
        self.model.caches.check(self.batch, self.position() + steps)

    @property
    def captured(self) -> bool:
        """Whether `step` replays a graph."""
        return self._graph is not None

    @torch.no_grad()
    def warm_up(self) -> None:
        """Run what a capture needs to have run before; caches are as before afterwards. Nothing to do without CUDA."""
        if self.model.device.type != "cuda" or self._warm:
            return
        self.check_steps(WARM_UP_STEPS)
        before = self.snapshot()
        side = torch.cuda.Stream(self.model.device)
        side.wait_stream(torch.cuda.current_stream())
        with multi_stream(), torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self._eager_step(no_ranges)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize(self.model.device)
        self.model.graph_pool()
        self.restore(before)
        self._warm = True

    @torch.no_grad()
    def capture(self) -> None:
        """Warm up and capture one step, forks included; caches are as before afterwards. Nothing to do without CUDA."""
        if self.model.device.type != "cuda" or self._graph is not None:
            return
        self.warm_up()
        graph = torch.cuda.CUDAGraph()
        mode = self.model.collectives.capture_error_mode
        stream = capture_stream(self.model.device, self.model.config.stream_priority)
        pool = self.model.graph_pool()
        with multi_stream(), torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=mode):
            self._eager_step(self.ranges or nvtx_range)
        self._graph = graph

    @torch.no_grad()
    def step(self) -> None:
        """Every row one token further, greedily. Does not wait for the device."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._eager_step(self.ranges or no_ranges)

    def _eager_step(self, ranges: Ranges) -> None:
        with self.forks.ranged(ranges):
            logits = self.model.step(self.tokens, self.rows, self.forks, ranges)
        with ranges(self.model.head_range):
            self._choose(logits)

    def _choose(self, logits: torch.Tensor) -> None:
        """Greedy choice, remembered; positions move on. Index writes only, so a graph can hold it."""
        self.logits.copy_(logits)
        chosen = logits.argmax(-1)
        self.tokens.copy_(chosen)
        self.history.scatter_(1, self.positions.unsqueeze(1), chosen.unsqueeze(1))
        self.positions.add_(1)
