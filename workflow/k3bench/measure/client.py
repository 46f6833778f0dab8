"""The load client: a target, prompts and a concurrency in, one record a request out. A closed loop on one event loop.

Each worker sends its own prompts one after the other, so both arms of a pair send the same prompts in the same places.
Above concurrency 1 a worker's first and last request are `ramp`: they hold the load while counted ones start and end.
Out of scope: judging requests (`k3bench.validity`), numbers (`k3bench.metrics`), servers.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvloop

from k3bench.records.request import Phase, Request
from k3bench.serving.prompts import Prompt
from k3bench.serving.stream import Ask, Recording, Target, not_sent, record, stream_request

#: After one of these the server is gone or stuck: the worker stops instead of waiting a limit per request.
GIVE_UP_AFTER = ("refused", "no_answer", "timeout")
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadResult:
    """Every planned request in order of worker and turn, and what the client itself took for them."""

    #: Not in the repr: asyncio makes one of the task's result, twice, while it puts the signal handler back.
    requests: tuple[Request, ...] = field(repr=False)
    wall_s: float
    client_cpu_s: float

    @property
    def cpu_share(self) -> float:
        """Client CPU over wall time; near 1 the client is what is measured."""
        return self.client_cpu_s / self.wall_s if self.wall_s else 0.0

    @property
    def chunks_per_s(self) -> float:
        """Content chunks read per second of the whole load."""
        return sum(len(r.chunk_ns) for r in self.requests) / self.wall_s if self.wall_s else 0.0


def turns(concurrency: int, counted: int) -> int:
    """Requests a worker sends for `counted` counted ones: two more where there is a ramp."""
    return counted + (2 if concurrency > 1 else 0)


def plan_load(target: Target, prompts: Sequence[Prompt], *, concurrency: int, osl_tokens: int) -> list[list[Ask]]:
    """Prompts dealt out to workers, bodies made ready. `len(prompts)` is turns x concurrency."""
    last = len(prompts) // concurrency - 1

    def phase(turn: int) -> Phase:
        return "ramp" if concurrency > 1 and turn in (0, last) else "load"

    return [
        [
            Ask(worker, turn, phase(turn), prompt, osl_tokens, target.body(prompt, osl_tokens))
            for turn, prompt in enumerate(prompts[worker::concurrency])
        ]
        for worker in range(concurrency)
    ]


def run_load(target: Target, plan: Sequence[Sequence[Ask]], *, told: Told | None = None) -> LoadResult:
    """Run the plan to its end. `told(done, planned)` is called after each request, never inside one.

    Ends within turns x `target.limit_s`; after a dead or stuck server within one limit.
    """
    with _no_garbage_collection(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(target, plan, told))


async def _run(target: Target, plan: Sequence[Sequence[Ask]], told: Told | None) -> LoadResult:
    planned, done = sum(map(len, plan)), 0

    async def worker(asks: Sequence[Ask]) -> list[Recording]:
        nonlocal done
        kept: list[Recording] = []
        for ask in asks:
            kept.append(await stream_request(session, target, ask, epoch_ns))
            # Streams that step together end together: those that can be read are stamped before the next is sent.
            await asyncio.sleep(0)
            done += 1
            if told is not None:
                told(done, planned)
            error = kept[-1].error
            if error is not None and error.kind in GIVE_UP_AFTER:
                now_ns = time.perf_counter_ns() - epoch_ns
                kept += [not_sent(now_ns, f"given up after {error.kind}") for _ in asks[len(kept) :]]
                break
        return kept

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        # No request may depend on the one before it.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=1 << 20,
    ) as session:
        epoch_ns, cpu = time.perf_counter_ns(), time.process_time()
        found = await _all([worker(asks) for asks in plan])
        wall_s, cpu_s = (time.perf_counter_ns() - epoch_ns) / 1e9, time.process_time() - cpu
    pairs = ((ask, r) for asks, kept in zip(plan, found, strict=True) for ask, r in zip(asks, kept, strict=True))
    return LoadResult(tuple(record(ask, r) for ask, r in pairs), wall_s, cpu_s)


async def _all(workers: list[Coroutine[Any, Any, list[Recording]]]) -> list[list[Recording]]:
    """All workers' recordings; a bug in one stops the others instead of leaving them behind."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(w) for w in workers]
    return [task.result() for task in tasks]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection inside a load would be a stall in the server's numbers."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def progress(title: str) -> Told | None:
    """A bar on a terminal where rich is installed; nothing in a log."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    bar = Progress(console=console, transient=True, auto_refresh=False)
    task = bar.add_task(title, total=None)

    def told(done: int, planned: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=planned, refresh=True)
        if done == planned:
            bar.stop()

    return told
