"""JSON traces without anything that tells of a place or a person. In: a Kineto or CUPTI file. Out: JSON bytes, notes.

Out of scope: sqlite (`scrub.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from k3bench.errors import TraceError
from k3bench.trace.readers import files, json_traces
from k3bench.trace.scrub_text import REMOVED, range_text, safe_text

_EVENT_KINDS = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"}
_CALL_KINDS = {"cuda_runtime", "cuda_driver", "hip_runtime", "Runtime", "runtime"}
_ARGS = ("device", "context", "stream", "correlation", "graph id", "graph node id")
_HEAD = ("schemaVersion", "cupti_version", "cuda_driver_version", "cuda_runtime_version", "displayTimeUnit")
_RECORD_KEYS = ("kind", "name", "start", "end", "device", "context", "process", "stream", "corr", "graph", "node")
_NODE_KEYS = ("cb", "node", "orig", "type", "exec", "graph", "process")


def scrubbed(source: Path) -> tuple[bytes, list[str]]:
    """The clean document and what it still holds."""
    content, _, _ = files.plain_bytes(source)
    try:
        document = msgspec.json.decode(content)
    except msgspec.MsgspecError as error:
        raise TraceError(f"this JSON is no trace: {error}", where=str(source), fix=json_traces.EXPORT_WHOLE) from None
    if not isinstance(document, dict):
        document = {"traceEvents": document}
    clean = _cupti(document) if "recs" in document else _kineto(content, document)
    return msgspec.json.encode(clean), [f"kept the keys {', '.join(clean)}"]


def _cupti(document: dict[str, Any]) -> dict[str, Any]:
    def row(record: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        return {k: safe_text(v) if isinstance(v, str) else v for k, v in record.items() if k in keys}

    rows = document.get("nodes") or ()
    nodes = [{**row(n, _NODE_KEYS), "tag": [range_text(str(t)) for t in n.get("tag") or ()]} for n in rows]
    head = {k: document[k] for k in ("schema", "cupti_version", "n_dropped") if isinstance(document.get(k), str | int)}
    return {**head, "recs": [row(r, _RECORD_KEYS) for r in document["recs"]], "nodes": nodes}


def _kineto(content: bytes | bytearray, document: dict[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {k: document[k] for k in _HEAD if isinstance(document.get(k), str | int)}
    properties = document.get("deviceProperties")
    if isinstance(properties, list):
        head["deviceProperties"] = [{k: p.get(k) for k in ("id", "name")} for p in properties if isinstance(p, dict)]
    distributed = document.get("distributedInfo")
    if isinstance(distributed, dict) and isinstance(distributed.get("rank"), int):
        head["distributedInfo"] = {"rank": distributed["rank"]}
    timed = msgspec.json.decode(content, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    events = timed["traceEvents"] if isinstance(timed, dict) else msgspec.Raw(content)
    kept = (_event(e) for e in msgspec.json.decode(events, type=list[dict[str, msgspec.Raw]]))
    return {**head, "traceEvents": [e for e in kept if e is not None]}


def _event(event: dict[str, msgspec.Raw]) -> dict[str, Any] | None:
    """Times stay the very text they were."""
    plain = {k: msgspec.json.decode(event[k]) for k in ("ph", "cat", "name", "pid", "tid", "args") if k in event}
    kind, name, args = plain.get("cat"), str(plain.get("name")), plain.get("args")
    if kind in _EVENT_KINDS or kind in _CALL_KINDS:
        text = safe_text(name)
    elif kind == "user_annotation" and range_text(name) != REMOVED:
        text = name
    else:
        return None
    times: dict[str, Any] = {k: event[k] for k in ("ts", "dur") if k in event}
    kept = {k: args[k] for k in _ARGS if isinstance(args, dict) and isinstance(args.get(k), int)}
    where = {k: plain.get(k) for k in ("ph", "cat", "pid", "tid")}
    return {**where, "name": text, **times, "args": kept}
