"""Waiting for one attempt: the result file first, then the executor, and a grace before anything counts as lost.

In: a live attempt. Out: the worker's last word, or why there is none. Out of scope: what follows from it (`once.py`).
"""

from __future__ import annotations

import time

from k3bench.errors import MeasureError
from k3bench.records.ledger import Attempt, Ended
from k3bench.submit.backend import Answer, Backend, InProcess, Local, SubmissionUnansweredError
from k3bench.submit.folder import JobFolder, Say
from k3bench.submit.slurm import Slurm
from k3bench.submit.spec import JobSpec


def backend_of(executor: str, ask_every_s: float) -> Backend:
    """The executor of that name."""
    if executor == "slurm":
        return Slurm(ask_every_s)
    return Local() if executor == "local" else InProcess()


class Wait:
    """Waiting for one attempt: the result file first, then the executor; a shared file system gets its grace."""

    def __init__(self, folder: JobFolder, attempt: Attempt, spec: JobSpec, say: Say, *, new: bool) -> None:
        """A `new` attempt was submitted a moment ago: the executor is asked about it only later."""
        self.folder, self.attempt, self.spec, self.say, self.new = folder, attempt, spec, say, new
        self.backend = backend_of(attempt.executor, spec.ask_seconds)
        self.gone_since: float | None = None
        self.waiting_since = time.monotonic()
        self.said = ""

    def until_over(self) -> tuple[Ended | None, Answer]:
        """The worker's last word, or None and why there is none; the ledger is then already closed."""
        look, answer = 0.02, Answer("unknown", "not asked yet")
        next_ask = time.monotonic() + self.spec.ask_seconds if self.new else 0.0
        while True:
            ended = self.folder.ended(self.attempt)
            if ended is not None:
                return ended, answer
            if time.monotonic() >= next_ask:
                answer = self._ask()
                self._tell(answer)
                if self._is_over(answer):
                    return self._retire(answer)
                pause = self.spec.grace_seconds if answer.life == "ended" else self.spec.ask_seconds
                next_ask = time.monotonic() + pause
            time.sleep(look)
            look = min(look * 1.5, self.spec.look_seconds)

    def _ask(self) -> Answer:
        """Ask the executor; an attempt whose job nobody wrote down is looked for first."""
        if self.attempt.state == "intended":
            try:
                found = self.backend.find(self.folder, self.attempt)
            except SubmissionUnansweredError as error:
                return Answer("unknown", error.what)
            if found is None and self.folder.started(self.attempt) is None:
                return Answer("ended", "its head died before it was submitted")
            if found is not None:
                self.attempt = self.folder.put(found)
        return self.backend.ask(self.folder, self.attempt)

    def _tell(self, answer: Answer) -> None:
        if answer.words != self.said and answer.life != "ended":
            self.said = answer.words
            self.say(f"{self.folder.title(self.attempt)}: {answer.words}")
        limit = self.spec.queue_limit_min
        if not answer.waiting or answer.moving:
            self.waiting_since = time.monotonic()
        elif limit is not None and time.monotonic() - self.waiting_since > 60 * limit:
            self.backend.cancel(self.folder, self.attempt)
            self.folder.close(self.attempt, "cancelled", f"did not start within {limit:g} min: {answer.words}")
            raise MeasureError(
                f"did not start within {limit:g} min and was withdrawn: {answer.words}",
                where=self.folder.title(self.attempt),
                fix="start again when the rack is free, name another rack, or raise resources.queue_minutes",
            )

    def _is_over(self, answer: Answer) -> bool:
        """Ended for longer than the grace, and no worker of this key holds the lock (or it has for too long)."""
        if answer.life != "ended":
            self.gone_since = None
            return False
        self.gone_since = self.gone_since or time.monotonic()
        return time.monotonic() - self.gone_since >= self.spec.grace_seconds

    def _retire(self, answer: Answer) -> tuple[Ended | None, Answer]:
        """With the worker's lock in hand nobody can start any more; the ledger changes before it is let go."""
        if self.folder.worker_lock_held():
            self.say(f"{self.folder.title(self.attempt)}: {answer.words}, but its worker goes on; waiting for it")
        with self.folder.worker_lock(self.spec.overlap_seconds) as got:
            ended = self.folder.ended(self.attempt)
            if ended is None and not got:
                raise MeasureError(
                    f"{answer.words}, yet its worker still runs{self._whereabouts()}",
                    where=str(self.folder.path),
                    fix="end that process, then start again",
                )
            if ended is None:
                self.folder.close(self.attempt, answer.end, answer.words)
            return ended, answer

    def _whereabouts(self) -> str:
        started = self.folder.started(self.attempt)
        return f" as process {started.process.pid} on {started.process.host}" if started else ""
