"""Replays without node ids (Kineto of torch 2.11) against the order of capture.

In: steps of one graph, its captured nodes in creation order. Out: a label for every operation, or a refusal with the
count of those that stay ambiguous. Out of scope: graphs with node ids.

Segments and forks are joined before what follows them, so in every replay the operations of a block come before those
of the next block, whatever the lanes. Within a block the order in time differs from replay to replay; (lane, ordinal
in lane) does not. So time decides the block, and the lane order must decide the same in every replay. Within a block
a lane that holds the kernels of one leg in the order of capture is that leg; a block on one lane ran as captured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, permutations

import numpy as np

from k3bench.errors import TraceError
from k3bench.trace.families import CapturedGraph, CapturedNode, CapturedRange, CaptureRecord, Grammar, Label
from k3bench.trace.names import short_name
from k3bench.trace.ops import Ints, Launches, Ops, Ranges, Trace
from k3bench.trace.ranges import innermost
from k3bench.trace.steps import Steps

_FIX = (
    "use nsys (`--cuda-graph-trace=node`), the cupti collector, or torch 2.12 or later, whose traces name graph nodes"
)


@dataclass(frozen=True)
class Matched:
    """Labels of the operations in `ops`, in that order."""

    ops: Ints
    labels: list[Label | None]
    n_leg_ambiguous: int


@dataclass(frozen=True)
class _Block:
    """Consecutive nodes that are joined before the next block begins."""

    #: family, segment and outermost fork, the leg left open
    label: Label | None
    #: per node: its full label, and its kernel name where the capture knows it
    full: tuple[Label | None, ...]
    names: tuple[str | None, ...]

    def of(self, lanes: list[list[str]]) -> list[Label | None]:
        """Full labels of the kernel names of a replay, lane after lane; the leg stays open where two ways fit."""
        ways = [way for way in self._ways(len(lanes)) if self._spells(way, lanes)]
        if len(ways) == 1:
            return [self.full[node] for nodes in ways[0] for node in nodes]
        return [self._by_name(name) for names in lanes for name in names]

    def _ways(self, n_lanes: int) -> list[tuple[list[int], ...]]:
        """Which nodes may lie on which lane: all on one, or each leg of the outermost fork on its own."""
        everything = list(range(len(self.full)))
        if n_lanes == 1 or self.label is None:
            return [(everything,)]
        legs = {leg: [i for i in everything if (x := self.full[i]) and x.legs[:1] == (leg,)] for leg in self._legs()}
        return list(permutations(legs.values()))

    def _legs(self) -> list[tuple[str, str]]:
        return sorted({label.legs[0] for label in self.full if label is not None and label.legs})

    def _spells(self, way: tuple[list[int], ...], lanes: list[list[str]]) -> bool:
        return len(way) == len(lanes) and all(
            len(nodes) == len(names) and all(self._may_be(i, name) for i, name in zip(nodes, names, strict=True))
            for nodes, names in zip(way, lanes, strict=True)
        )

    def _may_be(self, node: int, name: str) -> bool:
        known = self.names[node]
        return known is None or _fits(known, name)

    def _by_name(self, name: str) -> Label | None:
        """The full label, where the block has one only or the kernel's name has one only."""
        fitting = {full for i, full in enumerate(self.full) if self._may_be(i, name)}
        return fitting.pop() if len(fitting) == 1 else self.label


def match_by_order(trace: Trace, steps: Steps, graph: int, captured: CapturedGraph, grammar: Grammar) -> Matched:
    """Label the complete steps of one graph. Raises `TraceError` with a count where that cannot be done surely."""
    blocks = _blocks(captured, grammar)
    block_of = np.repeat(np.arange(len(blocks)), [len(b.full) for b in blocks])
    chosen = np.flatnonzero((steps.graph == graph) & ~steps.incomplete)
    by_time, by_lane = _orders(trace.ops, steps, chosen, len(block_of))
    position = np.empty(len(trace.ops), np.int64)
    position[by_time.ravel()] = np.tile(block_of, len(chosen))
    n_unsure = _disagreeing(trace.ops, by_lane, position) + _crossing(trace.ops, by_time, block_of)
    n_unsure += _misnamed(trace.ops, by_time[:1], blocks)
    if n_unsure:
        raise TraceError(
            f"{n_unsure} of {len(block_of)} operations a step cannot be matched surely to graph {steps.graphs[graph]}",
            where=str(trace.source.path),
            fix=_FIX,
        )
    operations = by_lane.ravel()
    labels = _of_slots(trace.ops, by_lane[0], position, blocks) if len(by_lane) else []
    unsure = sum(label is not None and any(not leg for _, leg in label.legs) for label in labels)
    return Matched(operations, labels * len(by_lane), unsure)


