"""The label of every operation: from graph nodes, a capture record, lane order, launch ranges or patterns.

In: a trace, its steps, a grammar, perhaps a capture. Out: `Labels`. Out of scope: times.

Exact where the trace names nodes. Where it does not (torch 2.11), positions in the capture decide, and every
operation whose family two replays disagree on is counted: one is enough to refuse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from k3bench.errors import TraceError
from k3bench.records.residency import Method
from k3bench.trace.families import CapturedGraph, CaptureRecord, Grammar, Label
from k3bench.trace.ops import NO_NODE, Ints, Nodes, Trace, dense_pairs
from k3bench.trace.ranges import innermost, only
from k3bench.trace.steps import Steps, per_op
from k3bench.trace.template import match_by_order

UNKNOWN = -1


@dataclass(frozen=True)
class Labels:
    """`of_op` indexes `table`, or is UNKNOWN."""

    of_op: Ints
    table: tuple[Label, ...]
    method: Method
    n_leg_ambiguous: int = 0


class _Table:
    """Labels by number, each once."""

    def __init__(self) -> None:
        self._ids: dict[Label, int] = {}

    def id(self, label: Label | None) -> int:
        return UNKNOWN if label is None else self._ids.setdefault(label, len(self._ids))

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(self._ids)


def attribute(trace: Trace, steps: Steps, grammar: Grammar, capture: CaptureRecord | None) -> Labels:
    """The most exact way the trace allows; patterns then fill what is left."""
    labels = _exact(trace, steps, grammar, capture)
    if any(p.kernel for p in grammar.patterns):
        labels = _by_patterns(trace, steps, grammar, labels)
    return labels


def _exact(trace: Trace, steps: Steps, grammar: Grammar, capture: CaptureRecord | None) -> Labels:
    if not (trace.ops.graph >= 0).any():
        if trace.launches.is_graph.any():
            return _by_order(trace, steps, grammar, capture)
        return _by_launch(trace, grammar)
    if len(trace.nodes.time):
        return _by_nodes(trace, grammar)
    if capture is not None:
        return _by_record(trace, grammar, capture)
    return Labels(np.full(len(trace.ops), UNKNOWN, np.int64), (), "none")


def _of_nodes(trace: Trace) -> tuple[Ints, Ints, list[tuple[int, int, int]]]:
    """(operations in graphs, node index of each, (process, graph, node) of each node index)."""
    ops = trace.ops
    index = np.flatnonzero(ops.graph >= 0)
    pair, graphs, nodes = dense_pairs(ops.graph[index], ops.node[index])
    ids, pair_of, processes = dense_pairs(pair, ops.process[index])
    keys = [(int(p), int(graphs[i]), int(nodes[i])) for i, p in zip(pair_of, processes, strict=True)]
    return index, ids, keys


def _spread(trace: Trace, index: Ints, ids: Ints, of_id: list[int]) -> Ints:
    of_op = np.full(len(trace.ops), UNKNOWN, np.int64)
    of_op[index] = np.array(of_id, np.int64)[ids]
    return of_op


def _by_nodes(trace: Trace, grammar: Grammar) -> Labels:
    """Replayed node, its original, the original's creation, the ranges open at that moment."""
    index, ids, keys = _of_nodes(trace)
    origin = _Origins(trace.nodes)
    created = [origin.creation_row(process, graph << 32 | node) for process, graph, node in keys]
    paths = _paths_at_creation(trace, grammar, sorted({row for row in created if row is not None}))
    table = _Table()
    of_id = [UNKNOWN if row is None else table.id(grammar.label(paths[row])) for row in created]
    return Labels(_spread(trace, index, ids, of_id), table.labels, "graph_nodes")


class _Origins:
    """Where a replayed node comes from. A one-hop join over all rows would double them: only clone rows count."""

    def __init__(self, nodes: Nodes) -> None:
        self._clone_of: dict[tuple[int, int], int] = {}
        self._created: dict[tuple[int, int], int] = {}
        rows = zip(nodes.process.tolist(), nodes.packed.tolist(), nodes.original.tolist(), strict=True)
        for row, (process, packed, original) in enumerate(rows):
            if original != NO_NODE:
                self._clone_of[process, packed] = original
            else:
                self._created.setdefault((process, packed), row)

    def creation_row(self, process: int, packed: int) -> int | None:
        """The creation of the first original. A replayed node that is no clone has no known origin."""
        seen = set()
        while (process, packed) in self._clone_of and packed not in seen:
            seen.add(packed)
            packed = self._clone_of[process, packed]
        return self._created.get((process, packed)) if seen and packed not in seen else None


