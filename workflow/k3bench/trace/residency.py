"""Times of one trace: per device the whole window, then its graphs. Exact integers throughout.

In: a read trace with its steps and labels. Out: `DeviceResidency` rows. Out of scope: reading, attribution, headroom.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3bench.records.residency import DeviceResidency, LaneTime, WindowKernel
from k3bench.trace.attribution import Labels
from k3bench.trace.collectives import collective_times
from k3bench.trace.graphs import Kept
from k3bench.trace.ops import KERNEL, Ops, Trace, dense
from k3bench.trace.steps import Steps
from k3bench.trace.swept import ByName, both_sets, kind_name
from k3bench.trace.timeline import Ints, Sweep

_MAX_WINDOW_KERNELS = 200


def measure(trace: Trace, steps: Steps, labels: Labels, warm_up: int) -> tuple[DeviceResidency, ...]:
    """Every device alone: the window, then its graphs."""
    windows = _windows(trace.ops)
    kept = Kept.of(trace, steps, labels, warm_up)
    return tuple(
        row.model_copy(
            update={"graphs": kept.graphs(row.device), "cross_step_overlap_ns": kept.cross_step_overlap_ns(row.device)}
        )
        for row in windows
    )


def _windows(ops: Ops) -> list[DeviceResidency]:
    of_op, devices = dense(ops.device)
    everything, kernels = both_sets(ops, of_op, len(devices))
    names = _window_kernels(ops, everything.sweep, of_op)
    collectives = collective_times(ops, everything.sweep, of_op, len(devices))
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
                collectives=collectives[i],
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


def _window_kernels(ops: Ops, swept: Sweep, group: Ints) -> list[tuple[WindowKernel, ...]]:
    other, anyhow = swept.hidden_ns(group, ops.start, ops.end)
    rows = ByName.of(ops, group, ops.end - ops.start, other, anyhow)
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
