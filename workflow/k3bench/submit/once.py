"""Exactly once: a finished key returns its result, a live job is adopted, only otherwise is one submitted.

In: key, function, plain arguments, `JobSpec`. Out: `Outcome`, or the function's own error. Out of scope: executors.
Whoever calls it and however often, whatever was killed in between: the ledger, the token and two locks decide.
"""

from __future__ import annotations

import inspect
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from k3bench import errors
from k3bench.errors import K3Error, MeasureError
from k3bench.records.base import NAME_PATTERN, canonical_json
from k3bench.records.ledger import Attempt, Ledger, Request
from k3bench.store import write_record
from k3bench.submit.backend import Backend, SubmissionRefusedError, SubmissionUnansweredError
from k3bench.submit.folder import JobFolder, Say, now
from k3bench.submit.spec import JobSpec
from k3bench.submit.wait import Wait, backend_of

#: Arguments that tell jobs of a campaign apart.
_ABOUT = ("pair", "observation", "allocation", "arm")
#: How long an sbatch that got no answer is tried again.
UNANSWERED_S = 600.0


@dataclass(frozen=True)
class Outcome:
    """`how`: `kept` (finished before), `adopted` (was running), `submitted`. `lost`: this call's lost attempts."""

    result: dict[str, Any]
    attempt: Attempt
    how: Literal["kept", "adopted", "submitted"]
    lost: int = 0


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _always(result: dict[str, Any]) -> bool:
    return True


def _nothing() -> None:
    pass


def run_once(
    key: str,
    function: Callable[..., Mapping[str, Any]],
    arguments: Mapping[str, Any],
    *,
    jobs: Path,
    spec: JobSpec,
    say: Say = _to_stderr,
    keep: Callable[[dict[str, Any]], bool] = _always,
    first_number: int = 1,
    waits: Callable[[], None] = _nothing,
) -> Outcome:
    """Call `function(**arguments, attempt=n)` exactly once for `key`, and return what it returned.

    `keep` says whether a finished result still holds (its files are there); if not, a new attempt is made.
    `first_number` is the lowest attempt number not yet used, for a ledger that was lost while results stayed.
    `waits` is called when there is nothing left to do but wait: the job is in the queue, or another head's business.
    Raises the `K3Error` the function raised, or `MeasureError` (cancelled, lost too often, never started).
    """
    folder = _folder_of(key, jobs)
    ended_before = frozenset(attempt.number for attempt in folder.ledger().attempts if not attempt.live)
    call = _Call(folder, _name_of(function), dict(arguments), spec, say, keep, first_number, ended_before, waits)
    with folder.head_lock(say, waits):
        return call.run()


def read_ledger(key: str, *, jobs: Path) -> Ledger:
    """All attempts of a key, for people who want to see."""
    return _folder_of(key, jobs).ledger()


def look(key: str, *, jobs: Path) -> tuple[Attempt | None, str]:
    """The newest attempt of a key, and how it is: asked of its executor while it lives, read from the ledger after."""
    folder = _folder_of(key, jobs)
    last = folder.ledger().last
    if last is None or not last.live:
        return last, last.reason if last else ""
    ended = folder.ended(last)
    if ended is not None:
        return last, f"{ended.state}, waiting for its head"
    return last, backend_of(last.executor, 10.0).ask(folder, last).words


def live_jobs(root: Path, *, jobs: Path) -> dict[str, str]:
    """Key of every live job whose arguments name this campaign's folder -> what it does, for people to read."""
    found = {}
    for path in sorted(Path(jobs).glob("*/ledger.json")):
        folder = JobFolder(path.parent.absolute())
        last = folder.ledger().last
        if last is not None and last.live:
            request = folder.request(last.number)
            if request.arguments.get("root") == str(root.absolute()):
                about = [str(request.arguments[n]) for n in _ABOUT if n in request.arguments]
                found[folder.key] = f"{request.function.rpartition(':')[2]} {'/'.join(about)}"
    return found


