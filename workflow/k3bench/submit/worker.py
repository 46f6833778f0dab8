"""The job's side: check the token, say "started", call the function, say how it ended.

In: a job folder, an attempt's number and token. Out: `started.json`, `ended.json`. Out of scope: waiting, resubmitting.
Results are never read from submitit's pickles: `ended.json` is plain data and carries the token.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.errors import K3Error, MeasureError
from k3bench.records.base import canonical_json
from k3bench.records.fingerprint import SLURM_IDENTITY
from k3bench.records.ledger import Attempt, Ended, ErrorNote, Started
from k3bench.store import write_record
from k3bench.submit.folder import JobFolder, now
from k3bench.submit.process import me

#: A worker of an earlier attempt that has lost its job ends at its next `raise_if_over`; a new one waits this long.
PATIENCE_S = 120.0
#: A ledger older than our own submission is a shared file system's old copy.
STALE_LEDGER_S = 10.0


class AttemptOverError(K3Error):
    """This attempt must end now, without blame: its time limit is near, or another attempt has taken over."""


@dataclass
class _Active:
    folder: JobFolder
    number: int
    token: str
    time_is_short: bool = False


_active: _Active | None = None


def raise_if_over() -> None:
    """Call between points: raises `AttemptOverError` when this attempt must not go on. Does nothing outside a job."""
    if _active is None:
        return
    if _active.time_is_short:
        raise AttemptOverError("the time limit is near", fix="the next attempt measures the rest")
    if not is_current(_active.folder, _active.number, _active.token):
        raise AttemptOverError(f"attempt {_active.number} is no longer the current one")


def is_current(folder: JobFolder, number: int, token: str) -> bool:
    """True when the ledger's live attempt is the one with this token."""
    end = time.monotonic() + STALE_LEDGER_S
    last = folder.ledger().last
    while (last is None or last.number < number) and time.monotonic() < end:
        time.sleep(0.5)
        last = folder.ledger().last
    return last is not None and last.token == token and last.live


class Worker:
    """What submitit pickles: three plain values. The function is named in the request and imported here."""

    def __init__(self, folder: str, number: int, token: str, *, own_process: bool) -> None:
        self.folder, self.number, self.token, self.own_process = folder, number, token, own_process

    def __call__(self) -> None:
        """Run the attempt, once, if it is still the current one."""
        folder = JobFolder(Path(self.folder))
        if self.own_process:
            self._guard_signals()
        with folder.worker_lock(PATIENCE_S) as got:
            refusal = self._refusal(folder) if got else "an earlier worker of this job is still running"
            if refusal:
                print(f"k3bench: nothing done: {refusal}", file=sys.stderr, flush=True)
            else:
                self._run(folder)

    def _refusal(self, folder: JobFolder) -> str:
        if not is_current(folder, self.number, self.token):
            return f"attempt {self.number} is no longer the current one"
        if (folder.attempt_path(self.number) / "started.json").exists():
            return f"attempt {self.number} was started before; the head submits a new one"
        return ""

    def _run(self, folder: JobFolder) -> None:
        global _active
        slurm = {name: os.environ[name] for name in SLURM_IDENTITY if name in os.environ}
        started = Started(number=self.number, token=self.token, process=me(), started_at=now(), slurm=slurm)
        write_record(folder.attempt_path(self.number) / "started.json", started)
        _active = _Active(folder, self.number, self.token)
        try:
            ended = self._call(folder)
        finally:
            _active = None
        if is_current(folder, self.number, self.token):
            write_record(folder.attempt_path(self.number) / "ended.json", ended)

    def _call(self, folder: JobFolder) -> Ended:
        try:
            request = folder.request(self.number)
            if self.own_process and "SLURM_JOB_ID" not in os.environ:
                _show_devices(request.visible_devices)
            module, _, name = request.function.partition(":")
            result = getattr(importlib.import_module(module), name)(**request.arguments, attempt=self.number)
            canonical_json(result)  # refuses what is not plain data, here where the function can be blamed
            return Ended(number=self.number, token=self.token, state="finished", ended_at=now(), result=result)
        except AttemptOverError as over:
            return self._failed("over", ErrorNote(kind="AttemptOverError", what=over.what, fix=over.fix))
        except K3Error as error:
            note = ErrorNote(kind=type(error).__name__, what=error.what, where=error.where, fix=error.fix)
            return self._failed("failed", note)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            return self._failed("failed", ErrorNote(kind=type(error).__name__, what=str(error)))

    def _failed(self, state: Any, note: ErrorNote) -> Ended:
        return Ended(number=self.number, token=self.token, state=state, ended_at=now(), error=note)

    def _guard_signals(self) -> None:
        """submitit swallows SIGTERM, so that a cancelled job went on and stored bad points: end at once instead."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        signal.signal(signal.SIGUSR2, _time_is_short)


def _time_is_short(*_: object) -> None:
    if _active is not None:
        _active.time_is_short = True


def _show_devices(visible: str | None) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible


def submitit_module() -> Any:
    """submitit, imported where it is used: `here` runs without it."""
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise MeasureError(
            f"this executor needs submitit: {error}", fix="install submitit, or run with --here"
        ) from None


def worker_for(folder: JobFolder, attempt: Attempt) -> Worker:
    """The callable of an attempt."""
    own = attempt.executor in ("local", "slurm")
    return Worker(str(folder.path), attempt.number, attempt.token, own_process=own)
