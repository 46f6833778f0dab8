"""Slurm as an executor: sbatch through submitit, and one question to the controller for all waiting heads.

In: a job folder, an attempt, a spec. Out: a job id, a life sign. Out of scope: what follows from it (`once.py`).
The job's name carries the attempt's token, so that a job is known again whatever its id: ids are reused after a
controller was wiped. "Cannot ask" is an answer of its own. Site names come from the spec as argument lists only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from k3bench.errors import K3Error
from k3bench.records.ledger import Attempt, State
from k3bench.submit.backend import Answer, SubmissionRefusedError, SubmissionUnansweredError, hand_over_pickle
from k3bench.submit.folder import JobFolder, now
from k3bench.submit.spec import JobSpec
from k3bench.submit.worker import submitit_module, worker_for

WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
LIVE = WAITING | {"RUNNING", "COMPLETING", "RESIZING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "SPECIAL_EXIT"}
#: What sbatch says when nobody listened: the job may or may not exist, so its name is looked for before the next try.
TRANSIENT = (
    "unable to contact",
    "timed out",
    "timeout",
    "connection refused",
    "temporarily",
    "try again",
    "zero bytes",
)
#: What was asked for comes last: a constraint may hold the separator.
FORMAT = "%A|%j|%T|%N|%r|%f"


@dataclass(frozen=True)
class Row:
    """One line of squeue or sacct."""

    job: str
    name: str
    state: str
    nodes: str = ""
    reason: str = ""
    constraint: str = ""


class _Queue:
    """The user's jobs as last seen: the controller gets one question an interval, however many threads wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[Row] | None = None
        self._when = float("-inf")

    def seen(self, max_age_s: float) -> list[Row] | None:
        """The queue, at most that old; None when nobody answered."""
        with self._lock:
            if time.monotonic() - self._when > max_age_s:
                self._rows = _squeue()
                self._when = time.monotonic()
            return self._rows

    def history(self, job: str) -> list[Row] | None:
        """What accounting knows about a job, one question after the other."""
        with self._lock:
            return _sacct("-j", job)


_QUEUE = _Queue()
#: submitit is not written for threads, and the environment is everybody's.
_ONE_AT_A_TIME = threading.Lock()


class Slurm:
    """Submits with submitit, asks with squeue, then sacct; without accounting squeue alone."""

    def __init__(self, ask_every_s: float = 10.0) -> None:
        self.ask_every_s = ask_every_s

    def submit(self, folder: JobFolder, attempt: Attempt, spec: JobSpec) -> Attempt:
        """One sbatch."""
        path = str(folder.path)
        if "%" in path or not path.isprintable():
            raise SubmissionRefusedError(f"Slurm would misread the folder {path!r}", fix="move the clone elsewhere")
        with _ONE_AT_A_TIME, _outside_any_job():
            try:
                python = "exec " + shlex.quote(spec.python)
                executor = submitit_module().SlurmExecutor(
                    folder.submitit_path(attempt.number), max_num_timeout=0, python=python
                )
                executor.update_parameters(
                    job_name=attempt.name,
                    time=spec.time_limit_min,
                    stderr_to_stdout=True,
                    use_srun=False,
                    wckey=None,
                    additional_parameters=spec.sbatch_options(),
                )
                job = executor.submit(worker_for(folder, attempt))
            except (RuntimeError, ValueError, OSError) as error:
                raise _refusal(str(error)) from None
        return _submitted(attempt, job.job_id)

    def find(self, folder: JobFolder, attempt: Attempt) -> Attempt | None:
        """A job of the attempt's name, alive or ended."""
        rows = _squeue("-n", attempt.name)
        if rows is None:
            raise SubmissionUnansweredError("squeue gives no answer")
        rows = rows or _sacct("--name", attempt.name, "-S", "now-30days") or []
        mine = [row for row in rows if row.name == attempt.name]
        if not mine:
            return None
        job = max(mine, key=lambda row: int(row.job)).job
        hand_over_pickle(folder.submitit_path(attempt.number), job)
        return _submitted(attempt, job)

    def ask(self, folder: JobFolder, attempt: Attempt) -> Answer:
        """By the queue as all who wait see it; a job that is not there is looked for anew, then in accounting."""
        if attempt.job is None:
            return Answer("unknown", "not yet submitted")
        for age in (self.ask_every_s, min(1.0, self.ask_every_s)):
            rows = _QUEUE.seen(age)
            if rows is None:
                return Answer("unknown", "Slurm gives no answer")
            row = _row_of(rows, attempt)
            if row is not None:
                return _answer(row, moving=_moves(rows, row))
        row = _row_of(_QUEUE.history(attempt.job), attempt)
        if row is not None:
            return _answer(row)
        asked_for = folder.cancel_mark(attempt).exists()
        return Answer("ended", f"Slurm knows no job {attempt.job}", end="cancelled" if asked_for else "lost")

    def cancel(self, folder: JobFolder, attempt: Attempt) -> None:
        """scancel, by job id and name, so that a reused id is safe."""
        if attempt.job is not None:
            _call("scancel", "--name", attempt.name, attempt.job)


