"""What every reader hands over: device operations as columns, and what is known about where they came from.

In: arrays from a reader. Out: `Trace`. Out of scope: reading files (`readers/`), families, steps, times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import TraceWarning

Ints = NDArray[np.int64]
NONE: Ints = np.empty(0, np.int64)
Format = Literal["nsys_sqlite", "kineto", "cupti"]
KINDS = ("kernel", "memcpy", "memset")
KERNEL, MEMCPY, MEMSET = range(3)
#: `graph` and `node` of an operation that no graph node is known for
NO_NODE = -1


@dataclass(frozen=True)
class Ops:
    """Device operations; every array has one entry per operation. Times are integer ns on the trace's own clock."""

    start: Ints
    end: Ints
    device: Ints
    #: index into `lanes`: a lane is a stream of a context of a process
    lane: Ints
    kind: NDArray[np.int8]
    #: index into `names`
    name: Ints
    process: Ints
    correlation: Ints
    #: executable graph and node number in it, or NO_NODE
    graph: Ints
    node: Ints
    lanes: tuple[tuple[int, int, int], ...]
    names: tuple[str, ...]
    #: display name of each name; the same length as `names`
    short_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def bare(self, index: Ints | NDArray[np.bool_]) -> Ops:
        """The operations at `index` with what times need: start, end, lane, kind, name. The rest is empty."""
        return Ops(
            start=self.start[index],
            end=self.end[index],
            device=NONE,
            lane=self.lane[index],
            kind=self.kind[index],
            name=self.name[index],
            process=NONE,
            correlation=NONE,
            graph=NONE,
            node=NONE,
            lanes=self.lanes,
            names=self.names,
            short_names=self.short_names,
        )


@dataclass(frozen=True)
class Ranges:
    """Named spans on host threads (NVTX push/pop, record_function). An unclosed one ends at the largest integer."""

    thread: Ints
    start: Ints
    end: Ints
    text: tuple[str, ...]


@dataclass(frozen=True)
class Nodes:
    """Graph nodes as created or cloned (`original` is NO_NODE for a created one). Ids are packed graph<<32|node."""

    process: Ints
    thread: Ints
    time: Ints
    packed: Ints
    original: Ints
    #: range path open at creation, where the collector wrote it itself (cupti); else empty
    path: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Launches:
    """API calls that put work on a device: one row a call."""

    process: Ints
    correlation: Ints
    thread: Ints
    time: Ints
    is_graph: NDArray[np.bool_]
    #: eager kernel launches, as far as the format tells them from launches into a capture
    is_kernel: NDArray[np.bool_]


@dataclass(frozen=True)
class Source:
    """Where the trace came from."""

    path: Path
    format: Format
    sha256: str
    size_bytes: int
    tool_version: str | None = None
    schema_version: str | None = None
    cupti_version: str | None = None
    gpu: str | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Trace:
    """One trace file, read."""

    source: Source
    ops: Ops
    launches: Launches
    ranges: Ranges
    nodes: Nodes
    n_negative: int = 0
    n_duplicates: int = 0
    n_sub_ns: int = 0
    warnings: tuple[TraceWarning, ...] = field(default=())


NO_RANGES = Ranges(NONE, NONE, NONE, ())
NO_NODES = Nodes(NONE, NONE, NONE, NONE, NONE)
NO_LAUNCHES = Launches(NONE, NONE, NONE, NONE, np.empty(0, np.bool_), np.empty(0, np.bool_))


def dense(values: Ints) -> tuple[Ints, Ints]:
    """(ids, distinct values) so that values == distinct[ids]; linear where the values lie close together."""
    if not len(values):
        return NONE, NONE
    low, high = int(values.min()), int(values.max())
    if low == high:
        return np.zeros(len(values), np.int64), values[:1].copy()
    if high - low > 4 * len(values) + 1_000_000:
        distinct, ids = np.unique(values, return_inverse=True)
        return ids.astype(np.int64), distinct
    seen = np.zeros(high - low + 1, np.bool_)
    seen[values - low] = True
    distinct = np.flatnonzero(seen)
    table = np.zeros(len(seen), np.int64)
    table[distinct] = np.arange(len(distinct))
    return table[values - low], distinct + low


def dense_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """(ids, first of each, second of each) of the distinct pairs."""
    a, firsts = dense(first)
    b, seconds = dense(second)
    ids, packed = dense(a * max(len(seconds), 1) + b)
    return ids, firsts[packed // max(len(seconds), 1)], seconds[packed % max(len(seconds), 1)]


def count_duplicates(ops: Ops) -> int:
    """Operations equal to an earlier one in device, lane, start, end, name and correlation; they stay in."""
    if len(ops) < 2:
        return 0
    order = np.argsort(ops.start, kind="stable")
    same_start = np.flatnonzero(ops.start[order][1:] == ops.start[order][:-1])
    if not len(same_start):
        return 0
    suspects = order[_with_next(same_start, len(order))]
    columns = [c[suspects] for c in (ops.start, ops.end, ops.device, ops.lane, ops.name, ops.correlation)]
    mixed = _mixed(columns)
    by_hash = np.argsort(mixed, kind="stable")
    alike = np.flatnonzero(mixed[by_hash][1:] == mixed[by_hash][:-1])
    if not len(alike):
        return 0
    again = by_hash[_with_next(alike, len(by_hash))]
    return len(again) - len(set(zip(*(c[again].tolist() for c in columns), strict=True)))


def _with_next(index: Ints, n: int) -> NDArray[np.bool_]:
    """A mask of these positions and the ones right after them."""
    mask = np.zeros(n, np.bool_)
    mask[index] = mask[index + 1] = True
    return mask


def _mixed(columns: list[Ints]) -> Ints:
    """One integer a row; equal rows have equal integers (the reverse is checked afterwards)."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed.view(np.int64)
