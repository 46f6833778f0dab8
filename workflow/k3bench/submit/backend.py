"""What an executor must be able to say about an attempt, and the three that run on this host.

In: a job folder, an attempt. Out: a submission, a life sign. Out of scope: deciding what follows from it (`once.py`).
submitit's own local job says "dead" when another process asks; here a worker lives as long as it holds its lock, and
before it has started, as long as its controller (pid and start time) lives.
"""

from __future__ import annotations

import atexit
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from k3bench.errors import K3Error
from k3bench.records.ledger import Attempt, Process, State
from k3bench.submit import process
from k3bench.submit.folder import JobFolder, now
from k3bench.submit.spec import JobSpec
from k3bench.submit.worker import submitit_module, worker_for


@dataclass(frozen=True)
class Answer:
    """`unknown` means that nobody could be asked: it changes nothing. `moving`: what it waits for is used by us."""

    life: Literal["live", "ended", "unknown"]
    words: str
    end: State = "lost"
    waiting: bool = False
    moving: bool = False


class SubmissionRefusedError(K3Error):
    """The executor said no, and would say it again."""


class SubmissionUnansweredError(K3Error):
    """Nobody answered; whether the job exists is to be found out."""


class Backend(Protocol):
    """One executor."""

    def submit(self, folder: JobFolder, attempt: Attempt, spec: JobSpec) -> Attempt:
        """Hand the attempt over; the answer knows its job. Raises `SubmissionRefusedError`."""

    def find(self, folder: JobFolder, attempt: Attempt) -> Attempt | None:
        """The job of an attempt whose head died before it could write it down."""

    def ask(self, folder: JobFolder, attempt: Attempt) -> Answer:
        """Does it live?"""

    def cancel(self, folder: JobFolder, attempt: Attempt) -> None:
        """End it."""


#: submitit's children are reaped when this process starts or ends others; dropping them would warn instead
_children: list[Any] = []
atexit.register(_children.clear)  # while modules are still whole: at the very end submitit would stumble over its own


class InProcess:
    """`here` calls the worker in this process; `debug` does the same through submitit's debug executor."""

    def submit(self, folder: JobFolder, attempt: Attempt, spec: JobSpec) -> Attempt:
        """Run to the end, then return."""
        here = folder.put(attempt.model_copy(update={"state": "submitted", "process": process.me()}))
        worker = worker_for(folder, attempt)
        if attempt.executor == "here":
            worker()
        else:
            submitit_module().DebugExecutor(folder.submitit_path(attempt.number)).submit(worker).results()
        return here

    def find(self, folder: JobFolder, attempt: Attempt) -> Attempt | None:
        """There is no job apart from the head."""
        return None

    def ask(self, folder: JobFolder, attempt: Attempt) -> Answer:
        """A worker of this kind lives in the process that submitted it."""
        return _ask_here(folder, attempt)

    def cancel(self, folder: JobFolder, attempt: Attempt) -> None:
        """End the process that runs it."""
        _terminate(folder, attempt)


class Local:
    """submitit's local executor: the job runs beside this process and outlives it."""

    def submit(self, folder: JobFolder, attempt: Attempt, spec: JobSpec) -> Attempt:
        """Start the job's controller."""
        try:
            executor = submitit_module().LocalExecutor(folder.submitit_path(attempt.number))
            executor.update_parameters(
                timeout_min=spec.time_limit_min, signal_delay_s=spec.warn_seconds, stderr_to_stdout=True
            )
            job = executor.submit(worker_for(folder, attempt))
        except OSError as error:
            raise SubmissionRefusedError(f"the job's process could not be started: {error}") from None
        _children.append(job)
        return _submitted(attempt, process.identify(int(job.job_id)))

    def find(self, folder: JobFolder, attempt: Attempt) -> Attempt | None:
        """The controller has the attempt's own folder on its command line."""
        path = folder.submitit_path(attempt.number)
        pid = process.find_by_arguments("submitit.local._local", str(path))
        if pid is None:
            return None
        hand_over_pickle(path, str(pid))
        return _submitted(attempt, process.identify(pid))

    def ask(self, folder: JobFolder, attempt: Attempt) -> Answer:
        """By lock and process, never by submitit."""
        return _ask_here(folder, attempt)

    def cancel(self, folder: JobFolder, attempt: Attempt) -> None:
        """End the worker; its controller follows."""
        _terminate(folder, attempt)


def _submitted(attempt: Attempt, controller: Process | None) -> Attempt:
    return attempt.model_copy(update={"state": "submitted", "submitted_at": now(), "process": controller})


def _ask_here(folder: JobFolder, attempt: Attempt) -> Answer:
    started = folder.started(attempt)
    if started is not None:
        if folder.worker_lock_held():
            return Answer("live", f"running as process {started.process.pid}")
        return Answer("ended", f"process {started.process.pid} ended without a result", end=_end(folder, attempt))
    if attempt.process is not None and process.lives(attempt.process):
        return Answer("live", f"starting as process {attempt.process.pid}", waiting=True)
    tail = folder.log_tail(attempt)
    return Answer("ended", f"never started{': ' + tail if tail else ''}", end=_end(folder, attempt))


def _end(folder: JobFolder, attempt: Attempt) -> State:
    return "cancelled" if folder.cancel_mark(attempt).exists() else "lost"


def _terminate(folder: JobFolder, attempt: Attempt) -> None:
    started = folder.started(attempt)
    for target in (started.process if started else None, attempt.process):
        if target is not None and process.lives(target):
            os.kill(target.pid, signal.SIGTERM)


def hand_over_pickle(submitit_folder: Path, job: str) -> None:
    """Finish what a dead head began: submitit renames the pickle only after it knows the job's id."""
    for pickle in submitit_folder.glob("*.pkl"):
        if "_" not in pickle.name:
            pickle.rename(submitit_folder / f"{job}_submitted.pkl")
