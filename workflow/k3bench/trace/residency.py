"""Times of one trace: per device and window, and per graph, step and family. Exact integers throughout.

In: a read trace with its steps and labels. Out: `DeviceResidency` rows. Out of scope: reading, attribution, headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import (
    UNATTRIBUTED,
    CrossFamily,
    DeviceResidency,
    FamilyResidency,
    GraphResidency,
    KernelHidden,
    LaneTime,
    Measure,
    WindowKernel,
)
from k3bench.trace import timeline
from k3bench.trace.attribution import UNKNOWN, Labels
from k3bench.trace.ops import KERNEL, KINDS, Ints, Ops, Trace, dense, dense_pairs
from k3bench.trace.steps import NO_STEP, Steps
from k3bench.trace.timeline import Spans, Sweep, sweep

_MAX_WINDOW_KERNELS = 200
#: below this every partial sum of integers is exact in a double; half, because the total itself is rounded
_EXACT_IN_FLOAT = 2.0**52
_Kind = Literal["kernel", "memcpy", "memset"]


@dataclass(frozen=True)
class Swept:
    """A sweep with what it was made of: `sets` of operations per group."""

    sweep: Sweep
    n_ops: Ints
    duration_ns: Ints

    @staticmethod
    def of(ops: Ops, group: Ints, n_groups: int) -> Swept:
        swept = sweep(group, ops.lane, ops.start, ops.end, n_groups=n_groups, n_lanes=len(ops.lanes))
        return Swept(swept, np.bincount(group, minlength=n_groups), sums(group, ops.end - ops.start, n_groups))

    def measure(self, groups: Ints, *, per_step: bool = False) -> Measure:
        """The groups together; each is one kept step where `per_step`."""
        busy, residency, conc2 = (t[groups] for t in self._times())
        steps = {
            "busy_per_step_ns": tuple(busy.tolist()),
            "residency_per_step_ns": tuple(residency.tolist()),
            "conc2_per_step_ns": tuple(conc2.tolist()),
        }
        more = [int(t[groups].sum()) for t in self.sweep.more_lanes_ns]
        while more and more[-1] == 0:
            more.pop()
        return Measure(
            n_ops=int(self.n_ops[groups].sum()),
            busy_ns=int(busy.sum()),
            residency_ns=int(residency.sum()),
            at_least_3_lanes_up_ns=tuple(more),
            conc2_ns=int(conc2.sum()),
            same_lane_ns=int(self.sweep.same_lane_ns()[groups].sum()),
            sum_duration_ns=int(self.duration_ns[groups].sum()),
            **(steps if per_step else {}),
        )

    def _times(self) -> tuple[Ints, Ints, Ints]:
        return self.sweep.busy_ns(), self.sweep.residency_ns(), self.sweep.conc2_ns()


def sums(group: Ints, value: Ints, n_groups: int) -> Ints:
    """Exact integer sums per group."""
    total = float(np.abs(value).sum(dtype=np.float64)) if len(value) else 0.0
    if total < _EXACT_IN_FLOAT:
        return np.bincount(group, weights=value, minlength=n_groups).astype(np.int64)
    order = np.argsort(group, kind="stable")
    running = np.concatenate(([0], np.cumsum(value[order])))
    edges = np.searchsorted(group[order], np.arange(n_groups + 1))
    result: Ints = running[edges[1:]] - running[edges[:-1]]
    return result


def _both(ops: Ops, group: Ints, n_groups: int) -> tuple[Swept, Swept]:
    """(all operations, kernels only)."""
    everything = Swept.of(ops, group, n_groups)
    kernel = ops.kind == KERNEL
    if kernel.all():
        return everything, everything
    return everything, Swept.of(ops.bare(kernel), group[kernel], n_groups)


def measure(trace: Trace, steps: Steps, labels: Labels, warm_up: int) -> tuple[DeviceResidency, ...]:
    """Every device alone: the window, then its graphs."""
    windows = _windows(trace.ops)
    kept = _Kept.of(trace, steps, labels, warm_up)
    return tuple(
        row.model_copy(
            update={"graphs": kept.graphs(row.device), "cross_step_overlap_ns": kept.cross_step_overlap_ns(row.device)}
        )
        for row in windows
    )


def _windows(ops: Ops) -> list[DeviceResidency]:
    of_op, devices = dense(ops.device)
    everything, kernels = _both(ops, of_op, len(devices))
    names = _window_kernels(ops, everything.sweep, of_op)
    rows = []
    for i, device in enumerate(devices.tolist()):
        mine = of_op == i if len(devices) > 1 else np.ones(len(ops), np.bool_)
        rows.append(
            DeviceResidency(
                device=device,
                span_ns=_span(ops, mine),
                span_kernels_only_ns=_span(ops, mine & (ops.kind == KERNEL)),
                lanes=_lanes(ops, everything.sweep, kernels.sweep, i),
                window=everything.measure(np.array([i])),
                window_kernels_only=kernels.measure(np.array([i])),
                kernels=names[i],
            )
        )
    return rows


def _span(ops: Ops, mask: NDArray[np.bool_]) -> int:
    return int(ops.end[mask].max() - ops.start[mask].min()) if mask.any() else 0


def _lanes(ops: Ops, everything: Sweep, kernels: Sweep, group: int) -> tuple[LaneTime, ...]:
    n_lanes, rows = len(ops.lanes), everything.n_groups * len(ops.lanes)
    busy, kernel_busy = (s.lanes.total_ns(rows)[group * n_lanes : (group + 1) * n_lanes] for s in (everything, kernels))
    used = np.flatnonzero(busy).tolist()
    return tuple(
        LaneTime(lane=lane_name(ops.lanes[i]), busy_ns=int(busy[i]), kernels_busy_ns=int(kernel_busy[i])) for i in used
    )


def lane_name(lane: tuple[int, int, int]) -> str:
    """process/context/stream; no process in formats of one process, `-` for an unknown context."""
    process, context, stream = lane
    tail = f"{'-' if context < 0 else context}/{stream}"
    return f"{process}/{tail}" if process else tail


@dataclass(frozen=True)
class _ByName:
    """Sums per (group, kernel name)."""

    group: Ints
    name: Ints
    kind: Ints
    n: Ints
    columns: tuple[Ints, ...]

    @staticmethod
    def of(ops: Ops, group: Ints, *columns: Ints) -> _ByName:
        ids, groups, names = dense_pairs(group, ops.name)
        kind = np.zeros(len(groups), np.int64)
        kind[ids] = ops.kind
        n = np.bincount(ids, minlength=len(groups))
        return _ByName(groups, names, kind, n, tuple(sums(ids, c, len(groups)) for c in columns))


def _window_kernels(ops: Ops, swept: Sweep, group: Ints) -> list[tuple[WindowKernel, ...]]:
    other, anyhow = (s.covered_ns(group, ops.start, ops.end) for s in (swept.two_lanes, swept.two_ops))
    rows = _ByName.of(ops, group, ops.end - ops.start, other, anyhow)
    found: list[list[WindowKernel]] = [[] for _ in range(swept.n_groups)]
    for i in np.lexsort((rows.name, -rows.columns[0])).tolist():
        mine = found[int(rows.group[i])]
        if len(mine) < _MAX_WINDOW_KERNELS:
            mine.append(
                WindowKernel(
                    name=ops.names[rows.name[i]],
                    short_name=ops.short_names[rows.name[i]],
                    kind=kind_name(rows.kind[i]),
                    n=int(rows.n[i]),
                    duration_ns=int(rows.columns[0][i]),
                    hidden_other_lane_ns=int(rows.columns[1][i]),
                    hidden_any_op_ns=int(rows.columns[2][i]),
                )
            )
    return [tuple(rows) for rows in found]


def kind_name(value: int) -> _Kind:
    return cast(_Kind, KINDS[value])


@dataclass(frozen=True)
class _Kept:
    """The operations of the kept steps, numbered step by step and family by family."""

    ops: Ops
    steps: Steps
    #: kept steps, and of each operation the position among them
    kept: Ints
    step: Ints
    family: Ints
    #: segment number of each operation, UNKNOWN for unattributed
    segment: Ints
    families: tuple[str, ...]
    warm_up: int

    @staticmethod
    def of(trace: Trace, steps: Steps, labels: Labels, warm_up: int) -> _Kept:
        kept = np.flatnonzero(steps.kept(warm_up)) if len(steps) else np.empty(0, np.int64)
        position = np.full(len(steps) + 1, NO_STEP, np.int64)
        position[kept] = np.arange(len(kept))
        step = position[steps.of_op]
        index = np.flatnonzero((step >= 0) & (steps.of_op >= 0))
        families = (*sorted({label.family for label in labels.table} - {UNATTRIBUTED}), UNATTRIBUTED)
        segments = {s: i for i, s in enumerate(sorted({(label.family, label.segment) for label in labels.table}))}
        family_of = np.array([families.index(label.family) for label in labels.table] + [len(families) - 1], np.int64)
        segment_of = np.array([segments[label.family, label.segment] for label in labels.table] + [UNKNOWN], np.int64)
        label = labels.of_op[index]
        return _Kept(
            trace.ops.bare(index), steps, kept, step[index], family_of[label], segment_of[label], families, warm_up
        )

    def cross_step_overlap_ns(self, device: int) -> int:
        """Time in which two kept steps of a device ran at once; steps that follow one another are not looked into."""
        mine = np.flatnonzero(self.steps.device[self.kept] == device)
        start, end = self.steps.start[self.kept[mine]], self.steps.end[self.kept[mine]]
        if not (start[1:] < np.maximum.accumulate(end)[:-1]).any():
            return 0
        busy = timeline.union(self.step, self.ops.start, self.ops.end, len(self.kept))
        here = np.isin(busy.group, mine)
        twice = timeline.at_least(2, np.zeros(int(here.sum()), np.int64), busy.start[here], busy.end[here], 1)
        return int(twice.total_ns(1)[0])

    def graphs(self, device: int) -> tuple[GraphResidency, ...]:
        """All graphs of one device, kept or not."""
        mine = self.steps.device == device
        return tuple(self._graph(device, g) for g in sorted(set(self.steps.graph[mine].tolist())))

    def _graph(self, device: int, graph: int) -> GraphResidency:
        return _GraphRows.of(self, device, graph).record()


@dataclass(frozen=True)
class _GraphRows:
    """One graph on one device: its kept steps numbered from 0, and the sweeps over them."""

    all: _Kept
    device: int
    graph: int
    ops: Ops
    step: Ints
    family: Ints
    segment: Ints
    kept: Ints

    @staticmethod
    def of(kept: _Kept, device: int, graph: int) -> _GraphRows:
        steps = kept.steps
        mine = (steps.device[kept.kept] == device) & (steps.graph[kept.kept] == graph)
        number = np.cumsum(mine) - 1
        index = np.flatnonzero(mine[kept.step]) if len(kept.kept) else np.empty(0, np.int64)
        whole = len(index) == len(kept.ops)
        ops = kept.ops if whole else kept.ops.bare(index)
        step = number[kept.step[index]] if len(index) else index
        return _GraphRows(kept, device, graph, ops, step, kept.family[index], kept.segment[index], kept.kept[mine])

    def record(self) -> GraphResidency:
        steps, n = self.all.steps, len(self.kept)
        seen = (steps.device == self.device) & (steps.graph == self.graph)
        n_incomplete = int((steps.incomplete & seen).sum())
        total, total_kernels = _both(self.ops, self.step, n)
        every = np.arange(n)
        return GraphResidency(
            graph=steps.graphs[self.graph],
            ops_per_step=int(steps.n_ops[seen & ~steps.incomplete][0]),
            n_steps_seen=int(seen.sum()),
            n_steps_kept=n,
            n_dropped_warm_up=int(seen.sum()) - n_incomplete - n,
            n_dropped_incomplete=n_incomplete,
            step_period_median_ns=self._period(seen),
            step_span_median_ns=int(np.median(steps.end[self.kept] - steps.start[self.kept])) if n else None,
            total=total.measure(every, per_step=True),
            total_kernels_only=total_kernels.measure(every, per_step=True),
            families=self._families(total.sweep) if n else (),
            cross_families=self._cross() if n else (),
        )

    def _period(self, seen: NDArray[np.bool_]) -> int | None:
        """Start to start of neighbouring kept steps; a step of another graph between them breaks the pair."""
        on_device = np.flatnonzero(self.all.steps.device == self.device)
        place = np.searchsorted(on_device, self.kept)
        starts = self.all.steps.start[self.kept]
        periods = np.diff(starts)[np.diff(place) == 1]
        return int(np.median(periods)) if len(periods) else None

    def _families(self, total: Sweep) -> tuple[FamilyResidency, ...]:
        n, n_families = len(self.kept), len(self.all.families)
        group = self.step * n_families + self.family
        everything, kernels = _both(self.ops, group, n * n_families)
        hidden = self._hidden(everything.sweep, total, group)
        rows = []
        for f, family in enumerate(self.all.families):
            groups = np.arange(n) * n_families + f
            mine = everything.measure(groups, per_step=True)
            if mine.n_ops:
                rows.append(
                    FamilyResidency(
                        family=family,
                        segments_per_step=self._distinct_per_step(self.segment, f),
                        lanes_per_step=self._distinct_per_step(self.ops.lane, f),
                        all_ops=mine,
                        kernels_only=kernels.measure(groups, per_step=True),
                        kernels=hidden[f],
                    )
                )
        return tuple(rows)

    def _hidden(self, in_family: Sweep, total: Sweep, group: Ints) -> list[tuple[KernelHidden, ...]]:
        ops = self.ops
        same = in_family.two_lanes.covered_ns(group, ops.start, ops.end)
        other, anyhow = (s.covered_ns(self.step, ops.start, ops.end) for s in (total.two_lanes, total.two_ops))
        rows = _ByName.of(ops, self.family, ops.end - ops.start, same, other, anyhow)
        found: list[list[KernelHidden]] = [[] for _ in self.all.families]
        for i in np.lexsort((rows.name, -rows.columns[0])).tolist():
            duration, a, b, c = (int(column[i]) for column in rows.columns)
            found[int(rows.group[i])].append(
                KernelHidden(
                    name=ops.names[rows.name[i]],
                    short_name=ops.short_names[rows.name[i]],
                    kind=kind_name(rows.kind[i]),
                    n=int(rows.n[i]),
                    duration_ns=duration,
                    hidden_same_family_ns=a,
                    hidden_any_family_ns=b,
                    hidden_any_op_ns=c,
                )
            )
        return [tuple(rows) for rows in found]

    def _distinct_per_step(self, column: Ints, family: int) -> float:
        mine = self.family == family
        _, steps, _ = dense_pairs(self.step[mine], column[mine])
        return len(steps) / len(self.kept)

    def _cross(self) -> tuple[CrossFamily, ...]:
        """Pairs of families that ran at once on two lanes; looked at only where two families ran at all."""
        n_families, n = len(self.all.families), len(self.kept)
        by_family = timeline.union(self.step * n_families + self.family, self.ops.start, self.ops.end, n * n_families)
        both = timeline.at_least(2, by_family.group // n_families, by_family.start, by_family.end, n)
        touched = both.covered_ns(self.step, self.ops.start, self.ops.end) > 0
        ops, step, family = self.ops.bare(touched), self.step[touched], self.family[touched]
        present = sorted(set(family.tolist()))
        rows = []
        for a in present:
            for b in (f for f in present if f > a):
                overlap = self._pair(ops, step, family, a, b)
                if overlap:
                    names = self.all.families
                    rows.append(CrossFamily(family_a=names[a], family_b=names[b], overlap_ns=overlap))
        return tuple(rows)

    def _pair(self, ops: Ops, step: Ints, family: Ints, a: int, b: int) -> int:
        """Time with an operation of each on two lanes: both busy, and two lanes between them."""
        n = len(self.kept)

        def busy(f: int) -> Spans:
            mine = family == f
            return timeline.union(step[mine], ops.start[mine], ops.end[mine], n)

        either = (family == a) | (family == b)
        lanes = sweep(
            step[either], ops.lane[either], ops.start[either], ops.end[either], n_groups=n, n_lanes=len(ops.lanes)
        ).two_lanes
        return int(timeline.intersection_ns((busy(a), busy(b), lanes), n).sum())
