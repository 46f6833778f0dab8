"""Continuous batching over one model: prompts in, greedy tokens out as they are chosen, rows shared by all who ask.

A thread owns the model. Each turn it takes waiting prompts into free rows (prefilled apart, then they join) and steps
the smallest captured batch that covers the rows in use. Out of scope: HTTP and text (`server.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from k3model.cache import Rows
from k3model.capture import PREFILL_CHUNK, Decode
from k3model.decode import K3
from k3model.errors import CapacityError
from k3model.policy import OverlapPolicy

#: More waiting prompts than this are refused: a queue without an end hides an overload.
MAX_WAITING = 4096


@dataclass
class Job:
    """One prompt on its way. `emit` is called in the scheduler's thread with the tokens since its last call."""

    prompt: Sequence[int]
    max_tokens: int
    emit: Emit
    stream_interval: int = 1
    stop_token: int | None = None
    chosen: int = 0
    waiting: list[int] = field(default_factory=list)
    cancelled: bool = False

    def take(self, token: int) -> bool:
        """One more token; emits the first alone, then every `stream_interval`, and what is left at the end."""
        self.chosen += 1
        self.waiting.append(token)
        over = self.chosen >= self.max_tokens or token == self.stop_token
        if over or self.chosen == 1 or len(self.waiting) >= self.stream_interval:
            reason = None if not over else "stop" if token == self.stop_token else "length"
            self.emit(Emitted(tuple(self.waiting), reason))
            self.waiting.clear()
        return over


@dataclass(frozen=True)
class Emitted:
    """Tokens chosen since the last emission; `finish_reason` with the last ones; `error` instead of any."""

    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: str = ""


Emit = Callable[[Emitted], None]


@dataclass
class Counters:
    """Totals since the start."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    cancelled: int = 0


class Scheduler:
    """`batches` are the batch sizes to capture; the largest is the number of rows."""

    def __init__(self, model: K3, policy: OverlapPolicy, batches: Sequence[int]) -> None:
        self.model, self.counters = model, Counters()
        self._sessions = {size: _captured(model, policy, size) for size in sorted(set(batches))}
        self._rows: list[Job | None] = [None] * max(self._sessions)
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="k3model-scheduler", daemon=True)

    # --- called from other threads
    def start(self) -> None:
        """Begin to decode."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step under way; jobs that are not finished hear of it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a prompt. Raises `CapacityError` for what no row can hold, or when too many wait."""
        need = len(job.prompt) + job.max_tokens
        if not job.prompt or job.max_tokens < 1:
            raise CapacityError("a request needs at least one prompt token and one token to choose")
        self.model.caches.check(1, need)
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                raise CapacityError(f"{MAX_WAITING} requests are waiting already", fix="send fewer at a time")
            self._waiting.append(job)
            self._changed.notify()

    @property
    def running(self) -> int:
        """Rows in use."""
        return sum(job is not None for job in self._rows)

    @property
    def waiting(self) -> int:
        """Prompts without a row."""
        return len(self._waiting)

    # --- the scheduler's thread
    def _run(self) -> None:
        try:
            while self._await_work():
                self._admit()
                self._drop_cancelled()
                if any(self._rows):
                    self._step()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        self._end_all(self.failure or "the server is stopping")

    def _await_work(self) -> bool:
        """Blocks while there is nothing to do; False once it is time to end."""
        with self._changed:
            while not (self._stopping or self._waiting or any(self._rows)):
                self._changed.wait()
            return not self._stopping

    def _admit(self) -> None:
        """Waiting prompts of one length, into the lowest free rows: running rows wait for one prefill at most."""
        taken: dict[int, Job] = {}
        free = deque(row for row, job in enumerate(self._rows) if job is None)
        while free and self._waiting:
            job = self._waiting[0]
            if taken and len(job.prompt) != len(next(iter(taken.values())).prompt):
                break
            self._waiting.popleft()
            if job.cancelled:
                self.counters.cancelled += 1
            else:
                taken[free.popleft()] = job
        if not taken:
            return
        for row, job in taken.items():
            self._rows[row] = job
        for (row, job), token in zip(taken.items(), self._prefill(taken), strict=True):
            self.counters.prompt_tokens += len(job.prompt)
            self._give(row, job, token)

    @torch.no_grad()
    def _prefill(self, taken: dict[int, Job]) -> list[int]:
        """The rows as after their prompts, all of one length; returns each one's first token."""
        caches, device = self.model.caches, self.model.device
        index = torch.tensor(list(taken), device=device)
        for pool in (caches.conv, caches.state):
            pool.index_fill_(1, index, 0)
        page_tokens = caches.config.page_tokens
        rows = Rows(caches.slots[index], caches.positions[index], caches.table[index], False, page_tokens)
        forks = next(iter(self._sessions.values())).forks
        prompts = torch.tensor([list(job.prompt) for job in taken.values()], device=device)
        start, logits = 0, None
        for part in prompts.split(PREFILL_CHUNK, dim=1):
            logits = self.model.prefill(part, rows, start, forks)
            start += part.shape[1]
        assert logits is not None
        tokens = logits.argmax(-1)
        caches.tokens[index], caches.positions[index] = tokens, torch.full_like(tokens, start)
        return [int(token) for token in tokens.tolist()]

    def _step(self) -> None:
        """One token for every row in use. Rows between them decode nothing worth keeping, parked at position 0."""
        used = [row for row, job in enumerate(self._rows) if job is not None]
        size = next(size for size in self._sessions if size > used[-1])
        caches = self.model.caches
        for row in set(range(size)) - set(used):
            caches.positions[row] = 0
        self._sessions[size].step()
        self.counters.steps += 1
        tokens = caches.tokens[:size].tolist()
        for row in used:
            job = self._rows[row]
            if job is not None:
                self._give(row, job, tokens[row])

    def _give(self, row: int, job: Job, token: int) -> None:
        self.counters.generated_tokens += 1
        if job.take(token):
            self._rows[row] = None
            self.counters.finished += 1

    def _drop_cancelled(self) -> None:
        for row, job in enumerate(self._rows):
            if job is not None and job.cancelled:
                self._rows[row] = None
                self.counters.cancelled += 1

    def _end_all(self, reason: str) -> None:
        with self._changed:
            left = [*(job for job in self._rows if job is not None), *self._waiting]
            self._rows = [None] * len(self._rows)
            self._waiting.clear()
        for job in left:
            job.emit(Emitted(error=reason))


def _captured(model: K3, policy: OverlapPolicy, size: int) -> Decode:
    """A session of one batch size, captured where there is CUDA, on empty rows."""
    session = Decode(model, policy, size)
    session.clear()
    session.capture()
    return session
