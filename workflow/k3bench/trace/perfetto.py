"""One attributed decode step for the Perfetto UI: families as tracks, one row a lane. In: an analysed trace. Out: JSON.

Out of scope: measuring. Perfetto clips slices that overlap on one track, so each lane of a family is a track of its
own and PDL pairs on one lane are put on two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from k3bench.errors import TraceError
from k3bench.records.residency import UNATTRIBUTED
from k3bench.store import write_atomic
from k3bench.trace.analysis import Analysed
from k3bench.trace.attribution import UNKNOWN
from k3bench.trace.families import Label
from k3bench.trace.residency import lane_name


def write_step(path: Path, analysed: Analysed, warm_up: int) -> None:
    """The first kept step of the trace."""
    kept = np.flatnonzero(analysed.steps.kept(warm_up))
    if not len(kept):
        where = str(analysed.trace.source.path)
        raise TraceError("no step to export", where=where, fix="profile more replays, or --warm-up 0")
    mine = np.flatnonzero(analysed.steps.of_op == int(kept[0]))
    ops = analysed.trace.ops
    mine = mine[np.lexsort((ops.end[mine], ops.start[mine]))]
    events = list(_events(analysed, mine.tolist()))
    write_atomic(path, msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events}))


def _events(analysed: Analysed, operations: list[int]) -> Iterator[dict[str, Any]]:
    ops, labels = analysed.trace.ops, analysed.labels
    origin = int(ops.start[operations[0]])
    families = [*sorted({x.family for x in labels.table}), UNATTRIBUTED]
    for number, name in enumerate(families):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for op in operations:
        label = labels.table[labels.of_op[op]] if labels.of_op[op] != UNKNOWN else None
        family = families.index(label.family if label else UNATTRIBUTED)
        start, end, lane = int(ops.start[op]), int(ops.end[op]), int(ops.lane[op])
        rows = tracks.setdefault((family, lane), [])
        free = next((i for i, (_, busy_until) in enumerate(rows) if busy_until <= start), None)
        if free is None:
            free = len(rows)
            tid = sum(len(r) for r in tracks.values())
            rows.append((tid, end))
            title = {"name": lane_name(ops.lanes[lane])}
            yield {"ph": "M", "name": "thread_name", "pid": family, "tid": tid, "args": title}
        rows[free] = (rows[free][0], end)
        yield {
            "ph": "X",
            "name": ops.short_names[ops.name[op]],
            "cat": label.segment if label else UNATTRIBUTED,
            "pid": family,
            "tid": rows[free][0],
            "ts": msgspec.Raw(_us(start - origin)),
            "dur": msgspec.Raw(_us(end - start)),
            "args": {"kernel": ops.names[ops.name[op]], "legs": _legs(label)},
        }


def _legs(label: Label | None) -> list[str]:
    return [f"{fork}.{leg}" for fork, leg in label.legs] if label else []


def _us(ns: int) -> bytes:
    return f"{ns // 1000}.{ns % 1000:03}".encode()
