"""The one owner of the side stream: two legs in, both results out, run side by side or one after the other.

Semantics are those of TensorRT-LLM's `maybe_execute_in_parallel`. Out of scope: which forks exist (`policy.py`), what
the legs do (the layers).

    main  ──●opened──left()───────────────wait──▶ both results
    side     └─wait──right()──●done────────┘

`opened` is recorded before the left leg is issued, so the right leg depends only on work before the fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from k3model.policy import OverlapPolicy
from k3model.ranges import Ranges, no_ranges

L = TypeVar("L")
R = TypeVar("R")
T = TypeVar("T")

_thread = threading.local()


def multi_stream_is_on() -> bool:
    """Whether this thread may fork. Off unless `multi_stream` says otherwise, so an eager step stays on one stream."""
    return bool(getattr(_thread, "multi_stream", False))


@contextmanager
def multi_stream(on: bool = True) -> Iterator[None]:
    """Switch forking for this thread. Capture turns it on for warm-up and capture; a replay needs no flag."""
    before = multi_stream_is_on()
    _thread.multi_stream = on
    try:
        yield
    finally:
        _thread.multi_stream = before


def in_side_leg() -> bool:
    """Whether this thread issues the right leg of a fork, on two streams or one after the other."""
    return bool(getattr(_thread, "side_legs", 0))


def side_leg(leg: Callable[[], R]) -> Callable[[], R]:
    """A right leg that says so while it is issued: collectives refuse to be there, whichever stream it is on."""

    def run() -> R:
        _thread.side_legs = getattr(_thread, "side_legs", 0) + 1
        try:
            return leg()
        finally:
            _thread.side_legs -= 1

    return run


class Forks:
    """A policy bound to the model's side stream. Layers call `fork`; probes override `gate`, `run_*` and `join`."""

    def __init__(self, policy: OverlapPolicy, stream: torch.cuda.Stream | None) -> None:
        self.policy = policy
        self.stream = stream
        self.ranges: Ranges = no_ranges
        self.side_first = False  # issue the right leg before the left one
        self._depth = 0
        self._held: list[Any] = []

    def fork(self, name: str, left: Callable[[], L], right: Callable[[], R], *, allowed: bool = True) -> tuple[L, R]:
        """Run both legs and return both results. `allowed` is the layer's own gate on top of the policy's flag."""
        right = side_leg(right)
        if self.ranges is not no_ranges:
            left, right = self._ranged(f"fork.{name}.main", left), self._ranged(f"fork.{name}.side", right)
        if self.stream is None or not self.gate(name, allowed):
            return left(), right()
        main = torch.cuda.current_stream(self.stream.device)
        opened = main.record_event()
        self._depth += 1
        if self.side_first:
            right_result, done = self._beside(self.stream, opened, name, right)
            left_result = self.run_left(name, left)
        else:
            left_result = self.run_left(name, left)
            right_result, done = self._beside(self.stream, opened, name, right)
        self._depth -= 1
        self.join(name, main, done)
        self._keep_alive(right_result, main)
        return left_result, right_result

    def _beside(
        self, stream: torch.cuda.Stream, opened: torch.cuda.Event, name: str, right: Callable[[], R]
    ) -> tuple[R, torch.cuda.Event]:
        """The right leg on the side stream, behind what was issued before the fork; and the event that ends it."""
        with torch.cuda.stream(stream):
            stream.wait_event(opened)
            return self.run_right(name, right), stream.record_event()

    @contextmanager
    def ranged(self, ranges: Ranges) -> Iterator[None]:
        """Name the legs of every fork met meanwhile, the serial ones too: a trace of either arm then shows them."""
        before, self.ranges = self.ranges, ranges
        try:
            yield
        finally:
            self.ranges = before

    def _ranged(self, name: str, leg: Callable[[], T]) -> Callable[[], T]:
        def run() -> T:
            with self.ranges(name):
                return leg()

        return run

    def gate(self, name: str, allowed: bool) -> bool:
        """All gates: the policy's flag, the layer's own, the thread's flag, and no torch.compile trace under way."""
        on = allowed and bool(getattr(self.policy, name))
        return on and multi_stream_is_on() and not torch.compiler.is_compiling()

    def run_left(self, name: str, leg: Callable[[], L]) -> L:
        """Issue the left leg on the current stream."""
        return leg()

    def run_right(self, name: str, leg: Callable[[], R]) -> R:
        """Issue the right leg; the side stream is current."""
        return leg()

    def join(self, name: str, main: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        """Main waits for the right leg before anything after the fork."""
        main.wait_event(done)

    def _keep_alive(self, result: Any, main: torch.cuda.Stream) -> None:
        """Bound the lifetime of what the side stream allocated and main reads.

        Its memory returns to the side stream's pool. Every right leg starts by waiting for main, so a plain fork cannot
        overwrite it early; a fork nested in a left leg can, because the outer right leg waits only for the outer
        opening. Results of nested forks are therefore held until the outermost join.
        Outside capture the tensors are also recorded on main, as a net under callers that break this order. During
        capture nothing is recorded: recorded blocks freed inside a capture stay held until it ends.
        Tensors made on main and read by the side leg need no record: the caller holds them until the join.
        """
        if self._depth:
            self._held.append(result)
        else:
            self._held.clear()
        if not torch.cuda.is_current_stream_capturing():
            for tensor in _tensors(result):
                tensor.record_stream(main)


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_cuda:
            yield result
    elif isinstance(result, tuple | list):
        for item in result:
            yield from _tensors(item)


#: Priorities of (main, side) by the option's name; less is placed first.
PRIORITIES = {"equal": (0, 0), "main": (-1, 0), "side": (0, -1)}


def side_stream(device: torch.device, favoured: str = "equal") -> torch.cuda.Stream | None:
    """The model's one side stream; None where there are no streams, which makes every fork serial."""
    return torch.cuda.Stream(device, priority=PRIORITIES[favoured][1]) if device.type == "cuda" else None


def capture_stream(device: torch.device, favoured: str = "equal") -> torch.cuda.Stream | None:
    """What main is while a step is captured: its priority goes into the graph. None for torch's own."""
    return torch.cuda.Stream(device, priority=PRIORITIES[favoured][0]) if favoured == "main" else None