def _paths_at_creation(trace: Trace, grammar: Grammar, rows: list[int]) -> dict[int, tuple[str, ...]]:
    """The range path (outermost first) in which each node was created."""
    nodes = trace.nodes
    if nodes.path:
        return {row: nodes.path[row] for row in rows}
    known = only(trace.ranges, grammar.knows)
    chosen = np.array(rows, np.int64)
    open_then = innermost(known, nodes.thread[chosen], nodes.time[chosen])
    return {row: tuple(known.text[r] for r in reversed(path)) for row, path in zip(rows, open_then, strict=True)}


def _by_record(trace: Trace, grammar: Grammar, capture: CaptureRecord) -> Labels:
    """Node numbers of the replay are those of the capture."""
    index, ids, keys = _of_nodes(trace)
    paths: dict[int, list[tuple[str, ...]]] = {}
    for graph in {g for _, g, _ in keys}:
        largest = max(node for _, g, node in keys if g == graph)
        n_ops = len({node for _, g, node in keys if g == graph})
        fitting = [c for c in capture.graphs if c.exec_graph_id == graph] or [
            c
            for c in capture.graphs
            if c.exec_graph_id is None and c.n_nodes > largest and len(c.device_nodes()) == n_ops
        ]
        paths[graph] = _only_one(fitting, str(graph), str(trace.source.path)).paths()
    table = _Table()
    of_id = [table.id(grammar.label(paths[g][n])) if n < len(paths[g]) else UNKNOWN for _, g, n in keys]
    return Labels(_spread(trace, index, ids, of_id), table.labels, "capture_record")


def _only_one(fitting: list[CapturedGraph], graph: str, where: str) -> CapturedGraph:
    if len(fitting) == 1 or (fitting and all(f.paths() == fitting[0].paths() for f in fitting)):
        return fitting[0]
    raise TraceError(
        f"{len(fitting)} captured graphs of the capture record fit graph {graph} of the trace",
        where=where,
        fix="give the capture record of this very run, with exec_graph_id where the engine knows it",
    )


def _by_order(trace: Trace, steps: Steps, grammar: Grammar, capture: CaptureRecord | None) -> Labels:
    """No node ids in the trace: positions in the capture, confirmed by lane order over all replays."""
    if capture is None:
        return Labels(np.full(len(trace.ops), UNKNOWN, np.int64), (), "none")
    table, of_op, n_leg_ambiguous = _Table(), np.full(len(trace.ops), UNKNOWN, np.int64), 0
    for graph, name in enumerate(steps.graphs):
        usual = set(steps.n_ops[(steps.graph == graph) & ~steps.incomplete].tolist())
        fitting = [c for c in capture.graphs if {len(c.device_nodes())} == usual]
        chosen = _only_one(fitting, f"{name} with {sorted(usual)} operations a step", str(trace.source.path))
        matched = match_by_order(trace, steps, graph, chosen, grammar)
        of_op[matched.ops] = np.array([table.id(label) for label in matched.labels], np.int64)
        n_leg_ambiguous += matched.n_leg_ambiguous
    return Labels(of_op, table.labels, "lane_ordinal", n_leg_ambiguous)


def _by_launch(trace: Trace, grammar: Grammar) -> Labels:
    """Eager operations: the ranges open when their launch was called."""
    known = only(trace.ranges, grammar.knows)
    if not known.text or not len(trace.launches.time):
        return Labels(np.full(len(trace.ops), UNKNOWN, np.int64), (), "none")
    table = _Table()
    open_then = innermost(known, trace.launches.thread, trace.launches.time)
    paths = [tuple(known.text[r] for r in reversed(path)) for path in open_then]
    labels = {path: table.id(grammar.label(path)) for path in set(paths)}
    of_call = np.array([labels[path] for path in paths], np.int64)
    return Labels(per_op(trace, of_call), table.labels, "launch_ranges")


def _by_patterns(trace: Trace, steps: Steps, grammar: Grammar, labels: Labels) -> Labels:
    """Kernel names of a recipe, step by step in start order; anchors open segments, the unnamed follow their anchor."""
    table = _Table()
    for label in labels.table:
        table.id(label)
    rows = [grammar.kernel(name) for name in trace.ops.names]
    of_op = labels.of_op.copy()
    key = dense_pairs(trace.ops.device, steps.of_op)[0]
    order = np.lexsort((trace.ops.end, trace.ops.start, key))
    current, count, last = None, dict[str, int](), -1
    for op, group in zip(order.tolist(), key[order].tolist(), strict=True):
        if group != last:
            current, count, last = None, {}, group
        row = rows[int(trace.ops.name[op])]
        if row is not None and row.anchor:
            count[row.family] = count.get(row.family, 0) + 1
            current = row.family
        family = row.family if row is not None else current
        if of_op[op] == UNKNOWN and family is not None:
            of_op[op] = table.id(Label(family, f"{family}#{count.get(family, 0)}"))
    found = (of_op != labels.of_op).any()
    return replace(labels, of_op=of_op, table=table.labels, method="patterns" if found else labels.method)
