"""The one owner of file names under `.k3/jobs/<key>/`, and of the locks there.

In: a jobs folder and a key. Out: ledger, worker records, locks. Out of scope: when to submit or to give up.

    ledger.json   every attempt, written before and after each step
    lock          held by the one head that waits for this key
    worker.lock   held by the worker for as long as it runs; the kernel lets go of it however the worker dies
    attempts/<n>/ request.json, started.json, ended.json, cancelled, submitit/
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from k3bench.errors import RecordError, StoreError
from k3bench.records.base import Record
from k3bench.records.ledger import Attempt, Ended, Ledger, Request, Started, State
from k3bench.store import read_record, write_record

R = TypeVar("R", bound=Record)
Say = Callable[[str], None]


def now() -> str:
    """This host's clock, for people to read: no decision is taken from it, because hosts' clocks differ."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class JobFolder:
    """Everything of one key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def key(self) -> str:
        """The folder is named by it."""
        return self.path.name

    def ledger(self) -> Ledger:
        """The ledger on disk, or an empty one."""
        file = self.path / "ledger.json"
        return read_record(file, Ledger) if file.exists() else Ledger(key=self.key)

    def write_ledger(self, ledger: Ledger) -> None:
        """Replace the ledger, durably."""
        write_record(self.path / "ledger.json", ledger)

    def put(self, attempt: Attempt) -> Attempt:
        """Write one attempt into the ledger."""
        self.write_ledger(self.ledger().with_attempt(attempt))
        return attempt

    def close(self, attempt: Attempt, state: State, reason: str) -> Attempt:
        """Write down how an attempt ended."""
        update = {"state": state, "reason": reason, "ended_at": attempt.ended_at or now()}
        return self.put(attempt.model_copy(update=update))

    def title(self, attempt: Attempt) -> str:
        """How messages name an attempt."""
        return f"{self.key[:16]} attempt {attempt.number}" + (f" (job {attempt.job})" if attempt.job else "")

    def attempt_path(self, number: int) -> Path:
        """The folder of one attempt."""
        return self.path / "attempts" / str(number)

    def submitit_path(self, number: int) -> Path:
        """Logs and pickles of one attempt; its own folder, so that a reused job id finds nothing."""
        return self.attempt_path(number) / "submitit"

    def log_of(self, attempt: Attempt) -> Path:
        """Where the worker's output goes, as far as it is known."""
        job = attempt.job or (str(attempt.process.pid) if attempt.process else None)
        folder = self.submitit_path(attempt.number)
        return folder / f"{job}_0_log.out" if job and attempt.executor in ("local", "slurm") else folder

    def log_tail(self, attempt: Attempt) -> str:
        """The last line a worker printed; empty when there is none."""
        try:
            with self.log_of(attempt).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def request(self, number: int) -> Request:
        """What the worker shall call."""
        return read_record(self.attempt_path(number) / "request.json", Request)

    def started(self, attempt: Attempt) -> Started | None:
        """The worker's first word, if it carries this attempt's token."""
        found = self._worker_record(attempt, "started.json", Started)
        return found if found is not None and found.token == attempt.token else None

    def ended(self, attempt: Attempt) -> Ended | None:
        """The worker's last word, if it carries this attempt's token."""
        found = self._worker_record(attempt, "ended.json", Ended)
        return found if found is not None and found.token == attempt.token else None

    def _worker_record(self, attempt: Attempt, name: str, kind: type[R]) -> R | None:
        file = self.attempt_path(attempt.number) / name
        try:
            return read_record(file, kind) if file.exists() else None
        except (RecordError, StoreError):
            return None  # written by something that is not our worker: as good as absent

    def cancel_mark(self, attempt: Attempt) -> Path:
        """Exists when a person asked for this attempt to end."""
        return self.attempt_path(attempt.number) / "cancelled"

    @contextlib.contextmanager
    def head_lock(self, say: Say, queues: Callable[[], None]) -> Iterator[None]:
        """Only one head waits for a key; another calls `queues`, waits here and then finds the result."""
        descriptor = _open_lock(self.path / "lock")
        try:
            if not _lock(descriptor, self.path):
                say("another process waits for this job already; queueing behind it")
                queues()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def head_lock_if_free(self) -> Iterator[bool]:
        """Whether no head waits for this key; none can begin to while the context lasts."""
        descriptor = _open_lock(self.path / "lock")
        try:
            yield _lock(descriptor, self.path)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def worker_lock(self, patience_s: float = 0.0) -> Iterator[bool]:
        """Try to become, or to exclude, this key's worker. Yields whether it was got."""
        descriptor = _open_lock(self.path / "worker.lock")
        _OPEN_LOCKS.add(descriptor)
        try:
            end = time.monotonic() + patience_s
            while not (got := _lock(descriptor, self.path)) and time.monotonic() < end:
                time.sleep(0.2)
            yield got
        finally:
            _OPEN_LOCKS.discard(descriptor)
            os.close(descriptor)

    def worker_lock_held(self) -> bool:
        """True while some worker of this key runs."""
        with self.worker_lock() as got:
            return not got


_OPEN_LOCKS: set[int] = set()


def _forget_locks() -> None:
    """A forked child must not keep the lock of a worker that died."""
    for descriptor in _OPEN_LOCKS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _OPEN_LOCKS.clear()


os.register_at_fork(after_in_child=_forget_locks)


def _open_lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(
            f"cannot open the job's lock: {error.strerror}", where=str(path), fix="make the jobs folder writable"
        ) from None


def _lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"this file system has no locks ({error.strerror}), so a job could run twice",
            where=str(folder),
            fix="put the jobs folder on a file system with flock (NFS 4, Lustre mounted with -o flock, local disk)",
        ) from None
    return True
