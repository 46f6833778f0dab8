"""Nsight Systems sqlite exports, schema 2021 to 3.25: operations, graph nodes, NVTX ranges, launch calls.

In: an exported file (.sqlite, also .gz or .xz). Out: `Trace`. Out of scope: exporting (`nsys_rep.py`), families.

Columns are found by name, tables by their columns: CUDA_GRAPH_EVENTS holds nodes up to 2023.4 and graphs after it.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import TraceWarning
from k3bench.trace import names
from k3bench.trace.ops import (
    NO_LAUNCHES,
    NO_NODE,
    NO_NODES,
    NO_RANGES,
    Ints,
    Launches,
    Nodes,
    Ops,
    Ranges,
    Source,
    Trace,
    dense,
    dense_pairs,
)
from k3bench.trace.readers import checks, files
from k3bench.trace.readers.sqlite_tables import Tables, tables

_OP_TABLES = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_OP_COLUMNS: dict[str, int | None] = {
    "start": None,
    "end": None,
    "deviceId": None,
    "contextId": 0,
    "streamId": None,
    "correlationId": 0,
    "globalPid": 0,
    "graphNodeId": 0,
}
_PROCESS_OF_THREAD = ~0xFFFFFF
_PUSH_POP = 59
_FOREVER = np.iinfo(np.int64).max
_CALLS = {
    "kernel": re.compile(r"^(cuda|cu)Launch(Cooperative)?Kernel"),
    "graph": re.compile(r"^(cuda|cu)GraphLaunch"),
    "memory": re.compile(r"^(cuda|cu)Mem(cpy|set)"),
    "begin": re.compile(r"^(cuda|cu)StreamBeginCapture"),
    "end": re.compile(r"^(cuda|cu)StreamEndCapture"),
}
_CUPTI = re.compile(r"libcupti\.so\.([\d.]+)")
_MODE_KEY = "CUDA_GRAPH_TRACE_OPTIONS:MODE"


def read(path: Path) -> Trace:
    """Read one export. Raises `TraceError` where it cannot answer."""
    sha256, size = files.digest_of_file(path)
    with files.plain_file(path) as plain, tables(plain, str(path)) as base:
        _must_hold_operations(base)
        strings = base.strings()
        ops, n_negative = _ops(base, strings)
        launches = _launches(base, strings)
        checks.graph_mode(_graph_mode(base), ops, launches, str(path))
        warnings = _diagnostics(base)
        trace = Trace(
            source=_source(base, path, sha256, size),
            ops=ops,
            launches=launches,
            ranges=_ranges(base, strings),
            nodes=_nodes(base),
            n_negative=n_negative,
            warnings=warnings,
        )
    return checks.finished(trace)


def _must_hold_operations(base: Tables) -> None:
    """A file without device operations is never zero residency."""
    if any(table in base.columns for table in _OP_TABLES):
        return
    if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in base.columns:
        raise base.error(
            "recorded in graph mode: a replay is one row, its kernels are not in the file", checks.NODE_MODE
        )
    if not base.columns:
        raise base.error("the sqlite file holds no tables: a failed export left it", checks.EXPORT_AGAIN)
    if not {"META_DATA_EXPORT", "EXPORT_META_DATA", "StringIds"} & base.columns.keys():
        raise base.error("this sqlite file is no Nsight Systems export, or one that broke off", checks.EXPORT_AGAIN)
    raise base.error(
        "the export holds no CUDA operations: CUDA was not traced, or the importer had another version than the"
        " collector (it then reports success and drops the CUDA tables), or the export broke off",
        "profile with `nsys profile -t cuda,nvtx --cuda-graph-trace=node`, and import and export with the `nsys` that"
        " collected",
    )


def _ops(base: Tables, strings: dict[int, str]) -> tuple[Ops, int]:
    parts = [_op_table(base, kind, table) for kind, table in enumerate(_OP_TABLES) if table in base.columns]
    joined = {c: _joined([p[c] for p in parts]) for c in (*_OP_COLUMNS, "kind", "text")}
    good = joined["end"] >= joined["start"]
    n_negative = len(good) - int(np.count_nonzero(good))
    if n_negative:
        joined = {c: v[good] for c, v in joined.items()}
    name, texts = dense(joined["text"])
    spelled = tuple(_spelled(int(text), strings) for text in texts)
    process_context, processes, contexts = dense_pairs(joined["globalPid"], joined["contextId"])
    lane, of_lane, streams = dense_pairs(process_context, joined["streamId"])
    lanes = tuple((int(processes[i]), int(contexts[i]), int(s)) for i, s in zip(of_lane, streams, strict=True))
    packed = joined["graphNodeId"]
    in_graph = packed != 0
    ops = Ops(
        start=joined["start"],
        end=joined["end"],
        device=joined["deviceId"],
        lane=lane,
        kind=joined["kind"].astype(np.int8),
        name=name,
        process=joined["globalPid"],
        correlation=joined["correlationId"],
        graph=np.where(in_graph, packed >> 32, NO_NODE),
        node=np.where(in_graph, packed & 0xFFFFFFFF, NO_NODE),
        lanes=lanes,
        names=spelled,
        short_names=tuple(names.short_name(text) for text in spelled),
    )
    return ops, n_negative


def _joined(parts: list[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


_NO_TEXT = (None, -2, -3)


def _op_table(base: Tables, kind: int, table: str) -> dict[str, Ints]:
    wanted = dict(_OP_COLUMNS)
    name = next((c for c in ("demangledName", "shortName", "mangledName") if c in base.columns[table]), None)
    if kind == 0 and name:
        wanted[name] = -1
    columns = base.integers(table, wanted, often_constant=("deviceId", "contextId", "globalPid"))
    text = columns.pop(name) if kind == 0 and name else np.full(len(columns["start"]), _NO_TEXT[kind] or -1, np.int64)
    return {**columns, "text": text, "kind": np.full(len(text), kind, np.int64)}


def _spelled(text: int, strings: dict[int, str]) -> str:
    if text < 0:
        return {-2: "memcpy", -3: "memset"}.get(text, "unnamed kernel")
    return strings.get(text, f"unnamed kernel {text}")


def _launches(base: Tables, strings: dict[int, str]) -> Launches:
    table = "CUPTI_ACTIVITY_KIND_RUNTIME"
    wanted: dict[str, int | None] = {"start": None, "nameId": None, "correlationId": None, "globalTid": None}
    if not base.has(table, *wanted):
        return NO_LAUNCHES
    kinds = {name: [i for i, text in strings.items() if pattern.match(text)] for name, pattern in _CALLS.items()}
    chosen = ", ".join(str(i) for ids in kinds.values() for i in ids)
    succeeded = " AND ifnull(returnValue, 0) = 0" if "returnValue" in base.columns[table] else ""
    rows = base.integers(table, wanted, f"WHERE nameId IN ({chosen}){succeeded} ORDER BY start")
    is_a = {name: np.isin(rows["nameId"], ids) for name, ids in kinds.items()}
    captured = _within_capture(rows["globalTid"], is_a["begin"], is_a["end"])
    call = ~(is_a["begin"] | is_a["end"])
    thread = rows["globalTid"][call]
    return Launches(
        process=thread & _PROCESS_OF_THREAD,
        correlation=rows["correlationId"][call],
        thread=thread,
        time=rows["start"][call],
        is_graph=is_a["graph"][call],
        is_kernel=(is_a["kernel"] & ~captured)[call],
    )


def _within_capture(thread: Ints, begin: NDArray[np.bool_], end: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Calls (in time order) between the begin and the end of a stream capture on their thread."""
    inside = np.zeros(len(thread), np.bool_)
    for one in np.unique(thread[begin]).tolist():
        mine = np.flatnonzero(thread == one)
        inside[mine] = np.cumsum(begin[mine].astype(np.int64) - end[mine]) > 0
    return inside


