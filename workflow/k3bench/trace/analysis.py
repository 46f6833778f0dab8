"""One trace file, analysed. In: a path and what was asked. Out: `TraceResidency`. Out of scope: writing records."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from k3bench.errors import TraceError
from k3bench.records.residency import (
    UNATTRIBUTED,
    Arm,
    Attribution,
    Counts,
    DeviceResidency,
    Profiled,
    TraceResidency,
)
from k3bench.trace import readers
from k3bench.trace.arguments import UNATTRIBUTED_LIMIT_PCT, WARM_UP_STEPS
from k3bench.trace.attribution import UNKNOWN, Labels, attribute
from k3bench.trace.families import CaptureRecord, Grammar
from k3bench.trace.forks import fork_spans
from k3bench.trace.ops import KERNEL, MEMCPY, MEMSET, Trace
from k3bench.trace.pictures import pictures
from k3bench.trace.residency import measure
from k3bench.trace.steps import Steps, steps_of
from k3bench.trace.summary import most_steps
from k3bench.trace.weak import found_weak
from k3bench.units import ms_from_ns


@dataclass(frozen=True)
class Asked:
    """What the caller knows about a trace and wants of it."""

    arm: Arm | None = None
    level: int | None = None
    rank: int | None = None
    build: str | None = None
    forks_on: tuple[str, ...] | None = None
    families: bool = False
    grammar: Grammar = field(default_factory=Grammar)
    capture: CaptureRecord | None = None
    profiled: Profiled = field(default_factory=Profiled)
    warm_up: int = WARM_UP_STEPS
    accept_lanes: bool = False
    unattributed_limit_pct: float = UNATTRIBUTED_LIMIT_PCT


@dataclass(frozen=True)
class Analysed:
    """A trace with everything that was found out about it."""

    trace: Trace
    steps: Steps
    labels: Labels
    result: TraceResidency


def analyse(path: Path, asked: Asked) -> Analysed:
    """Read, attribute, measure. Raises `TraceError` where the trace cannot answer what was asked."""
    trace = readers.read(path, accept_lanes=asked.accept_lanes)
    steps = steps_of(trace)
    labels = attribute(trace, steps, asked.grammar, asked.capture)
    devices = measure(trace, steps, labels, asked.warm_up)
    attribution = _attribution(trace, steps, labels, devices, asked)
    kept = _most_frequent_kept(steps, devices, asked.warm_up)
    profiled = _with_period(asked.profiled, devices)
    source = trace.source
    result = TraceResidency(
        file=source.path.name,
        sha256=source.sha256,
        size_bytes=source.size_bytes,
        format=source.format,
        tool_version=source.tool_version,
        schema_version=source.schema_version,
        cupti_version=source.cupti_version,
        gpu=source.gpu,
        arm=asked.arm,
        level=asked.level,
        rank=source.rank if asked.rank is None else asked.rank,
        build=asked.build,
        forks_on=asked.forks_on,
        counts=_counts(trace),
        attribution=attribution,
        profiled=profiled,
        devices=devices,
        forks=fork_spans(trace, steps, labels, kept),
        pictures=pictures(trace, steps, labels, asked.warm_up, devices),
        warnings=trace.warnings + found_weak(trace, devices, profiled, asked.warm_up),
    )
    return Analysed(trace, steps, labels, result)


def _most_frequent_kept(steps: Steps, devices: tuple[DeviceResidency, ...], warm_up: int) -> np.ndarray:
    """The kept steps of the graph with most of them, on the first device."""
    graph = most_steps(devices[0].graphs) if devices else None
    if graph is None:
        return np.empty(0, np.int64)
    number = steps.graphs.index(graph.graph)
    return np.flatnonzero(steps.kept(warm_up) & (steps.device == devices[0].device) & (steps.graph == number))


def _with_period(profiled: Profiled, devices: tuple[DeviceResidency, ...]) -> Profiled:
    """Where only the unprofiled step time is known, the trace's own step period is the profiled one."""
    graph = most_steps(devices[0].graphs) if devices else None
    if profiled.profiled_step_ms is not None or not profiled.unprofiled_step_ms or graph is None:
        return profiled
    if graph.step_period_median_ns is None:
        return profiled
    step_ms = ms_from_ns(graph.step_period_median_ns)
    ratio = step_ms / profiled.unprofiled_step_ms
    return profiled.model_copy(update={"profiled_step_ms": step_ms, "profiled_over_unprofiled": ratio})


def _counts(trace: Trace) -> Counts:
    kind, ops = trace.ops.kind, trace.ops
    return Counts(
        n_ops=len(ops),
        n_kernels=int((kind == KERNEL).sum()),
        n_memcpy=int((kind == MEMCPY).sum()),
        n_memset=int((kind == MEMSET).sum()),
        n_zero_length=int((ops.start == ops.end).sum()),
        n_negative=trace.n_negative,
        n_exact_duplicates=trace.n_duplicates,
        n_sub_ns=trace.n_sub_ns,
        n_graph_launches=int(trace.launches.is_graph.sum()),
    )


def _attribution(
    trace: Trace, steps: Steps, labels: Labels, devices: tuple[DeviceResidency, ...], asked: Asked
) -> Attribution:
    graphs = [g for d in devices for g in d.graphs]
    unknown = sum(f.all_ops.busy_ns for g in graphs for f in g.families if f.family == UNATTRIBUTED)
    busy = sum(g.total.busy_ns for g in graphs)
    pct = 100.0 * unknown / busy if busy else None
    in_steps = steps.of_op >= 0
    found = Attribution(
        method=labels.method,
        families_asked=asked.families,
        n_unattributed_ops=int((in_steps & (labels.of_op == UNKNOWN)).sum()),
        unattributed_ns=unknown,
        unattributed_pct=pct,
        threshold_pct=asked.unattributed_limit_pct,
        n_leg_ambiguous=labels.n_leg_ambiguous,
    )
    if asked.families:
        _must_be_attributed(trace, found)
    return found


def _must_be_attributed(trace: Trace, found: Attribution) -> None:
    where = str(trace.source.path)
    if found.unattributed_pct is None:
        raise TraceError(
            "families were asked for, but no decode step was kept",
            where=where,
            fix="profile some ten graph replays, or lower --warm-up",
        )
    if found.method == "none":
        raise TraceError(
            "families were asked for, but nothing says which operation belongs to which", where=where, fix=_cure(trace)
        )
    if found.unattributed_pct > found.threshold_pct:
        raise TraceError(
            f"{found.unattributed_pct:.2f} % of the busy time has no family (limit {found.threshold_pct:g} %)",
            where=where,
            fix=f"name the missing ranges or kernels in the table of patterns; {_cure(trace)}",
        )


def _cure(trace: Trace) -> str:
    """The way to families that this format has."""
    if trace.source.format == "nsys_sqlite":
        return (
            "start the profiler before the graph is captured (not `-c cudaProfilerApi` after it) and open the ranges"
            " `L<layer>.<family>` with NVTX during capture"
        )
    if trace.source.format == "kineto":
        return "give the engine's capture record with --capture, or use nsys or the cupti collector"
    return "let the collector see the capture: it tags nodes when they are created"
