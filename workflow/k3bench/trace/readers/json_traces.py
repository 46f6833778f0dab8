"""JSON traces: which kind it is, and typed decoding in pieces so that a large file is never a large object.

In: a .json (.gz, .xz) path. Out: `Trace` by the reader of its kind. Out of scope: what the events mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from k3bench.errors import TraceError
from k3bench.trace.ops import Format, Launches, Ranges, Source, Trace
from k3bench.trace.progress import Progress
from k3bench.trace.readers import files

_PIECE = 8 * 1024 * 1024
_BOUNDARIES = (b"},\n  {", b"}, {", b"},{", b"},\n{")
EXPORT_WHOLE = "export the trace again and copy the whole file; a profiler that was killed leaves half a file"


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments a device operation or a launch call can carry; other events may carry anything."""

    device: Any = None
    context: Any = None
    stream: Any = None
    correlation: Any = None
    graph_id: Any = msgspec.field(name="graph id", default=None)
    graph_node_id: Any = msgspec.field(name="graph node id", default=None)
    name: Any = None


class Event(msgspec.Struct, gc=False):
    """One trace event; times and names stay as text."""

    ph: Any = None
    cat: Any = None
    name: msgspec.Raw = msgspec.Raw(b'""')
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: Args | None = None


class Collector(Protocol):
    """Takes events piece by piece."""

    def add(self, events: list[Event]) -> None:
        """Take some events."""

    def restart(self) -> None:
        """Forget everything: the pieces did not fit."""


class Document(msgspec.Struct):
    """What can stand at the top of a file: Kineto's keys, or those of our CUPTI collector."""

    trace_events: list[Event] | None = msgspec.field(name="traceEvents", default=None)
    schema_version: Any = msgspec.field(name="schemaVersion", default=None)
    device_properties: Any = msgspec.field(name="deviceProperties", default=None)
    distributed_info: Any = msgspec.field(name="distributedInfo", default=None)
    cupti_version: Any = None
    schema: Any = None
    recs: list[dict[str, Any]] | None = None
    nodes: list[dict[str, Any]] | None = None
    gpu: Any = None
    n_dropped: Any = None


def read(path: Path, *, accept_lanes: bool = False) -> Trace:
    """Read a Kineto trace or the records of our CUPTI collector."""
    from k3bench.trace.readers import cupti, kineto

    content, sha256, size = files.plain_bytes(path)
    collected = kineto.Collected(str(path))
    document = _decoded(content, collected, str(path))
    if document.recs is not None:
        return cupti.trace(document, _source(path, "cupti", sha256, size, document))
    if not collected.n_events and document.trace_events is None:
        raise TraceError(
            "JSON, but no trace: no traceEvents in it", where=str(path), fix="give a Kineto (torch.profiler) trace"
        )
    return collected.trace(_source(path, "kineto", sha256, size, document), accept_lanes=accept_lanes)


def capture_calls(content: bytes | bytearray, where: str) -> tuple[Launches, Ranges, set[int]]:
    """(launch calls, ranges, correlations that have a device operation) of a trace of a capture."""
    from k3bench.trace.readers import kineto

    collected = kineto.Collected(where)
    _decoded(content, collected, where)
    return collected.launches(), collected.ranges(), collected.correlations()


def _decoded(content: bytes | bytearray, events: Collector, where: str) -> Document:
    """Events go to the collector piece by piece; the document keeps the other keys."""
    try:
        for piece in _pieces(content):
            if isinstance(piece, Document):
                document = piece
            else:
                events.add(piece)
        return document
    except msgspec.MsgspecError:
        events.restart()
    return _decoded_whole(content, events, where)


def _pieces(content: bytes | bytearray) -> Iterator[list[Event] | Document]:
    """Cuts between events. A cut inside an event cannot be decoded, and then the file is decoded whole."""
    opening = content.find(b"[", content.find(b'"traceEvents"'))
    if opening < 0 or len(content) < 2 * _PIECE or b'"traceEvents"' not in content[: opening + 1]:
        raise msgspec.DecodeError("small")
    events, last = msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Document)
    boundary = max(_BOUNDARIES, key=lambda b: content.count(b, opening, opening + _PIECE))
    view = memoryview(content)
    at, progress = opening + 1, Progress("reading events", len(content))
    while (cut := content.find(boundary, at + _PIECE)) >= 0:
        yield events.decode(b"".join((b"[", view[at : cut + 1], b"]")))
        at = cut + boundary.index(b",") + 1
        progress.advance_to(at)
    tail = last.decode(b"".join((b'{"traceEvents":[', view[at:])))
    head = last.decode(content[: opening + 1] + b"]}")
    yield tail.trace_events or []
    progress.close()
    yield _merged(head, tail)


def _merged(head: Document, tail: Document) -> Document:
    """The keys before the events, and those after them."""
    for name in Document.__struct_fields__:
        if getattr(head, name) is None or name == "trace_events":
            setattr(head, name, getattr(tail, name))
    head.trace_events = []
    return head


def _decoded_whole(content: bytes | bytearray, events: Collector, where: str) -> Document:
    try:
        if content.lstrip()[:1] == b"[":
            document = Document(trace_events=msgspec.json.decode(content, type=list[Event]))
        else:
            document = msgspec.json.decode(content, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        cut_off = "truncated" in str(error)
        what = "the JSON is cut off" if cut_off else f"this JSON is no trace: {error}"
        raise TraceError(what, where=where, fix=EXPORT_WHOLE) from None
    if document.trace_events:
        events.add(document.trace_events)
        document.trace_events = []
    return document


def _source(path: Path, kind: Format, sha256: str, size: int, document: Document) -> Source:
    properties, distributed = document.device_properties, document.distributed_info
    first = properties[0] if isinstance(properties, list) and properties and isinstance(properties[0], dict) else {}
    gpu = document.gpu if isinstance(document.gpu, str) else first.get("name")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    return Source(
        path=path,
        format=kind,
        sha256=sha256,
        size_bytes=size,
        schema_version=None if document.schema_version is None else str(document.schema_version)[:40],
        cupti_version=None if document.cupti_version is None else str(document.cupti_version)[:40],
        gpu=gpu if isinstance(gpu, str) and gpu else None,
        rank=rank if isinstance(rank, int) and not isinstance(rank, bool) else None,
    )