def _ranges(base: Tables, strings: dict[int, str]) -> Ranges:
    if not base.has("NVTX_EVENTS", "start", "end", "eventType", "globalTid"):
        return NO_RANGES
    columns = [c if c in base.columns["NVTX_EVENTS"] else "NULL" for c in ("text", "textId")]
    rows = base.rows(
        "NVTX_EVENTS",
        tuple(c for c in ("start", "end", "globalTid", *columns) if c != "NULL"),
        f"WHERE eventType = {_PUSH_POP} AND typeof(start) = 'integer' AND typeof(globalTid) = 'integer'",
    )
    has_text, has_id = columns[0] != "NULL", columns[1] != "NULL"
    found = []
    for start, end, thread, *texts in rows:
        text = texts[0] if has_text and isinstance(texts[0], str) else None
        if text is None and has_id:
            text = strings.get(texts[-1]) if isinstance(texts[-1], int) else None
        if text is not None:
            found.append((thread, start, end if isinstance(end, int) else _FOREVER, text))
    if not found:
        return NO_RANGES
    thread, start, end = (np.array([row[i] for row in found], np.int64) for i in range(3))
    return Ranges(thread, start, end, tuple(row[3] for row in found))


def _nodes(base: Tables) -> Nodes:
    for table in sorted(base.columns, reverse=True):
        if "GRAPH" in table and base.has(table, "graphNodeId", "originalGraphNodeId", "start"):
            wanted: dict[str, int | None] = {
                "start": None,
                "globalTid": 0,
                "graphNodeId": 0,
                "originalGraphNodeId": NO_NODE,
            }
            rows = base.integers(table, wanted)
            thread = rows["globalTid"]
            return Nodes(
                thread & _PROCESS_OF_THREAD, thread, rows["start"], rows["graphNodeId"], rows["originalGraphNodeId"]
            )
    return NO_NODES


def _graph_mode(base: Tables) -> bool:
    """The file says that it was recorded in graph mode (which matters only if graphs were launched)."""
    if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in base.columns and base.rows(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start",), "LIMIT 1"
    ):
        return True
    if not base.has("META_DATA_CAPTURE", "name", "value"):
        return False
    return any(
        str(n).endswith(_MODE_KEY) and v == "Graph" for n, v in base.rows("META_DATA_CAPTURE", ("name", "value"))
    )


def _diagnostics(base: Tables) -> tuple[TraceWarning, ...]:
    """What the collector itself said about lost data. Lost data are a refusal."""
    if not base.has("DIAGNOSTIC_EVENT", "text"):
        return ()
    texts = [text for (text,) in base.rows("DIAGNOSTIC_EVENT", ("text",)) if isinstance(text, str)]
    checks.nothing_dropped(texts, base.where)
    return ()


def _source(base: Tables, path: Path, sha256: str, size: int) -> Source:
    meta: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if base.has(table, "name", "value"):
            meta = {str(n): str(v) for n, v in base.rows(table, ("name", "value"))}
            break
    loaded = (
        [str(t) for (t,) in base.rows("DIAGNOSTIC_EVENT", ("text",))] if base.has("DIAGNOSTIC_EVENT", "text") else []
    )
    cupti = next((found.group(1) for text in loaded if (found := _CUPTI.search(text))), None)
    gpus = base.rows("TARGET_INFO_GPU", ("name",), "LIMIT 1") if base.has("TARGET_INFO_GPU", "name") else []
    return Source(
        path=path,
        format="nsys_sqlite",
        sha256=sha256,
        size_bytes=size,
        tool_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        cupti_version=cupti,
        gpu=str(gpus[0][0]) if gpus else None,
    )
