"""A file's objects in; readings of every run in it out. Formats are told apart by content, never by file name.

Out of scope: where runs go (`accumulate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from k3bench.errors import RecordError
from k3bench.imports import aiperf, clients, engines, guidellm
from k3bench.imports.dictionary import Detect, Format, dictionary
from k3bench.imports.foreign import Fields, ForeignFile, plain, read_foreign
from k3bench.imports.reading import Reading

ONE_OBJECT: Mapping[str, Callable[[str, Format, Fields], Reading]] = {
    "clients": clients.read_client,
    "aiperf-summary": aiperf.read_summary,
    "trtllm-bench": engines.read_trtllm_bench,
    "inference-perf": engines.read_inference_perf,
}


def format_of(fields: Fields) -> tuple[str, Format]:
    """The first format that fits. Raises `RecordError` listing the known ones."""
    for name, entry in dictionary().formats.items():
        if _fits(fields, entry.detect):
            if entry.refuse:
                raise RecordError(
                    f"{name} is no serving result: {entry.refuse}",
                    where=fields.where,
                    fix="import the file of a serving benchmark: " + _known(),
                )
            return name, entry
    keys = ", ".join(list(fields.value)[:6])
    raise RecordError(
        f"no known format: it begins with the keys {plain(keys[:200])}", where=fields.where, fix="known: " + _known()
    )


def _fits(fields: Fields, detect: Detect) -> bool:
    return all(fields.get(p) is not None for p in detect.has) and (
        not detect.any or any(fields.get(p) is not None for p in detect.any)
    )


def _known() -> str:
    return ", ".join(name for name, entry in dictionary().formats.items() if not entry.refuse)


def is_pr_figures(file: ForeignFile) -> bool:
    """A pull request's published figures: no runs, but rows of a table."""
    first = file.entries[0].value
    return all(
        isinstance(first.get(k), kind) for k, kind in (("source", dict), ("workload", dict), ("observations", list))
    )


def read_runs(file: ForeignFile) -> list[Reading]:
    """Every run in a file, in its order. Raises `RecordError` naming file and field."""
    name, entry = format_of(file.entries[0])
    if entry.lines == "one":
        for line in file.entries:
            _same(name, line)
        return [aiperf.read_records(name, entry, file.entries)]
    return [reading for fields in file.entries for reading in _of_object(fields, *_same(name, fields))]


def _same(name: str, fields: Fields) -> tuple[str, Format]:
    found, entry = format_of(fields)
    if found != name:
        raise RecordError(f"{found} after {name} in one file", where=fields.where, fix="one format a file")
    return found, entry


def _of_object(fields: Fields, name: str, entry: Format) -> list[Reading]:
    if entry.reader == "guidellm":
        return [guidellm.read_benchmark(name, entry, fields, b) for b in guidellm.benchmarks(fields)]
    return [ONE_OBJECT[str(entry.reader)](name, entry, fields)]


def read_file(path: Path) -> tuple[ForeignFile, list[Reading]]:
    """Read a foreign result file whole."""
    file = read_foreign(path)
    return file, read_runs(file)
