"""When a trace cannot answer: each refusal names what is missing and what to do about it.

In: what a reader found. Out: `TraceError`, or the trace with its warnings. Out of scope: the formats.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from k3bench.errors import TraceError
from k3bench.records.residency import TraceWarning
from k3bench.trace.ops import Launches, Ops, Trace, count_duplicates

NODE_MODE = "record again with `nsys profile -t cuda,nvtx --cuda-graph-trace=node` (the default is `graph`)"
DEVICE_ACTIVITY = (
    "profile with CUDA activity on (nsys: `-t cuda,nvtx`; torch: ProfilerActivity.CUDA) while the GPU works"
)
EXPORT_AGAIN = (
    "remove the file and run `nsys export --type sqlite -f true FILE.nsys-rep` with the `nsys` that collected"
)
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
    return replace(
        trace, n_duplicates=count_duplicates(trace.ops), warnings=trace.warnings + _launches_without_operations(trace)
    )


def _launches_without_operations(trace: Trace) -> tuple[TraceWarning, ...]:
    """Graph launches whose operations are missing: at the edges of the window a warning, in the middle a refusal."""
    calls = trace.launches
    graph = np.flatnonzero(calls.is_graph)
    if not len(graph):
        return ()
    order = graph[np.argsort(calls.time[graph], kind="stable")]
    asked_process, asked = calls.process[order], calls.correlation[order]
    maybe = np.isin(trace.ops.correlation, asked)
    held = set(zip(trace.ops.process[maybe].tolist(), trace.ops.correlation[maybe].tolist(), strict=True))
    empty = np.array([pair not in held for pair in zip(asked_process.tolist(), asked.tolist(), strict=True)])
    if not empty.any():
        return ()
    inner = np.flatnonzero(~empty)
    where, n_empty = str(trace.source.path), int(empty.sum())
    if not len(inner):
        raise TraceError(f"{n_empty} graph launches, none with a device operation", where=where, fix=NODE_MODE)
    n_inside = int(empty[inner[0] : inner[-1]].sum())
    if n_inside:
        raise TraceError(
            f"{n_inside} of {len(order)} graph launches have no device operation", where=where, fix=_KEEP_ALL
        )
    return (
        TraceWarning(
            code="launches_cut_off",
            message=f"{n_empty} graph launches at the edges of the window have no operations and are no steps",
            cure="synchronise the device before the profiler stops",
        ),
    )
