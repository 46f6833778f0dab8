"""Forks made hostile: a leg that comes late, recycled memory, swapped legs; and forks broken on purpose.

In: a policy and a stream. Out: `Forks` for a decode session that count the forks they really split. The broken ones
damage floating-point values only, never an index: a fault must show as other bits, not as a dead device.
Out of scope: judging what they change (`forks.py`, `controls.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch

from k3model.errors import K3ModelError
from k3model.policy import OverlapPolicy
from k3model.streams import Forks, side_leg

L = TypeVar("L")
R = TypeVar("R")
Late = Literal["", "left", "right"]

#: About half a millisecond at GPU clocks: longer than any leg of a decode step, so that the other is certainly ahead.
SPIN_CYCLES = 1_000_000
#: About 30 ms: the layers up to the next fork are issued in less.
HOLD_UP_CYCLES = 60_000_000
#: Bytes of the blocks that `overwrite_free_blocks` takes: the allocator's small pool by powers of two, then large ones.
CHURN_BYTES = (*(512 << power for power in range(12)), 2 << 20, 4 << 20, 12 << 20)


class ProbeForks(Forks):
    """True forks, with one leg made late by a spin kernel, and freed memory overwritten, if asked for."""

    def __init__(
        self, policy: OverlapPolicy, stream: torch.cuda.Stream | None, *, late: Late = "", churn: bool = False
    ) -> None:
        super().__init__(policy, stream)
        self.late, self.churn = late, churn
        self.split: Counter[str] = Counter()

    def run_left(self, name: str, leg: Callable[[], L]) -> L:
        """Count, delay, run; then take what main has freed while the side may still read."""
        if torch.cuda.is_current_stream_capturing() and self.stream == torch.cuda.current_stream():
            raise K3ModelError("main and side stream are the same stream: nothing would overlap")
        self.split[name] += 1
        self._delay("left")
        result = leg()
        self._overwrite()
        return result

    def run_right(self, name: str, leg: Callable[[], R]) -> R:
        """Delay, take what the side stream has freed while main may still read, run."""
        self._delay("right")
        self._overwrite()
        return leg()

    def _delay(self, leg: Late) -> None:
        if leg == self.late:
            spin()

    def _overwrite(self) -> None:
        if self.churn and self.stream is not None:
            overwrite_free_blocks(self.stream.device)


class SwappedForks(Forks):
    """Right leg first, on one thread: shows on any machine whether a right leg reads what its left leg writes."""

    def __init__(self, policy: OverlapPolicy, *, ungated: bool = False) -> None:
        super().__init__(policy, None)
        self.ungated = ungated
        self.split: Counter[str] = Counter()

    def fork(self, name: str, left: Callable[[], L], right: Callable[[], R], *, allowed: bool = True) -> tuple[L, R]:
        """Both results, made in the other order."""
        right = side_leg(right)
        if not self.gate(name, allowed or self.ungated):
            return left(), right()
        self.split[name] += 1
        right_result = right()
        return left(), right_result


class UngatedForks(ProbeForks):
    """Broken: a layer's own gate is ignored."""

    def gate(self, name: str, allowed: bool) -> bool:
        """The other gates only."""
        return super().gate(name, True)


class UnjoinedForks(ProbeForks):
    """Broken: main does not wait for the right leg of one fork. Another fork of the layer joins the stream later."""

    def __init__(self, policy: OverlapPolicy, stream: torch.cuda.Stream | None, broken: str) -> None:
        super().__init__(policy, stream)
        self.broken = broken
        self.kept: list[Any] = []

    def run_right(self, name: str, leg: Callable[[], R]) -> R:
        """Only the broken fork is late: main must be well past it when its right leg begins.

        What the leg writes is kept: were it freed, main could hold indices there by the time it is written.
        """
        if name == self.broken:
            self.kept.append(leg)
            spin()
        return leg()

    def join(self, name: str, main: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        """The other joins only."""
        if name != self.broken:
            super().join(name, main, done)


class LeakyForks(ProbeForks):
    """Broken: the right leg of one fork adds a number that its left leg writes. Serial legs are well defined."""

    def __init__(
        self, policy: OverlapPolicy, stream: torch.cuda.Stream | None, leaky: str, device: torch.device
    ) -> None:
        super().__init__(policy, stream, late="left")
        self.leaky, self.scratch = leaky, torch.zeros((), device=device)

    def fork(self, name: str, left: Callable[[], L], right: Callable[[], R], *, allowed: bool = True) -> tuple[L, R]:
        """The legs with the leak between them; swapped where there are no streams."""
        right = side_leg(right)
        if name != self.leaky:
            return super().fork(name, left, right, allowed=allowed)
        if self.stream is None and self.gate(name, allowed):
            self.split[name] += 1
            right_result = self._take(right())
            return self._write(left()), right_result
        return super().fork(name, lambda: self._write(left()), lambda: self._take(right()), allowed=allowed)

    def _write(self, result: L) -> L:
        self.scratch.copy_(_first_float(result).float().sum())
        return result

    def _take(self, result: R) -> R:
        _first_float(result).add_(self.scratch)
        return result


class UnopenedForks(ProbeForks):
    """Broken: the side stream does not wait for work before the fork. Main is held up after every join."""

    def __init__(self, policy: OverlapPolicy, device: torch.device) -> None:
        super().__init__(policy, DeafStream(device))

    def join(self, name: str, main: torch.cuda.Stream, done: torch.cuda.Event) -> None:
        """Join, then hold main up for longer than the next layers take to issue: a right leg runs before its input."""
        super().join(name, main, done)
        torch.cuda._sleep(HOLD_UP_CYCLES)


class DeafStream(torch.cuda.Stream):
    """A stream that waits for nobody."""

    def wait_event(self, event: Any) -> None:
        """No wait."""


def spin() -> None:
    """Keep the current stream busy without touching memory. Fit for capture."""
    torch.cuda._sleep(SPIN_CYCLES)


def overwrite_free_blocks(device: torch.device) -> None:
    """Take blocks of every size from the current stream's pool, fill them with NaN bytes, give them back."""
    taken = [torch.empty(size, device=device, dtype=torch.uint8) for size in CHURN_BYTES for _ in range(2)]
    for block in taken:
        block.fill_(255)


@contextmanager
def tight_memory(device: torch.device, headroom_bytes: int = 512 << 20) -> Iterator[None]:
    """Leave the allocator so little that it must recycle what it has."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    limit = torch.cuda.memory_reserved(device) + headroom_bytes
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _first_float(result: Any) -> torch.Tensor:
    found = next(_floats(result), None)
    if found is None:
        raise K3ModelError("no floating-point tensor crosses here")
    return found


def _floats(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, tuple | list):
        for item in result:
            yield from _floats(item)
