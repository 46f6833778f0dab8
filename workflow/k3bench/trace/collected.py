"""Traces of an observation, as the profiled runs left them. In: a folder of `*.collected.json`. Out: what to read.

Out of scope: collecting, reading the traces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from k3bench.errors import TraceError
from k3bench.records.residency import Collected, Profiled
from k3bench.store import read_record
from k3bench.trace.analysis import Asked
from k3bench.trace.capture import read_capture

_SUFFIX = ".collected.json"


def collected_traces(folder: Path, asked: Asked) -> list[tuple[Path, Asked]]:
    """Every trace that has a collector's record beside it, in name order."""
    found = [_one(path, asked) for path in sorted(folder.glob("*" + _SUFFIX))]
    if not found:
        raise TraceError(
            "no collected trace in this folder",
            where=str(folder),
            fix="run `k3bench profile`, or a recipe with `trace.tool` nsys, kineto or cupti",
        )
    _one_level(folder, {known.level for _, known in found})
    return found


def _one_level(folder: Path, levels: set[int | None]) -> None:
    """Means over batch sizes would be means over different steps."""
    if len(levels) > 1:
        raise TraceError(
            f"holds traces of several levels: {', '.join(map(str, sorted(x for x in levels if x is not None)))}",
            where=str(folder),
            fix="batch sizes are never pooled: move the traces of the other levels to a folder of their own",
        )


def _one(path: Path, asked: Asked) -> tuple[Path, Asked]:
    record = read_record(path, Collected)
    trace = _beside(path, record.trace)
    capture = read_capture(_beside(path, record.capture)) if record.capture else asked.capture
    known = replace(
        asked,
        arm=record.arm,
        level=record.level,
        rank=record.rank,
        build=record.build,
        forks_on=record.forks_on,
        capture=capture,
        profiled=_profiled(record),
    )
    return trace, known


def _beside(path: Path, name: str) -> Path:
    """A file in the same folder; a record that names another place lies."""
    if not name or Path(name).name != name:
        raise TraceError(f"names a file elsewhere: {name!r}", where=str(path), fix="let the collector write it")
    return path.with_name(name)


def _profiled(record: Collected) -> Profiled:
    with_tool, without = record.profiled_step_ms, record.unprofiled_step_ms
    ratio = with_tool / without if with_tool is not None and without else None
    return Profiled(profiled_step_ms=with_tool, unprofiled_step_ms=without, profiled_over_unprofiled=ratio)
