"""Decode steps: which operations one graph launch (or one eager step range) put on a device, and which steps count.

In: a trace. Out: the step of every operation, and one row a step. Out of scope: families, times of overlap.

Warm-up and incomplete steps are dropped by rule and counted; graphs are never pooled, devices neither.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3bench.trace.families import is_step
from k3bench.trace.ops import NONE, Ints, Ops, Trace, dense_pairs
from k3bench.trace.ranges import innermost, only

NO_STEP = -1


@dataclass(frozen=True)
class Steps:
    """`of_op` gives the step of every operation or NO_STEP; the other arrays have one entry a step, by first start."""

    of_op: Ints
    device: Ints
    #: index into `graphs`
    graph: Ints
    n_ops: Ints
    start: Ints
    end: Ints
    incomplete: NDArray[np.bool_]
    graphs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.device)

    def kept(self, warm_up: int) -> NDArray[np.bool_]:
        """Complete steps but the first `warm_up` of every graph on every device."""
        keep = ~self.incomplete
        for key in set(zip(self.device.tolist(), self.graph.tolist(), strict=True)):
            mine = np.flatnonzero(keep & (self.device == key[0]) & (self.graph == key[1]))
            keep[mine[:warm_up]] = False
        return keep


def steps_of(trace: Trace) -> Steps:
    """Steps by graph launch; by step ranges where the trace has no graph launch at all."""
    ops = trace.ops
    launched = _launched_by_graph(trace)
    if launched.any():
        return _grouped(ops, launched, ops.correlation)
    call = _step_range_of_op(trace)
    return _grouped(ops, call >= 0, call)


def _launched_by_graph(trace: Trace) -> NDArray[np.bool_]:
    """With node ids, operations that have one; without (Kineto of torch 2.11), those of a graph launch call."""
    in_graph: NDArray[np.bool_] = trace.ops.graph >= 0
    calls = trace.launches
    if in_graph.any() or not calls.is_graph.any():
        return in_graph
    return np.isin(trace.ops.correlation, calls.correlation[calls.is_graph])


def _step_range_of_op(trace: Trace) -> Ints:
    """The step range that was open when an eager operation was launched, or -1."""
    steps = only(trace.ranges, is_step)
    if not len(steps.text) or not len(trace.launches.time):
        return np.full(len(trace.ops), NO_STEP, np.int64)
    found = innermost(steps, trace.launches.thread, trace.launches.time)
    return per_op(trace, np.array([path[0] if path else NO_STEP for path in found], np.int64))


def per_op(trace: Trace, of_call: Ints) -> Ints:
    """A value of every launch call, looked up for every operation; -1 where the call is unknown."""
    calls, ops = trace.launches, trace.ops
    both, _, _ = dense_pairs(
        np.concatenate((calls.process, ops.process)), np.concatenate((calls.correlation, ops.correlation))
    )
    table = np.full(int(both.max()) + 1 if len(both) else 0, -1, np.int64)
    table[both[: len(calls.time)]] = of_call
    return table[both[len(calls.time) :]]


def _grouped(ops: Ops, mask: NDArray[np.bool_], launch: Ints) -> Steps:
    of_op = np.full(len(ops), NO_STEP, np.int64)
    index = np.flatnonzero(mask)
    if not len(index):
        return Steps(of_op, NONE, NONE, NONE, NONE, NONE, np.empty(0, np.bool_), ())
    ids, _, _ = dense_pairs(dense_pairs(ops.device[index], ops.process[index])[0], launch[index])
    ids, _, _ = dense_pairs(ids, ops.graph[index])
    by_step = np.argsort(ids, kind="stable")
    edges = np.flatnonzero(np.diff(ids[by_step], prepend=-1))
    sorted_index = index[by_step]
    start = np.minimum.reduceat(ops.start[sorted_index], edges)
    order = np.argsort(start, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    of_op[index] = rank[ids]
    first = sorted_index[edges][order]
    n_ops = np.diff(np.append(edges, len(index)))[order]
    graph, graphs = _graph_names(ops, of_op, sorted_index, edges, order, first)
    end = np.maximum.reduceat(ops.end[sorted_index], edges)[order]
    device = ops.device[first]
    incomplete = _incomplete(device, graph, n_ops)
    return Steps(of_op, device, graph, n_ops, start[order], end, incomplete, graphs)


def _graph_names(
    ops: Ops, of_op: Ints, by_step: Ints, edges: Ints, order: Ints, first: Ints
) -> tuple[Ints, tuple[str, ...]]:
    """Executable graph ids where known. Else a step is told from others by what it runs, whatever the order."""
    if (ops.graph[first] >= 0).all():
        both, processes, ids = dense_pairs(ops.process[first], ops.graph[first])
        several = len(np.unique(processes)) > 1
        names = [f"{g}" if not several else f"{p}:{g}" for p, g in zip(processes.tolist(), ids.tolist(), strict=True)]
        return both, tuple(names)
    bounds = np.append(edges, len(by_step))
    contents = [Counter(ops.name[by_step[bounds[i] : bounds[i + 1]]].tolist()) for i in order.tolist()]
    return _by_content(contents)


def _by_content(contents: list[Counter[int]]) -> tuple[Ints, tuple[str, ...]]:
    """Steps of equal content are one graph; a single step that is part of another graph's content is a cut-off one."""
    keys = [tuple(sorted(c.items())) for c in contents]
    seen = Counter(keys)
    whole = [k for k, n in seen.most_common()]
    home: dict[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = {}
    for key in whole:
        larger = [w for w in whole if w is not key and seen[w] > seen[key] and Counter(dict(key)) < Counter(dict(w))]
        home[key] = larger[0] if seen[key] == 1 and larger else key
    distinct = sorted({home[k] for k in keys})
    names = tuple("content-" + hashlib.sha256(repr(k).encode()).hexdigest()[:8] for k in distinct)
    position = {k: i for i, k in enumerate(distinct)}
    return np.array([position[home[k]] for k in keys], np.int64), names


def _incomplete(device: Ints, graph: Ints, n_ops: Ints) -> NDArray[np.bool_]:
    """Steps whose operation count is not the most frequent one (the larger of equals) of their graph and device."""
    both, _, _ = dense_pairs(device, graph)
    result = np.zeros(len(both), np.bool_)
    for key in range(int(both.max()) + 1):
        mine = both == key
        counts = Counter(n_ops[mine].tolist())
        usual = max(counts, key=lambda n: (counts[n], n))
        result[mine] = n_ops[mine] != usual
    return result


def changing_nodes(ops: Ops) -> int:
    """Graph nodes that ran under more than one kernel name: the graph was updated in place."""
    known = np.flatnonzero(ops.graph >= 0)
    if not len(known):
        return 0
    node, _, _ = dense_pairs(ops.graph[known], ops.node[known])
    node, distinct_nodes, _ = dense_pairs(node, ops.process[known])
    _, node_of_each_name, _ = dense_pairs(node, ops.name[known])
    return len(node_of_each_name) - len(distinct_nodes)