def cancel(key: str, *, jobs: Path) -> Attempt | None:
    """End a key's live attempt as a person's decision: it is not resubmitted. Returns it, or None when none is live."""
    folder = _folder_of(key, jobs)
    last = folder.ledger().last
    if last is None or not last.live:
        return None
    folder.cancel_mark(last).touch()
    backend_of(last.executor, 10.0).cancel(folder, last)
    with folder.head_lock_if_free() as nobody_waits:
        return folder.close(last, "cancelled", "cancelled by its user") if nobody_waits else last


def _folder_of(key: str, jobs: Path) -> JobFolder:
    if not re.fullmatch(NAME_PATTERN.strip("^$"), key) or len(key) > 120:
        raise MeasureError(f"{key!r} cannot name a job", fix="use letters, digits, dots, dashes, underscores")
    return JobFolder(Path(jobs).expanduser().absolute() / key)


def _name_of(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier() or not inspect.isfunction(function):
        raise MeasureError(
            f"a job calls a function by its import path; {name or function!r} has none",
            fix="define it at the top of an installed module",
        )
    return f"{module}:{name}"


@dataclass
class _Call:
    folder: JobFolder
    function: str
    arguments: dict[str, Any]
    spec: JobSpec
    say: Say
    keep: Callable[[dict[str, Any]], bool]
    first_number: int
    ended_before: frozenset[int]
    waits: Callable[[], None]

    def run(self) -> Outcome:
        how: Literal["adopted", "submitted"] = "adopted"
        while True:
            kept = self._kept()
            if kept is not None:
                return kept
            attempt = self.folder.ledger().last
            if attempt is None or not attempt.live:
                self._give_up_if_due()
                attempt, how = self._begin(), "submitted"
            outcome = self._finish(attempt, how)
            if outcome is not None:
                return outcome

    def _kept(self) -> Outcome | None:
        """A finished attempt whose result still holds; a lost one whose result came late counts as finished."""
        for attempt in reversed(self.folder.ledger().attempts):
            ended = self.folder.ended(attempt) if attempt.state in ("finished", "lost") else None
            if ended is None or ended.state != "finished" or ended.result is None:
                continue
            if self.keep(ended.result):
                self._end_successor(attempt)
                return Outcome(ended.result, self.folder.close(attempt, "finished", attempt.reason), "kept")
            self.folder.close(attempt, "voided", "its result no longer holds: files are missing or changed")
            self.say(f"{self.folder.title(attempt)}: had finished, but its files are gone: measuring again")
        return None

    def _end_successor(self, kept: Attempt) -> None:
        """The result of an attempt given up for lost came after all: what was submitted in its place must end."""
        last = self.folder.ledger().last
        if last is not None and last.live and last.number != kept.number:
            self.folder.close(last, "voided", f"attempt {kept.number} had finished after all")
            backend_of(last.executor, self.spec.ask_seconds).cancel(self.folder, last)

    def _give_up_if_due(self) -> None:
        """Endings that came after this call began are this call's business, whoever saw them first."""
        mine = [a for a in self.folder.ledger().attempts if not a.live and a.number not in self.ended_before]
        last = mine[-1] if mine else None
        if last is not None and last.state in ("failed", "refused"):
            raise self._error_of(last)
        if last is not None and last.state == "cancelled":
            raise MeasureError(
                f"{self.folder.title(last)} was cancelled, so nothing is submitted again",
                where=last.reason,
                fix="start again when the block shall be measured after all",
            )
        lost = [a for a in mine if a.state == "lost"]
        if last is not None and len(lost) >= self.spec.attempts:
            raise MeasureError(
                f"lost {len(lost)} attempts without a result; the last: {last.reason}",
                where=str(self.folder.log_of(last)),
                fix="read the log; start again to try once more",
            )

    def _begin(self) -> Attempt:
        attempts = self.folder.ledger().attempts
        number = max([self.first_number, *(a.number + 1 for a in attempts)])
        token = secrets.token_hex(16)
        attempt = Attempt(
            number=number,
            token=token,
            executor=self.spec.executor,
            state="intended",
            name=f"k3-{self.folder.key[:16]}-{token[:8]}",
            time_limit_min=self.spec.time_limit_min,
            intended_at=now(),
        )
        self._write_request(attempt)
        return self._submit(self.folder.put(attempt))

    def _write_request(self, attempt: Attempt) -> None:
        try:
            canonical_json(self.arguments)
        except (TypeError, ValueError) as error:
            raise MeasureError(f"a job's arguments must be plain JSON values: {error}", where=self.function) from None
        request = Request(
            number=attempt.number,
            token=attempt.token,
            function=self.function,
            arguments=self.arguments,
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )
        write_record(self.folder.attempt_path(attempt.number) / "request.json", request)

    def _submit(self, attempt: Attempt) -> Attempt:
        """Submit; when nobody answers, look for the job before trying again."""
        backend = backend_of(attempt.executor, self.spec.ask_seconds)
        end = time.monotonic() + UNANSWERED_S
        while True:
            try:
                submitted = self.folder.put(backend.submit(self.folder, attempt, self.spec))
                self.say(f"{self.folder.title(submitted)}: submitted")
                return submitted
            except SubmissionUnansweredError as error:
                if time.monotonic() > end:
                    self.folder.close(attempt, "lost", str(error))
                    raise MeasureError(error.what, where=self.folder.title(attempt), fix="is the cluster up?") from None
                self.say(f"{self.folder.title(attempt)}: {error.what}; trying again")
                found = self._find_patiently(backend, attempt, end)
                if found is not None:
                    return self.folder.put(found)
            except SubmissionRefusedError as error:
                self.folder.close(attempt, "refused", error.what)
                raise MeasureError(error.what, where=self.folder.title(attempt), fix=error.fix) from None
            except BaseException as error:
                if attempt.executor in ("here", "debug"):
                    self.folder.close(attempt, "lost", f"interrupted by {type(error).__name__}")
                raise

    def _find_patiently(self, backend: Backend, attempt: Attempt, end: float) -> Attempt | None:
        while time.monotonic() < end:
            time.sleep(self.spec.look_seconds)
            try:
                return backend.find(self.folder, attempt)
            except SubmissionUnansweredError:
                continue
        return None

    def _finish(self, attempt: Attempt, how: Literal["adopted", "submitted"]) -> Outcome | None:
        """Wait for one attempt and write down how it ended; None when another has to follow."""
        if how == "adopted":
            self.say(f"{self.folder.title(attempt)}: taking over from a head that is gone")
        self.waits()
        ended, answer = Wait(self.folder, attempt, self.spec, self.say, new=how == "submitted").until_over()
        attempt = self.folder.ledger().last or attempt
        if ended is None:
            self.say(f"{self.folder.title(attempt)}: {answer.end}: {answer.words}")
            return None
        if ended.state == "finished" and ended.result is not None:
            attempt = self.folder.close(attempt, "finished", "")
            if not self.keep(ended.result):
                self.folder.close(attempt, "failed", "it finished, but what it should have made is not there")
                return None
            lost = [a for a in self.folder.ledger().attempts if a.state == "lost" and a.number not in self.ended_before]
            return Outcome(ended.result, attempt, how, len(lost))
        why = ended.error.what if ended.error else "no reason given"
        self.folder.close(attempt, "lost" if ended.state == "over" else "failed", why)
        return None

    def _error_of(self, attempt: Attempt) -> K3Error:
        """The worker's error as the kind of error it was."""
        ended = self.folder.ended(attempt)
        note = ended.error if ended is not None and ended.error is not None else None
        log = str(self.folder.log_of(attempt))
        if note is None:
            return MeasureError(attempt.reason, where=log)
        kind = getattr(errors, note.kind, None)
        if isinstance(kind, type) and issubclass(kind, K3Error):
            return kind(note.what, where=note.where, fix=note.fix)
        return MeasureError(f"{note.kind}: {note.what}", where=log, fix="read the log for the way it took")
