"""A copy of a trace that carries no environment, arguments, users, hosts or paths, and gives the same residency.

In: a trace file. Out: a new file (.gz and .xz by its name) and what was left out. Out of scope: whose trace it is.

The copy is written anew from a list of what may stay, so nothing unknown can slip through: not a column of a newer
schema, not a freed page. Names are kept where they are kernels, API calls, or ranges of the grammar; all else that is
text becomes "(removed)".
"""

from __future__ import annotations

import gzip
import lzma
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3bench.errors import TraceError
from k3bench.store import write_atomic
from k3bench.trace import scrub_json
from k3bench.trace.readers import files
from k3bench.trace.readers.sqlite_tables import Tables, quoted, tables
from k3bench.trace.scrub_text import range_text, safe_text

#: table -> columns that may stay; numbers only, and ids into StringIds
_OPERATION = ("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid")
_KEPT_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_OPERATION, "demangledName", "shortName", "mangledName", "graphNodeId", "graphId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_OPERATION, "bytes", "copyKind", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_OPERATION, "bytes", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_OPERATION, "graphId", "graphExecId"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    "CUDA_GRAPH_NODE_EVENTS": ("start", "end", "eventClass", "globalTid", "graphNodeId", "originalGraphNodeId"),
    "CUDA_GRAPH_EVENTS": (
        *("start", "end", "eventClass", "globalTid", "graphNodeId", "originalGraphNodeId"),
        *("graphId", "originalGraphId", "graphExecId"),
    ),
    "NVTX_EVENTS": ("start", "end", "eventType", "rangeId", "globalTid", "text", "textId", "domainId"),
    "TARGET_INFO_GPU": ("name",),
    "META_DATA_EXPORT": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "DIAGNOSTIC_EVENT": ("timestamp", "severity", "text"),
}
_TEXT_IDS = {"demangledName", "shortName", "mangledName", "nameId", "textId"}
_META = re.compile(r"^EXPORT_(PRODUCT_NAME|PRODUCT_VERSION|SCHEMA_VERSION\w*)$|CUDA_GRAPH_TRACE_OPTIONS:MODE$")
_DIAGNOSTIC = re.compile(r"^Number of [\w ]+ events \w+:\s*\d+|lost|dropped", re.IGNORECASE)
_CUPTI = re.compile(r"libcupti\.so[.\d]*")


def scrub(source: Path, target: Path) -> list[str]:
    """Write the copy; returns what was done, line by line."""
    if not source.is_file():
        raise TraceError("there is no such trace file", where=str(source), fix="name an existing trace")
    if target.exists():
        raise TraceError("the copy exists already", where=str(target), fix="choose a new name")
    kind = files.kind_of(source)
    if kind == "sqlite":
        content, notes = _sqlite(source)
    elif kind == "json":
        content, notes = scrub_json.scrubbed(source)
    else:
        fix = "export it to sqlite first"
        raise TraceError("only sqlite and JSON traces can be scrubbed", where=str(source), fix=fix)
    write_atomic(target, _packed(content, target.name))
    return [*notes, f"wrote {target}"]


def _packed(content: bytes, name: str) -> bytes:
    if name.endswith(".xz"):
        return lzma.compress(content)
    return gzip.compress(content, mtime=0) if name.endswith(".gz") else content


def _sqlite(source: Path) -> tuple[bytes, list[str]]:
    with files.plain_file(source) as plain, tables(plain, str(source)) as base, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        target = sqlite3.connect(copy)
        try:
            used, notes = set[int](), []
            for table, columns in _KEPT_TABLES.items():
                if table in base.columns:
                    used |= _copy_table(base, target, table, [c for c in columns if c in base.columns[table]])
            _copy_strings(base, target, used)
            target.commit()
            left = sorted(base.columns.keys() - _KEPT_TABLES.keys() - {"StringIds"})
            notes.append(f"left out {len(left)} tables: {', '.join(left)}"[:2000])
        finally:
            target.close()
        return copy.read_bytes(), notes


def _copy_table(base: Tables, target: sqlite3.Connection, table: str, columns: list[str]) -> set[int]:
    """Copies the columns; returns the string ids they use."""
    target.execute(f"CREATE TABLE {quoted(table)} ({', '.join(map(quoted, columns))})")
    clean = _CLEAN.get(table, _numbers)
    rows = [row for row in (clean(dict(zip(columns, r, strict=True))) for r in base.rows(table, tuple(columns))) if row]
    marks = ", ".join("?" * len(columns))
    target.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", [tuple(row.values()) for row in rows])
    ids = _TEXT_IDS & set(columns)
    return {row[c] for row in rows for c in ids if isinstance(row[c], int)}


def _numbers(row: dict[str, Any]) -> dict[str, Any] | None:
    return {c: v if isinstance(v, int) else None for c, v in row.items()}


def _ranges(row: dict[str, Any]) -> dict[str, Any] | None:
    clean = _numbers(row) or {}
    if "text" in row:
        clean["text"] = range_text(row["text"]) if isinstance(row["text"], str) else None
    return clean


def _gpu(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"name": safe_text(str(row["name"]))}


def _meta(row: dict[str, Any]) -> dict[str, Any] | None:
    return {k: safe_text(str(v)) for k, v in row.items()} if _META.search(str(row["name"])) else None


def _diagnostic(row: dict[str, Any]) -> dict[str, Any] | None:
    text = str(row.get("text") or "")
    library = _CUPTI.search(text)
    kept = safe_text(text) if _DIAGNOSTIC.search(text) else None
    if library:
        kept = f"Loaded CUPTI library: {library.group(0)}"
    return {**(_numbers(row) or {}), "text": kept} if kept else None


_CLEAN = {
    "NVTX_EVENTS": _ranges,
    "TARGET_INFO_GPU": _gpu,
    "META_DATA_EXPORT": _meta,
    "META_DATA_CAPTURE": _meta,
    "DIAGNOSTIC_EVENT": _diagnostic,
}


def _copy_strings(base: Tables, target: sqlite3.Connection, used: set[int]) -> None:
    target.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    by_range = {i for (i,) in base.rows("NVTX_EVENTS", ("textId",))} if base.has("NVTX_EVENTS", "textId") else set()
    kept = {i: range_text(v) if i in by_range else safe_text(v) for i, v in base.strings().items() if i in used}
    target.executemany("INSERT INTO StringIds VALUES (?, ?)", sorted(kept.items()))


def remaining_texts(path: Path) -> Iterator[str]:
    """Every text that a scrubbed sqlite still holds, for whoever wants to look."""
    with files.plain_file(path) as plain, tables(plain, str(path)) as base:
        for table, columns in base.columns.items():
            for row in base.rows(table, tuple(columns)):
                yield from (value for value in row if isinstance(value, str))
