"""Small Kineto files, written as text so that times stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class K(NamedTuple):
    """A kernel: times in microseconds as text."""

    ts: str
    dur: str
    stream: int = 7
    name: str = "k"
    correlation: int = 1
    device: int = 0
    cat: str = "kernel"
    node: int | None = None
    graph: int | None = None


def kernel(k: K) -> str:
    args: dict[str, Any] = {"device": k.device, "context": 1, "stream": k.stream, "correlation": k.correlation}
    if k.node is not None:
        args["graph node id"] = k.node
    if k.graph is not None:
        args["graph id"] = k.graph
    head = {"ph": "X", "cat": k.cat, "name": k.name, "pid": k.device, "tid": k.stream, "args": args}
    return json.dumps(head)[:-1] + f', "ts": {k.ts}, "dur": {k.dur}}}'


def call(name: str, correlation: int, ts: str, tid: int = 551) -> str:
    return (
        f'{{"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 551, "tid": {tid}, "ts": {ts}, "dur": 1.000,'
        f' "args": {{"correlation": {correlation}}}}}'
    )


def annotation(name: str, ts: str, dur: str, tid: int = 551) -> str:
    head = f'{{"ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 551, "tid": {tid}'
    return f'{head}, "ts": {ts}, "dur": {dur}, "args": {{}}}}'


def write(path: Path, events: list[str], **header: Any) -> Path:
    """A trace of these events."""
    head = json.dumps({"schemaVersion": 1, **header})[1:-1]
    path.write_text(f'{{{head}, "traceEvents": [\n' + ",\n".join(events) + "\n]}\n")
    return path
