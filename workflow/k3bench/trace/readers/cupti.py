"""Records of our own CUPTI collector (cupti-python): activity records, and graph nodes tagged at their creation.

In: the decoded document. Out: `Trace`. Out of scope: collecting.

`recs`: kind, name, start, end, stream, corr, graph, node, and device, context, process where known.
`nodes`: cb GRAPHNODE_CREATED | GRAPHNODE_CLONED with node, orig, tag (the open range path); ids packed graph<<32|node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from k3bench.errors import TraceError
from k3bench.trace import names
from k3bench.trace.ops import NO_LAUNCHES, NO_NODE, NO_RANGES, Ints, Nodes, Ops, Source, Trace, dense_pairs
from k3bench.trace.readers import checks
from k3bench.trace.readers.json_traces import Document

_KIND = {"CONCURRENT_KERNEL": 0, "KERNEL": 0, "MEMCPY": 1, "MEMCPY2": 1, "MEMSET": 2}
_SPELLED = {1: "memcpy", 2: "memset"}
_FIX = "record again with `k3bench measure` and `trace: cupti`; cupti-python and the driver must belong together"


def trace(document: Document, source: Source) -> Trace:
    """Operations and nodes of one collector file."""
    where = str(source.path)
    if document.n_dropped:
        checks.nothing_dropped([f"{document.n_dropped} records were dropped"], where)
    try:
        ops, n_negative = _ops([r for r in document.recs or [] if r.get("kind") in _KIND])
        nodes = _nodes(document.nodes or [])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise TraceError(
            f"a CUPTI record is not as our collector writes it: {error!r}"[:200], where=where, fix=_FIX
        ) from None
    return checks.finished(Trace(source, ops, NO_LAUNCHES, NO_RANGES, nodes, n_negative=n_negative))


def _column(records: list[dict[str, Any]], key: str, default: int | None = None) -> Ints:
    values = [r[key] if default is None else r.get(key, default) for r in records]
    if not all(type(v) is int for v in values):
        raise ValueError(f"{key} is no integer")
    return np.array(values, np.int64)


def _ops(records: list[dict[str, Any]]) -> tuple[Ops, int]:
    start, end = _column(records, "start"), _column(records, "end")
    n_negative = int(np.count_nonzero(end < start))
    if n_negative:
        records = [r for r in records if r["end"] >= r["start"]]
        start, end = _column(records, "start"), _column(records, "end")
    kind = np.array([_KIND[r["kind"]] for r in records], np.int8)
    known: dict[str, int] = {}
    spelled = [str(r.get("name") or _SPELLED.get(int(k), "unnamed kernel")) for r, k in zip(records, kind, strict=True)]
    name = np.array([known.setdefault(text, len(known)) for text in spelled], np.int64)
    process = _column(records, "process", 0)
    process_context, processes, contexts = dense_pairs(process, _column(records, "context", 1))
    lane, of_lane, streams = dense_pairs(process_context, _column(records, "stream"))
    packed = _column(records, "node", 0)
    in_graph = packed != 0
    ops = Ops(
        start=start,
        end=end,
        device=_column(records, "device", 0),
        lane=lane,
        kind=kind,
        name=name,
        process=process,
        correlation=_column(records, "corr"),
        graph=np.where(in_graph, packed >> 32, NO_NODE),
        node=np.where(in_graph, packed & 0xFFFFFFFF, NO_NODE),
        lanes=tuple((int(processes[i]), int(contexts[i]), int(s)) for i, s in zip(of_lane, streams, strict=True)),
        names=tuple(known),
        short_names=tuple(names.short_name(text) for text in known),
    )
    return ops, n_negative


def _nodes(events: list[dict[str, Any]]) -> Nodes:
    """A clone is announced as created first, with no range open; its cloned row says where it comes from."""
    rows = [e for e in events if e.get("cb") in ("GRAPHNODE_CREATED", "GRAPHNODE_CLONED")]
    zeros = np.zeros(len(rows), np.int64)
    path = tuple(tuple(str(t) for t in row.get("tag") or ()) for row in rows)
    process = _column(rows, "process", 0)
    order = np.arange(len(rows), dtype=np.int64)
    return Nodes(process, zeros, order, _column(rows, "node"), _column(rows, "orig", NO_NODE), path)
