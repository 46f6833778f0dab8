"""Makes large traces of a K3-like decode: 93 layers, two legs per layer, graph replay on 33 lanes.

In: a number of kernels. Out: an nsys sqlite or a Kineto JSON file, and its capture record. Out of scope: reading them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

N_LAYERS, OPS_PER_LAYER, N_LANES, GRAPH, ORIGINAL = 93, 29, 33, 2, 1
NODES = N_LAYERS * OPS_PER_LAYER
PID = 0x0100_0000_0000_0000 | (551 << 24)
TID = PID | 551


class Kernel(NamedTuple):
    """One operation of one replay."""

    start: int
    end: int
    lane: int
    step: int
    node: int
    name: int


NAMES = [
    "void k3::{}_kernel_{}<bfloat16_t, 128, 64, 4, false>(k3::Params<bfloat16_t>, int)".format(*pair)
    for pair in [(family, i) for family in ("kda", "mla", "moe", "norm") for i in range(12)]
]


def family_of(layer: int, position: int) -> str:
    """Attention first, then the experts."""
    attention = "MLA" if layer % 4 == 3 else "KDA"
    return attention if position < 15 else "MoE"


def kernels(n: int, seed: int = 0) -> Iterator[Kernel]:
    """Replays of one graph: even positions of a layer on the main chain, odd ones beside it, every layer joined."""
    random = np.random.default_rng(seed)
    now, made, step = 1_000_000_000, 0, 0
    lanes = random.integers(0, N_LANES, NODES).tolist()
    while made < n:
        lengths = random.integers(60, 280, NODES).tolist()
        for node in range(min(NODES, n - made)):
            position = node % OPS_PER_LAYER
            length = lengths[node] * 32
            if position % 2 or position == 0:
                start, now = now + 64, now + 64 + length
            else:
                start += 32 * (1 + node % 7)
            name = {"KDA": 0, "MLA": 12, "MoE": 24}[family_of(node // OPS_PER_LAYER, position)] + position % 12
            yield Kernel(start, start + length, lanes[node], step, node, name)
        made += NODES
        now += 20_000
        step += 1


def capture_rows() -> list[tuple[str, int, int]]:
    """(range name, first node, end node) in capture order."""
    rows = []
    for layer in range(N_LAYERS):
        first = layer * OPS_PER_LAYER
        for begin, end in ((0, 15), (15, OPS_PER_LAYER)):
            rows.append((f"L{layer}.{family_of(layer, begin)}", first + begin, first + end))
    return rows


def write_sqlite(path: Path, n: int) -> None:
    """An nsys 2025.3-like export, node mode, capture inside the window."""
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    base.executescript(_SCHEMA)
    base.executemany("INSERT INTO StringIds VALUES (?,?)", enumerate([*NAMES, "cudaGraphLaunch_v10000"]))
    base.executemany("INSERT INTO META_DATA_EXPORT VALUES (?,?)", [("EXPORT_SCHEMA_VERSION", "3.20.3")])
    base.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,59,?,?,0)", _ranges())
    base.executemany("INSERT INTO CUDA_GRAPH_NODE_EVENTS VALUES (?,?,77,?,0,?,?)", _nodes())
    source = kernels(n)
    while rows := [_row(k) for k in islice(source, 100_000)]:
        base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (" + ",".join("?" * 28) + ")", rows)
    launches = ((i, i + 1, 0, TID, 1000 + i, len(NAMES), 0, None) for i in range(-(-n // NODES)))
    base.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?,?)", launches)
    base.commit()
    base.close()


def _ranges() -> Iterator[tuple[int, int, str, int]]:
    for name, first, end in capture_rows():
        yield 10 * first, 10 * end - 1, name, TID


def _nodes() -> Iterator[tuple[int, int, int, int, int | None]]:
    for node in range(NODES):
        yield 10 * node + 1, 10 * node + 1, TID, ORIGINAL << 32 | node, None
    for node in range(NODES):
        yield 10 * NODES, 10 * NODES, TID, GRAPH << 32 | node, ORIGINAL << 32 | node


def _row(k: Kernel) -> tuple[int | None, ...]:
    head = (k.start, k.end, 0, 1, None, 7 + k.lane, 1000 + k.step, PID, k.name, k.name, k.name, 0, 0, 64)
    return (*head, 132, 1, 1, 128, 1, 1, 0, 16384, 0, 0, k.node, 0, GRAPH << 32 | k.node, 0)


_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER,
  domainId INTEGER);
CREATE TABLE CUDA_GRAPH_NODE_EVENTS (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER,
  graphNodeId INTEGER, originalGraphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
  shortName INTEGER, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER,
  gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
  staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, localMemoryTotal INTEGER,
  gridId INTEGER, sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
"""

_EVENT = (
    '  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {tid},\n'
    '    "ts": {ts}, "dur": {dur},\n    "args": {{\n'
    '      "queued": 0, "device": 0, "context": 1, "stream": {tid}, "correlation": {corr}, "graph id": {graph},'
    ' "graph node id": {node}, "registers per thread": 64, "shared memory": 16384, "grid": [132, 1, 1],'
    ' "block": [128, 1, 1]\n    }}\n  }}'
)
_LAUNCH = (
    '  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 551, "tid": 551,\n'
    '    "ts": {ts}, "dur": 3.000,\n'
    '    "args": {{\n      "External id": 1, "cbid": 311, "correlation": {corr}\n    }}\n  }}'
)


def write_kineto(path: Path, n: int) -> None:
    """A torch 2.12-like export with graph ids."""
    head = '{\n  "schemaVersion": 1,\n  "deviceProperties": [],\n  "cupti_version": 130001,\n  "traceEvents": [\n'
    with path.open("w") as file:
        file.write(head)
        last_step = -1
        for k in kernels(n):
            event = _event(k) if k.node else _launch(k) + ",\n" + _event(k)
            file.write((",\n" if last_step >= 0 else "") + event)
            last_step = k.step
        file.write('\n  ],\n  "traceName": "synthetic"\n}\n')


def _us(ns: int) -> str:
    return f"{5_114_160_000_000 + ns // 1000}.{ns % 1000:03}"


def _launch(k: Kernel) -> str:
    return _LAUNCH.format(ts=_us(k.start - 9_000), corr=1000 + k.step)


def _event(k: Kernel) -> str:
    length = k.end - k.start
    dur = f"{length // 1000}.{length % 1000:03}"
    packed = GRAPH << 32 | k.node
    fields = {"name": NAMES[k.name], "tid": 7 + k.lane, "ts": _us(k.start), "dur": dur, "corr": 1000 + k.step}
    return _EVENT.format(**fields, graph=GRAPH, node=packed)


def write_capture_record(path: Path) -> None:
    """What the engine would have written when it captured this graph."""
    ranges = [{"name": name, "first_node": first, "end_node": end} for name, first, end in capture_rows()]
    graph = {"graph_id": ORIGINAL, "level": 1, "n_nodes": NODES, "ranges": ranges}
    path.write_text(json.dumps({"schema": "k3bench.capture/1", "engine": "synthetic", "graphs": [graph]}))