def _of_slots(ops: Ops, row: Ints, position: Ints, blocks: list[_Block]) -> list[Label | None]:
    """Labels of one replay in lane order; all replays have the same names on the same lanes by now."""
    labels: list[Label | None] = [None] * len(row)
    for number, block in enumerate(blocks):
        mine = np.flatnonzero(position[row] == number)
        held = [list(group) for _, group in groupby(mine.tolist(), key=lambda slot: int(ops.lane[row[slot]]))]
        names = [[ops.names[ops.name[row[slot]]] for slot in slots] for slots in held]
        for slot, label in zip(mine.tolist(), block.of(names), strict=True):
            labels[slot] = label
    return labels


def _blocks(captured: CapturedGraph, grammar: Grammar) -> list[_Block]:
    paths, nodes = captured.paths(), captured.nodes
    entries = [(grammar.label(paths[i]), _name(nodes[i]) if nodes else None) for i in captured.device_nodes()]
    blocks = []
    for key, group in groupby(entries, key=lambda e: _open_leg(e[0])):
        members = list(group)
        blocks.append(_Block(key, tuple(label for label, _ in members), tuple(name for _, name in members)))
    return blocks


#: how Kineto begins the names of copies and sets, which have no name in a graph
_COPIES = {"memcpy": "Memcpy", "memset": "Memset"}


def _name(node: CapturedNode) -> str | None:
    return _COPIES.get(node.kind, node.name)


def _open_leg(label: Label | None) -> Label | None:
    """The label up to the outermost fork, without saying which leg."""
    return label if label is None or label.fork is None else replace(label, legs=((label.fork, ""),))


def _orders(ops: Ops, steps: Steps, chosen: Ints, width: int) -> tuple[Ints, Ints]:
    """(steps x operations by start, steps x operations by lane then start)."""
    mine = np.flatnonzero(np.isin(steps.of_op, chosen))
    by_time = mine[np.lexsort((ops.end[mine], ops.start[mine], steps.of_op[mine]))]
    by_lane = mine[np.lexsort((ops.end[mine], ops.start[mine], ops.lane[mine], steps.of_op[mine]))]
    return by_time.reshape(-1, width), by_lane.reshape(-1, width)


def _disagreeing(ops: Ops, by_lane: Ints, position: Ints) -> int:
    """Slots (lane, ordinal in lane) that have another lane, name or block in some replay."""
    unsure = np.zeros(by_lane.shape[1], np.bool_)
    for column in (ops.lane, ops.name, position):
        values = column[by_lane]
        unsure |= (values != values[0]).any(axis=0)
    return int(unsure.sum())


def _crossing(ops: Ops, by_time: Ints, block_of: Ints) -> int:
    """Operations that began, on another lane, before a block ended that they depend on: the blocks are not joined."""
    unsure = np.zeros(by_time.shape[1], np.bool_)
    for row in by_time:
        end, lane = ops.end[row], ops.lane[row]
        latest = np.maximum.accumulate(end)
        who = lane[np.maximum.accumulate(np.where(end == latest, np.arange(len(row)), 0))]
        first = np.flatnonzero(np.diff(block_of, prepend=-1) > 0)
        before = first[block_of[first] > 0] - 1
        late = (ops.start[row[before + 1]] < latest[before]) & (lane[before + 1] != who[before])
        unsure[before[late] + 1] = True
    return int(unsure.sum())


def _misnamed(ops: Ops, by_time: Ints, blocks: list[_Block]) -> int:
    """Operations whose name is none of their block's, where the capture knows names."""
    at, count = 0, 0
    for block in blocks:
        names = [ops.names[n] for n in ops.name[by_time[0, at : at + len(block.full)]].tolist()] if len(by_time) else []
        at += len(block.full)
        if any(n is None for n in block.names):
            continue
        count += sum(not any(_fits(n or "", name) for n in block.names) for name in names)
    return count


def _fits(captured: str, replayed: str) -> bool:
    """Equal names, or a mangled name that spells the demangled one's function."""
    if captured in _COPIES.values():
        return replayed.lower().startswith(captured.lower())
    if captured == replayed:
        return True
    short = short_name(replayed)
    return captured.startswith("_Z") and f"{len(short)}{short}" in captured


def record_of_calls(calls: Launches, ranges: Ranges, held: set[int]) -> CaptureRecord:
    """A capture trace holds no kernels, only launch calls: their order is the order of the nodes."""
    captured = [i for i in np.argsort(calls.time, kind="stable").tolist() if not calls.is_graph[i]]
    captured = [i for i in captured if int(calls.correlation[i]) not in held]
    chosen = np.array(captured, np.int64)
    spans: dict[int, list[int]] = {}
    for node, path in enumerate(innermost(ranges, calls.thread[chosen], calls.time[chosen])):
        for index in path:
            spans.setdefault(index, []).append(node)
    found = tuple(CapturedRange(ranges.text[r], nodes[0], nodes[-1] + 1) for r, nodes in sorted(spans.items()))
    nodes = tuple(CapturedNode("kernel") for _ in captured)
    return CaptureRecord("k3bench.capture/1", (CapturedGraph(len(captured), found, nodes=nodes),))
