"""Times per graph, step and family of the kept steps. In: trace, steps, labels. Out: `GraphResidency` rows.

Out of scope: whole windows (`residency.py`), attribution, headroom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import UNATTRIBUTED, CrossFamily, FamilyResidency, GraphResidency, KernelHidden
from k3bench.trace import timeline
from k3bench.trace.attribution import UNKNOWN, Labels
from k3bench.trace.ops import Ints, Ops, Trace, dense_pairs
from k3bench.trace.steps import NO_STEP, Steps
from k3bench.trace.swept import ByName, both_sets, kind_name
from k3bench.trace.timeline import Spans, Sweep, sweep


@dataclass(frozen=True)
class Kept:
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
    def of(trace: Trace, steps: Steps, labels: Labels, warm_up: int) -> Kept:
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
        return Kept(
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

    all: Kept
    device: int
    graph: int
    ops: Ops
    step: Ints
    family: Ints
    segment: Ints
    kept: Ints

    @staticmethod
    def of(kept: Kept, device: int, graph: int) -> _GraphRows:
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
        total, total_kernels = both_sets(self.ops, self.step, n)
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
        everything, kernels = both_sets(self.ops, group, n * n_families)
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
        other, anyhow = total.hidden_ns(self.step, ops.start, ops.end)
        rows = ByName.of(ops, self.family, ops.end - ops.start, same, other, anyhow)
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
