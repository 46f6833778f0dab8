"""Imported runs of one record in; a refusal that names file and field if they are not alike. Out: nothing.

Like with like: one workload in a record; one tool, token source and rack in an observation; no file twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from k3bench.errors import RecordError, StoreError
from k3bench.imports.pairing import source_of
from k3bench.records.measurement import Arm
from k3bench.records.reported import ReportedRun

#: Must be the same in the whole record, where a file says it.
WORKLOAD = ("model", "isl_tokens", "osl_tokens", "stream_interval")
#: Must be the same inside an observation: before and after are compared there.
INSIDE = ("tool", "token_source", "rack")
#: Stream intervals are inferred from medians: this far apart they are the same.
MAX_INTERVAL_RATIO = 1.15
#: As many equal numbers are no coincidence.
MIN_EQUAL_METRICS = 3


def refuse_unlike(run: ReportedRun, others: Sequence[ReportedRun]) -> None:
    """Raises `RecordError` or `StoreError` where a run does not fit one that is there already."""
    for other in others:
        _fields(run, other, WORKLOAD)
        if run.observation == other.observation:
            _fields(run, other, INSIDE)
        _not_twice(run, other)


def _fields(run: ReportedRun, other: ReportedRun, names: Sequence[str]) -> None:
    new, old = source_of(run), source_of(other)
    for name in names:
        a, b = getattr(new, name), getattr(old, name)
        if a is not None and b is not None and not _same(name, a, b):
            raise RecordError(
                f"unlike runs: {name} is {a!r} here and {b!r} in {old.file}, imported as {label(other)}",
                where=f"{new.file}: {name}",
                fix="compare like with like; another workload, tool or rack belongs into another record or observation",
            )


def _same(name: str, a: object, b: object) -> bool:
    if isinstance(a, int) and isinstance(b, int) and name == "stream_interval":
        return max(a, b) <= MAX_INTERVAL_RATIO * min(a, b)
    return a == b


def _not_twice(run: ReportedRun, other: ReportedRun) -> None:
    new, old = source_of(run), source_of(other)
    if (new.digest, new.entry) == (old.digest, old.entry):
        raise RecordError(
            f"the same file is {label(other)} already",
            where=f"{new.file}: whole file",
            fix="a run is one side of one pair; were the arms mixed up?",
        )
    if len(run.metrics) >= MIN_EQUAL_METRICS and run.metrics == other.metrics:
        raise RecordError(
            f"all {len(run.metrics)} numbers are those of {old.file}, imported as {label(other)}",
            where=f"{new.file}: {next(iter(run.metrics))}",
            fix="two runs never agree to the last digit: this is a copy",
        )
    if _spot(run) == _spot(other):
        raise StoreError(
            f"{label(run)} is taken by {old.file}; results are never overwritten",
            where=new.file,
            fix="use another run number, or --into another folder",
        )


def _spot(run: ReportedRun) -> tuple[str, str, int, int]:
    return run.observation, run.arm, run.level, source_of(run).run


def label(run: ReportedRun) -> str:
    """`rack1.before.2 c=8`."""
    return f"{run.observation}.{run.arm}.{source_of(run).run} c={run.level}"


def refuse_other_arm(said: str | None, arm: Arm, where: str) -> None:
    """A file that says which arm it is must be imported as that arm. Raises `RecordError`."""
    words = set(re.split(r"[^a-z]+", (said or "").lower()))
    other = "after" if arm == "before" else "before"
    if other in words and arm not in words:
        raise RecordError(
            f"arms swapped: the file says that it is {other!r} and is imported as {arm!r}",
            where=f"{where}: arm",
            fix=f"--as observation.{other}, or correct the file's label",
        )


def other_arm_in_name(path: PurePath, arm: Arm) -> str | None:
    """A remark where the file's own name names the other arm only."""
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    other = "after" if arm == "before" else "before"
    return f"the file name says {other!r}; are the arms swapped?" if other in words and arm not in words else None
