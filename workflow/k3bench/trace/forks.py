"""The legs of forks in the kept steps: spans, busy times, and how far they ran side by side.

In: labelled operations of one graph. Out: `ForkSpan` rows. Out of scope: before against after (`headroom.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import ForkSpan
from k3bench.trace.attribution import UNKNOWN, Labels
from k3bench.trace.ops import Ints, Trace, dense_pairs
from k3bench.trace.steps import Steps
from k3bench.trace.timeline import sweep, union

_LEGS = ("main", "side")


def fork_spans(trace: Trace, steps: Steps, labels: Labels, kept: Ints) -> tuple[ForkSpan, ...]:
    """One row per (family, fork) over the given steps. Instances with one leg only are no forks and do not count.

    A fork with operations whose leg cannot be told has no row: a span over the others would be too short.
    """
    unsure = {(fork, x.family) for x in labels.table for fork, leg in x.legs if not leg}
    known = {(fork, x.family, x.segment) for x in labels.table for fork, leg in x.legs if leg}
    places = sorted(place for place in known if place[:2] not in unsure)
    if not places or not len(kept):
        return ()
    instances = {place: i for i, place in enumerate(places)}
    position = np.full(len(steps) + 1, UNKNOWN, np.int64)
    position[kept] = np.arange(len(kept))
    mine, instance, leg = _memberships(labels, instances)
    step = position[steps.of_op[mine]]
    inside = step >= 0
    if not inside.any():
        return ()
    rows = _Rows(trace, mine[inside], step[inside], instance[inside], leg[inside])
    kinds = sorted({(family, fork) for fork, family, _ in places})
    of_instance: Ints = np.array([kinds.index((family, fork)) for fork, family, _ in places], np.int64)
    return tuple(rows.fork(np.asarray(of_instance == k), *kinds[k], len(kept)) for k in range(len(kinds)))


def _memberships(labels: Labels, instances: dict[tuple[str, str, str], int]) -> tuple[Ints, Ints, Ints]:
    """(operation, fork instance, leg), one row per fork an operation is in: forks may be nested."""
    parts = []
    for depth in range(max(len(label.legs) for label in labels.table)):
        instance = np.full(len(labels.table) + 1, UNKNOWN, np.int64)
        leg = np.zeros(len(labels.table) + 1, np.int64)
        for i, label in enumerate(labels.table):
            fork, side = label.legs[depth] if len(label.legs) > depth else ("", "")
            if (fork, label.family, label.segment) in instances:
                instance[i], leg[i] = instances[fork, label.family, label.segment], _LEGS.index(side)
        mine = np.flatnonzero(instance[labels.of_op] >= 0)
        parts.append((mine, instance[labels.of_op[mine]], leg[labels.of_op[mine]]))
    mine, instance, leg = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return mine, instance, leg


class _Rows:
    """Spans per (step, instance), computed once for all forks."""

    def __init__(self, trace: Trace, mine: Ints, step: Ints, instance: Ints, leg: Ints) -> None:
        start, end, lane = trace.ops.start[mine], trace.ops.end[mine], trace.ops.lane[mine]
        pair, _, self.instance = dense_pairs(step, instance)
        n = len(self.instance)
        two = pair * 2 + leg
        first, last = _bounds(two, start, end, 2 * n)
        held: Ints = np.bincount(two, minlength=2 * n).reshape(n, 2)
        self.both_legs: NDArray[np.bool_] = np.minimum(held[:, 0], held[:, 1]) > 0
        spans = np.where(held > 0, (last - first).reshape(n, 2), 0)
        busy = union(two, start, end, 2 * n).total_ns(2 * n).reshape(n, 2)
        shorter = spans.argmin(axis=1)
        self.shorter_span, self.shorter_busy = spans[np.arange(n), shorter], busy[np.arange(n), shorter]
        begin, finish = _bounds(pair, start, end, n)
        self.fork_span = finish - begin
        swept = sweep(pair, lane, start, end, n_groups=n, n_lanes=len(trace.ops.lanes))
        self.overlapped = swept.residency_ns()

    def fork(self, chosen: NDArray[np.bool_], family: str, fork: str | None, n_steps: int) -> ForkSpan:
        mine = chosen[self.instance] & self.both_legs

        def per_step(values: Ints) -> float:
            return int(values[mine].sum()) / n_steps

        return ForkSpan(
            fork=fork or "",
            family=family,
            n_instances_per_step=int(mine.sum()) / n_steps,
            shorter_leg_span_ns_per_step=per_step(self.shorter_span),
            shorter_leg_busy_ns_per_step=per_step(self.shorter_busy),
            fork_span_ns_per_step=per_step(self.fork_span),
            overlapped_ns_per_step=per_step(self.overlapped),
        )


def _bounds(group: Ints, start: Ints, end: Ints, n: int) -> tuple[Ints, Ints]:
    """(first start, last end) of every group; zeros where a group is empty."""
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order], prepend=-1))
    first, last = np.zeros(n, np.int64), np.zeros(n, np.int64)
    present = group[order][edges]
    first[present] = np.minimum.reduceat(start[order], edges)
    last[present] = np.maximum.reduceat(end[order], edges)
    return first, last
