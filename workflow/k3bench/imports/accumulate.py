"""Readings and their places in; one `k3bench.reported/1` record that grows import by import, out.

The record is a function of its runs: importing the same file again changes nothing, and the order of imports does not
matter. Out of scope: pull-request figures (`pr_figures.py`), pairs (`pairing.py`), the verdict (`compare/`).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import RecordError, StoreError
from k3bench.imports.foreign import ForeignFile
from k3bench.imports.gate import MAX_LEVEL
from k3bench.imports.likeness import label, other_arm_in_name, refuse_other_arm, refuse_unlike
from k3bench.imports.place import Place
from k3bench.imports.reading import Reading
from k3bench.imports.record import build_record
from k3bench.metrics import HEADLINE
from k3bench.records.reported import Imported, Reported, ReportedRun
from k3bench.store import CampaignFolder, read_record, write_record


@dataclass(frozen=True)
class Incoming:
    """One run of a file, and where it is to go. `level` is the user's word where the file has none."""

    path: Path
    file: ForeignFile
    entry: int
    reading: Reading
    place: Place
    level: int | None = None


def import_into(folder: Path, name: str, incoming: Sequence[Incoming]) -> tuple[Reported, list[ReportedRun]]:
    """Add runs to a folder's record, all or none. Returns the record and the runs as they lie in it."""
    target = CampaignFolder(folder)
    if target.plan.exists():
        raise StoreError(
            "the folder holds a measured campaign; imported runs are kept apart",
            where=str(folder),
            fix="--into another folder",
        )
    if not folder.exists():
        build_record(name, _placed((), incoming)[0])  # what is refused leaves no empty folder
    with _locked(folder):
        existing = _existing(target.reported)
        runs, placed = _placed(existing.runs if existing else (), incoming)
        record = build_record(existing.name if existing else name, runs)
        if existing != record:
            write_record(target.reported, record)
    lying = {label(run): run for run in record.runs}
    return record, [lying[label(run)] for run in placed]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two imports at once wait for one another; the lock is the folder itself and leaves no file behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", where=str(folder), fix="--into another folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _existing(path: Path) -> Reported | None:
    if not path.exists():
        return None
    found = read_record(path, Reported)
    if found.deltas or any(run.imported is None for run in found.runs):
        raise StoreError(
            "the record holds published figures, no imported runs", where=str(path), fix="--into another folder"
        )
    return found


def _placed(old: Sequence[ReportedRun], incoming: Sequence[Incoming]) -> tuple[list[ReportedRun], list[ReportedRun]]:
    """All runs, old and new; a file that is in its place already stays what it was."""
    runs, placed = list(old), []
    for one in incoming:
        known = next((r for r in runs if _is(r, one)), None)
        if known is None:
            known = _run(one, runs)
            refuse_unlike(known, runs)
            runs.append(known)
        placed.append(known)
    return runs, placed


def _is(run: ReportedRun, one: Incoming) -> bool:
    """The same run of the same file in the same place."""
    source, place = run.imported, one.place
    assert source is not None
    return (source.digest, source.entry, run.observation, run.arm) == (
        one.file.digest,
        one.entry,
        place.observation,
        place.arm,
    ) and place.run in (None, source.run)


def _run(one: Incoming, others: Sequence[ReportedRun]) -> ReportedRun:
    place = one.place
    refuse_other_arm(one.reading.facts.arm, place.arm, one.file.name)
    level = _level(one)
    metrics, missing = one.reading.usable()
    return ReportedRun(
        observation=place.observation,
        arm=place.arm,
        level=level,
        pair=None,
        position=None,
        metrics=metrics,
        missing=missing,
        imported=_imported(one, place.run or _next_run(place, level, others)),
    )


def _imported(one: Incoming, number: int) -> Imported:
    reading, facts = one.reading, one.reading.facts
    remark = other_arm_in_name(one.path, one.place.arm)
    return Imported(
        file=one.file.name,
        digest=one.file.digest,
        entry=one.entry,
        format=reading.format,
        tool=reading.tool,
        run=number,
        started_s=facts.started_s,
        model=facts.model,
        rack=facts.rack,
        build=facts.build,
        isl_tokens=facts.isl_tokens,
        osl_tokens=facts.osl_tokens,
        stream_interval=facts.stream_interval,
        token_source=facts.token_source,
        simulated=facts.simulated,
        valid=reading.valid,
        flags=(*reading.flags, *([remark] if remark else [])),
    )


def _level(one: Incoming) -> int:
    found = one.reading.facts.level
    if one.level is not None and one.level > MAX_LEVEL:
        raise RecordError(f"{one.level} is no concurrency", where="--level", fix=f"1 to {MAX_LEVEL}")
    if found is None and one.level is None:
        why = [r for r in one.reading.remarks if r.startswith("open loop")]
        lacks = [f"{HEADLINE} is null: {one.reading.missing[HEADLINE]}"] if HEADLINE in one.reading.missing else []
        raise RecordError(
            "; ".join(["the file states no concurrency", *why, *lacks]),
            where=f"{one.file.name}: level",
            fix="say what was held with --level N",
        )
    if found is not None and one.level not in (None, found):
        raise RecordError(
            f"--level {one.level}, but the file says {found}", where=f"{one.file.name}: level", fix="leave --level out"
        )
    return found or one.level or 1


def _next_run(place: Place, level: int, others: Sequence[ReportedRun]) -> int:
    """The lowest free number of this observation, arm and level."""
    taken = {
        r.imported.run
        for r in others
        if r.imported and (r.observation, r.arm, r.level) == (place.observation, place.arm, level)
    }
    return next(n for n in range(1, len(taken) + 2) if n not in taken)
