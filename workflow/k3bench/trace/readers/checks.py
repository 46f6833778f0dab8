"""When a trace cannot answer: each refusal names what is missing and what to do about it.

In: what a reader found. Out: `TraceError`, or the trace with its warnings. Out of scope: the formats.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from k3bench.errors import TraceError
from k3bench.records.residency import TraceWarning
from k3bench.trace.ops import Launches, Ops, Trace, count_duplicates, dense_pairs

NODE_MODE = "record again with `nsys profile -t cuda,nvtx --cuda-graph-trace=node` (the default is `graph`)"
DEVICE_ACTIVITY = (
    "profile with CUDA activity on (nsys: `-t cuda,nvtx`; torch: ProfilerActivity.CUDA) while the GPU works"
)
EXPORT_AGAIN = (
    "remove the file and run `nsys export --type sqlite -f true FILE.nsys-rep` with the `nsys` that collected"
)
_MAX_SPAN_NS = 30 * 86_400 * 10**9
_MAX_TOTAL_NS = float(2**62)
#: a few launches at a flush boundary are no lost buffer
_MAX_LOST_SHARE = 0.01
_KEEP_ALL = "profile fewer steps, or give the collector larger buffers, and record again"
_LOST = re.compile(r"(?<![\w.])(\d[\d,]*)\s+(?:\w+\s+){0,3}(?:were |was )?(?:dropped|lost|discarded)", re.IGNORECASE)
_LOST_PLAIN = re.compile(
    r"(?:dropped|lost|discarded)[^.\d]{0,40}?(\d[\d,]*)|some \w+ events may be lost", re.IGNORECASE
)


def graph_mode(says_graph_mode: bool, ops: Ops, launches: Launches, where: str) -> None:
    """Graph launches without operations are unknown, not zero. A graph-mode file without graphs is fine."""
    n_launched = int(np.count_nonzero(launches.is_graph))
    if says_graph_mode and n_launched and not (ops.graph >= 0).any():
        raise TraceError(
            f"recorded in graph mode: {n_launched} graph launches, none of their kernels is in the file",
            where=where,
            fix=NODE_MODE,
        )


def nothing_dropped(texts: list[str], where: str) -> None:
    """The collector's own messages about lost events."""
    for text in texts:
        found = _LOST.search(text) or _LOST_PLAIN.search(text)
        if found and (found.group(1) or "1").replace(",", "").strip("0"):
            raise TraceError(f"the collector lost events: {text.strip()[:200]}", where=where, fix=_KEEP_ALL)


def finished(trace: Trace) -> Trace:
    """Last checks common to all formats: something there, and every graph launch with its operations."""
    where = str(trace.source.path)
    if not len(trace.ops):
        raise TraceError(
            "the trace holds no device operation",
            where=where,
            fix=DEVICE_ACTIVITY,
        )
    _one_clock(trace.ops, where)
    return replace(
        trace, n_duplicates=count_duplicates(trace.ops), warnings=trace.warnings + _launches_without_operations(trace)
    )


def _one_clock(ops: Ops, where: str) -> None:
    """Times of one session lie close together; one that does not is not of this clock, or no time at all."""
    first, last = int(ops.start.min()), int(ops.end.max())
    total = float(np.sum(ops.end.astype(np.float64) - ops.start.astype(np.float64)))
    if last - first > _MAX_SPAN_NS or total > _MAX_TOTAL_NS:
        raise TraceError(
            f"the operations span {(last - first) / 86_400e9:,.0f} days: some times are not of this clock",
            where=where,
            fix="record again; if it repeats, use another version of the profiler or driver",
        )


def _launches_without_operations(trace: Trace) -> tuple[TraceWarning, ...]:
    """Launches whose operations are missing: at the edges of the window a warning, between others a refusal."""
    calls, where = trace.launches, str(trace.source.path)
    n_edge, n_inside, n_graph = _missing(trace, calls.is_graph)
    if n_graph and n_edge == n_graph:
        raise TraceError(f"{n_graph} graph launches, none with a device operation", where=where, fix=NODE_MODE)
    if n_inside:
        raise TraceError(f"{n_inside} of {n_graph} graph launches have no device operation", where=where, fix=_KEEP_ALL)
    _, n_lost, n_kernel = _missing(trace, calls.is_kernel)
    if trace.source.format == "nsys_sqlite" and n_lost > _MAX_LOST_SHARE * n_kernel:
        what = f"{n_lost} of {n_kernel} kernel launches outside captures have no kernel: events were lost"
        raise TraceError(what, where=where, fix=f"use the `nsys` that belongs to this CUDA version; {_KEEP_ALL}")
    found = []
    if n_edge:
        found.append(
            _cut_off(f"{n_edge} graph launches at the edges of the window have no operations and are no steps")
        )
    if n_lost:
        found.append(_cut_off(f"{n_lost} of {n_kernel} kernel launches have no kernel: captured, or lost"))
    return tuple(found)


def _cut_off(message: str) -> TraceWarning:
    cure = "synchronise the device before the profiler stops, and capture outside the profiled window of a Kineto trace"
    return TraceWarning(code="launches_without_operations", message=message, cure=cure)


def _missing(trace: Trace, wanted: NDArray[np.bool_]) -> tuple[int, int, int]:
    """(launches without operation before the first or after the last that has one, those between, all launches)."""
    calls, ops = trace.launches, trace.ops
    chosen = np.flatnonzero(wanted)
    if not len(chosen):
        return 0, 0, 0
    chosen = chosen[np.argsort(calls.time[chosen], kind="stable")]
    maybe = np.isin(ops.correlation, calls.correlation[chosen])
    held, _, _ = dense_pairs(
        np.concatenate((calls.process[chosen], ops.process[maybe])),
        np.concatenate((calls.correlation[chosen], ops.correlation[maybe])),
    )
    empty = ~np.isin(held[: len(chosen)], held[len(chosen) :])
    edge, inside = 0, 0
    for process in np.unique(calls.process[chosen]).tolist():
        mine = empty[calls.process[chosen] == process]
        full = np.flatnonzero(~mine)
        between = int(mine[full[0] : full[-1]].sum()) if len(full) else 0
        edge, inside = edge + int(mine.sum()) - between, inside + between
    return edge, inside, len(chosen)
