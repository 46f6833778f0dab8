"""One layer of each family as bars on rows: data for a picture. In: labelled operations. Out: `LanePicture` rows.

Out of scope: drawing (`publish/lanes.py`).
"""

from __future__ import annotations

import numpy as np

from k3bench.records.residency import DeviceResidency, FamilyResidency, LaneBar, LanePicture
from k3bench.trace.attribution import UNKNOWN, Labels
from k3bench.trace.ops import Ints, Trace
from k3bench.trace.steps import Steps
from k3bench.trace.swept import kind_name

_MAX_BARS = 400


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
        if segments:
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
    ops, rows, row_ends = trace.ops, dict[int, int](), list[int]()
    origin = int(ops.start[mine].min()) if len(mine) else 0
    bars = []
    for op in mine.tolist():
        label = labels.table[labels.of_op[op]] if labels.of_op[op] != UNKNOWN else None
        start, end = int(ops.start[op]), int(ops.end[op])
        row = _row(int(ops.lane[op]), start, rows, row_ends)
        row_ends[row] = max(end, row_ends[row])
        bars.append(
            LaneBar(
                row=row,
                start_ns=start - origin,
                end_ns=end - origin,
                name=ops.short_names[ops.name[op]],
                kind=kind_name(int(ops.kind[op])),
                fork=label.fork if label else None,
                leg=label.legs[0][1] or None if label and label.legs else None,
            )
        )
    return tuple(bars)


def _row(lane: int, start: int, rows: dict[int, int], row_ends: list[int]) -> int:
    """A lane stays on its row while it is busy; a lane that begins takes the first row that is free by then."""
    if lane in rows and row_ends[rows[lane]] > start:
        return rows[lane]
    free = next((i for i, end in enumerate(row_ends) if end <= start), None)
    if free is None:
        row_ends.append(start)
        free = len(row_ends) - 1
    rows[lane] = free
    return free
