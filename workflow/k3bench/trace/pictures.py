"""One layer of each family as bars on rows: data for a picture. In: labelled operations. Out: `LanePicture` rows.

Out of scope: drawing (`publish/lanes.py`).
"""

from __future__ import annotations

import numpy as np

from k3bench.records.residency import DeviceResidency, FamilyResidency, LaneBar, LanePicture
from k3bench.trace.attribution import UNKNOWN, Labels
from k3bench.trace.ops import Ints, Ops, Trace, dense
from k3bench.trace.steps import Steps
from k3bench.trace.swept import kind_name, sums

_MAX_BARS = 400
#: what lies between the layers is no layer to look at
_REST = "other"
_FEW_LANES = 3


def pictures(
    trace: Trace, steps: Steps, labels: Labels, warm_up: int, devices: tuple[DeviceResidency, ...]
) -> tuple[LanePicture, ...]:
    """For the graph with most kept steps of the first device: the middle layer of each family, in its median step."""
    graphs = [(g.n_steps_kept, d.device, g) for d in devices[:1] for g in d.graphs if g.n_steps_kept]
    if not graphs:
        return ()
    _, device, graph = max(graphs, key=lambda row: row[0])
    number = steps.graphs.index(graph.graph)
    kept = np.flatnonzero(steps.kept(warm_up) & (steps.device == device) & (steps.graph == number))
    drawn = []
    for family in graph.families:
        segments = sorted({x.segment for x in labels.table if x.family == family.family}, key=_natural)
        if segments and family.family != _REST:
            step = int(kept[_median_step(family)])
            drawn.append(_picture(trace, steps, labels, step, family.family, segments[len(segments) // 2], graph.graph))
    return tuple(p for p in drawn if p.bars)


def _median_step(family: FamilyResidency) -> int:
    values = np.array(family.all_ops.residency_per_step_ns)
    return int(np.argsort(values, kind="stable")[len(values) // 2])


def _natural(text: str) -> tuple[int, str]:
    digits = "".join(c for c in text if c.isdigit())[:18]
    return int(digits or 0), text


def _picture(
    trace: Trace, steps: Steps, labels: Labels, step: int, family: str, segment: str, graph: str
) -> LanePicture:
    wanted = {i for i, x in enumerate(labels.table) if x.family == family and x.segment == segment}
    mine = np.flatnonzero(steps.of_op == step)
    mine = mine[[label in wanted for label in labels.of_op[mine].tolist()]][:_MAX_BARS]
    mine = mine[np.lexsort((trace.ops.end[mine], trace.ops.start[mine]))]
    device = int(steps.device[step])
    return LanePicture(family=family, segment=segment, graph=graph, device=device, bars=_bars(trace, labels, mine))


def _bars(trace: Trace, labels: Labels, mine: Ints) -> tuple[LaneBar, ...]:
    ops, rows = trace.ops, _Rows(_fixed_rows(trace.ops, mine))
    origin = int(ops.start[mine].min()) if len(mine) else 0
    bars = []
    for op in mine.tolist():
        label = labels.table[labels.of_op[op]] if labels.of_op[op] != UNKNOWN else None
        start, end = int(ops.start[op]), int(ops.end[op])
        bars.append(
            LaneBar(
                row=rows.place(int(ops.lane[op]), start, end),
                start_ns=start - origin,
                end_ns=end - origin,
                name=ops.short_names[ops.name[op]],
                kind=kind_name(int(ops.kind[op])),
                fork=label.fork if label else None,
                leg=label.legs[0][1] or None if label and label.legs else None,
            )
        )
    return tuple(bars)


def _fixed_rows(ops: Ops, mine: Ints) -> dict[int, int]:
    """Where lanes are few each has a row of its own, the busiest first."""
    number, lanes = dense(ops.lane[mine])
    busy = sums(number, ops.end[mine] - ops.start[mine], len(lanes))
    order = np.argsort(-busy, kind="stable")
    return {int(lanes[i]): row for row, i in enumerate(order.tolist())} if len(lanes) <= _FEW_LANES else {}


class _Rows:
    """Few rows for many lanes: a lane takes the first row that is free, and keeps it until another lane takes that."""

    def __init__(self, fixed: dict[int, int]) -> None:
        self._fixed = fixed
        #: per row: the lane that ran there last, and until when
        self._last: list[tuple[int, int]] = []

    def place(self, lane: int, start: int, end: int) -> int:
        """The row of an operation; operations come in start order."""
        if lane in self._fixed:
            return self._fixed[lane]
        own = [row for row, (owner, _) in enumerate(self._last) if owner == lane]
        free = [row for row, (_, until) in enumerate(self._last) if until <= start]
        row = (own or free or [len(self._last)])[0]
        if row == len(self._last):
            self._last.append((lane, end))
        self._last[row] = (lane, max(end, self._last[row][1]))
        return row
