"""Small nsys exports, made table by table."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PID = 281_000_000_000_000 & ~0xFFFFFF
TID = PID | 7
EXEC, ORIGINAL = 2, 1


class Node(NamedTuple):
    """One graph node of the little decode: relative times inside a step, lane, range path at capture."""

    start: int
    end: int
    lane: int
    path: tuple[str, ...] = ()
    name: str = "k"


class Export:
    """An export being written."""

    def __init__(
        self, path: Path, *, node_table: str = "CUDA_GRAPH_NODE_EVENTS", schema: str | None = "3.20.3"
    ) -> None:
        self.base = sqlite3.connect(path)
        self.path, self.node_table = path, node_table
        self._strings: dict[str, int] = {}
        self.table("StringIds", "id INTEGER PRIMARY KEY, value TEXT")
        if schema:
            self.table("META_DATA_EXPORT", "name, value")
            self.rows("META_DATA_EXPORT", [("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_PRODUCT_VERSION", "2025.3.2.0")])
        columns = (
            "start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName, shortName, graphNodeId"
        )
        self.table("CUPTI_ACTIVITY_KIND_KERNEL", columns)
        self.table(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, eventClass, globalTid, correlationId, nameId, returnValue"
        )
        self.table("NVTX_EVENTS", "start, end, eventType, rangeId, text, textId, globalTid, domainId")
        self.table(node_table, "start, end, eventClass, globalTid, nameId, graphNodeId, originalGraphNodeId")

    def table(self, name: str, columns: str) -> None:
        self.base.execute(f"CREATE TABLE {name} ({columns})")

    def rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self.base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row))

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self.rows("StringIds", [(self._strings[text], text)])
        return self._strings[text]

    def kernel(
        self, start: int, end: int, stream: int, *, node: int | None = None, corr: int = 1, name: str = "k"
    ) -> None:
        text = self.string(name)
        self.rows("CUPTI_ACTIVITY_KIND_KERNEL", [(start, end, 0, 1, stream, corr, PID, text, text, node)])

    def call(self, name: str, start: int, corr: int, result: int = 0) -> None:
        self.rows("CUPTI_ACTIVITY_KIND_RUNTIME", [(start, start + 1, 0, TID, corr, self.string(name), result)])

    def range(self, text: str, start: int, end: int | None) -> None:
        self.rows("NVTX_EVENTS", [(start, end, 59, None, None, self.string(text), TID, 0)])

    def capture(self, nodes: Sequence[Node], *, at: int = 0, original: int = ORIGINAL, exec_id: int = EXEC) -> None:
        """Node i is created at `at + 10 i + 5`; a range is open over the nodes that carry it, then nodes are cloned."""
        for depth in range(max((len(n.path) for n in nodes), default=0)):
            first = 0
            for i in range(1, len(nodes) + 1):
                key = nodes[first].path[: depth + 1]
                if i == len(nodes) or nodes[i].path[: depth + 1] != key:
                    if len(key) > depth:
                        self.range(key[depth], at + 10 * first + depth, at + 10 * i - 1 - depth)
                    first = i
        created = [(at + 10 * i + 5, at + 10 * i + 5, 77, TID, 0, original << 32 | i, None) for i in range(len(nodes))]
        end = at + 10 * len(nodes)
        cloned = [(end, end, 77, TID, 0, exec_id << 32 | i, original << 32 | i) for i in range(len(nodes))]
        self.rows(self.node_table, created + cloned)

    def replay(
        self, nodes: Sequence[Node], starts: Sequence[int], *, exec_id: int = EXEC, first_corr: int = 1000
    ) -> None:
        """Launch the graph at every start."""
        for i, start in enumerate(starts):
            self.call("cudaGraphLaunch_v10000", start - 500, first_corr + i)
            for number, n in enumerate(nodes):
                packed = exec_id << 32 | number
                self.kernel(start + n.start, start + n.end, n.lane, node=packed, corr=first_corr + i, name=n.name)

    def done(self) -> Path:
        self.base.commit()
        self.base.close()
        return self.path


def decode(path: Path, nodes: Sequence[Node], starts: Sequence[int] = (100_000, 200_000, 300_000), **more: Any) -> Path:
    """Capture and replays in one export, in place of an older one."""
    path.unlink(missing_ok=True)
    export = Export(path, **more)
    export.capture(nodes)
    export.replay(nodes, starts)
    return export.done()


#: two segments, the KDA one with a fork: 10 us main leg, 6 us side leg with a gap of 1 us
SERIAL = [
    Node(0, 10_000, 7, ("L0.KDA", "fork.stage.main"), "gemm"),
    Node(10_500, 12_500, 7, ("L0.KDA", "fork.stage.side"), "copy"),
    Node(13_500, 16_500, 7, ("L0.KDA", "fork.stage.side"), "mix"),
    Node(17_000, 20_000, 7, ("L0.KDA",), "core"),
    Node(20_500, 25_500, 7, ("L0.MoE",), "gemm"),
]
FORKED = [
    SERIAL[0],
    Node(1_000, 3_500, 8, ("L0.KDA", "fork.stage.side"), "copy"),
    Node(4_000, 7_000, 8, ("L0.KDA", "fork.stage.side"), "mix"),
    Node(10_500, 13_500, 7, ("L0.KDA",), "core"),
    Node(14_000, 19_000, 7, ("L0.MoE",), "gemm"),
]
