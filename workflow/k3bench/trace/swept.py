"""Sweeps with what they were made of, as parts of a record: measures, and sums per kernel name. Exact integers.

In: operations and a group each. Out: `Measure`, sums. Out of scope: what the groups are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from k3bench.records.residency import Measure
from k3bench.trace.ops import KERNEL, KINDS, Ints, Ops, dense_pairs
from k3bench.trace.timeline import Sweep, sweep

#: below this every partial sum of integers is exact in a double; half, because the total itself is rounded
_EXACT_IN_FLOAT = 2.0**52
Kind = Literal["kernel", "memcpy", "memset"]


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
            n_overlaps=int(np.bincount(self.sweep.two_lanes.group, minlength=self.sweep.n_groups)[groups].sum()),
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


def both_sets(ops: Ops, group: Ints, n_groups: int) -> tuple[Swept, Swept]:
    """(all operations, kernels only)."""
    everything = Swept.of(ops, group, n_groups)
    kernel = ops.kind == KERNEL
    if kernel.all():
        return everything, everything
    return everything, Swept.of(ops.bare(kernel), group[kernel], n_groups)


@dataclass(frozen=True)
class ByName:
    """Sums per (group, kernel name)."""

    group: Ints
    name: Ints
    kind: Ints
    n: Ints
    columns: tuple[Ints, ...]

    @staticmethod
    def of(ops: Ops, group: Ints, *columns: Ints) -> ByName:
        ids, groups, names = dense_pairs(group, ops.name)
        kind = np.zeros(len(groups), np.int64)
        kind[ids] = ops.kind
        n = np.bincount(ids, minlength=len(groups))
        return ByName(groups, names, kind, n, tuple(sums(ids, c, len(groups)) for c in columns))


def kind_name(value: int) -> Kind:
    """kernel, memcpy or memset."""
    return cast(Kind, KINDS[value])