def _submitted(attempt: Attempt, job: str) -> Attempt:
    return attempt.model_copy(update={"state": "submitted", "submitted_at": now(), "job": job})


def _moves(rows: list[Row], waiting: Row) -> bool:
    """Whether a job of ours runs on the rack that this one waits for: then it waits for us, and its turn will come."""
    return any(
        row.state == "RUNNING" and row.constraint == waiting.constraint and row.name.startswith("k3-") for row in rows
    )


def _answer(row: Row, *, moving: bool = False) -> Answer:
    words = f"job {row.job} {row.state}"
    if row.nodes:
        words += f" on {row.nodes}"
    if row.state in LIVE:
        waiting = row.state in WAITING
        words += f" ({row.reason})" if waiting and row.reason not in ("", "None") else ""
        return Answer("live", words, waiting=waiting, moving=moving)
    end: State = "cancelled" if row.state == "CANCELLED" else "lost"
    return Answer("ended", words, end=end)


def _row_of(rows: list[Row] | None, attempt: Attempt) -> Row | None:
    return next((row for row in rows or [] if row.job == attempt.job and row.name == attempt.name), None)


def _refusal(text: str) -> K3Error:
    if any(word in text.lower() for word in TRANSIENT):
        return SubmissionUnansweredError(f"sbatch got no answer: {text}")
    return SubmissionRefusedError(
        f"sbatch refused the job: {text}", fix="correct account, partition, limits or options in the profile or recipe"
    )


def _squeue(*selection: str) -> list[Row] | None:
    """Jobs of this user, ended ones too as long as the controller remembers them; None when it cannot be asked."""
    code, out, err = _call("squeue", "-h", "-a", "-t", "all", "-u", str(os.getuid()), "-o", FORMAT, *selection)
    if code == 0:
        return [Row(*fields) for line in out.splitlines() if len(fields := line.strip().split("|", 5)) == 6]
    return [] if "invalid job id" in err.lower() else None


def _sacct(*selection: str) -> list[Row] | None:
    """The same from accounting, newest last; None without accounting."""
    code, out, _ = _call("sacct", "-X", "-n", "-P", "-o", "JobIDRaw,JobName,State,NodeList", *selection)
    if code != 0:
        return None
    rows = [line.split("|") for line in out.splitlines() if line.count("|") == 3]
    return [Row(job, name, state.split()[0] if state else "", nodes) for job, name, state, nodes in reversed(rows)]


def _call(*command: str) -> tuple[int, str, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    """A head that itself runs inside a job must not pass that job's identity on to what it submits."""
    kept = {"SLURM_CONF", "SLURM_CLUSTERS"}
    inherited = {name: value for name, value in os.environ.items() if name.startswith("SLURM_") and name not in kept}
    for name in inherited:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(inherited)
