"""What is weak about a trace that can be measured: warnings as data, each with what would cure it.

In: a measured trace. Out: `TraceWarning` rows. Out of scope: refusals (`readers/checks.py`, `analysis.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from k3bench.records.residency import DeviceResidency, FamilyResidency, Profiled, TraceWarning
from k3bench.trace.ops import Trace
from k3bench.trace.steps import changing_nodes

#: GPU timestamps are multiples of this; each end of an overlap is uncertain by as much.
_CLOCK_GRID_NS = 32
#: A profiler that slows the step more than this changes what overlaps.
_MAX_INFLATION = 1.10


def found_weak(
    trace: Trace, devices: tuple[DeviceResidency, ...], profiled: Profiled, warm_up: int
) -> tuple[TraceWarning, ...]:
    """All warnings of one trace."""
    return (
        *_of_data(trace),
        *_of_steps(devices, warm_up),
        *_of_clock(devices),
        *_of_collectives(devices),
        *_of_profiler(profiled),
    )


def _of_data(trace: Trace) -> Iterator[TraceWarning]:
    n_changed = changing_nodes(trace.ops)
    if n_changed:
        yield TraceWarning(
            code="nodes_changed",
            message=f"{n_changed} graph nodes ran under more than one kernel name: a graph was updated in place",
            cure="capture again instead of updating, or profile one version of the graph",
        )
    if trace.n_negative:
        yield TraceWarning(
            code="negative_lengths",
            message=f"{trace.n_negative} operations end before they start; they are left out",
            cure="record again with a newer driver",
        )


def _of_steps(devices: tuple[DeviceResidency, ...], warm_up: int) -> Iterator[TraceWarning]:
    graphs = [g for d in devices for g in d.graphs]
    if graphs and not any(g.n_steps_kept for g in graphs):
        yield TraceWarning(
            code="no_steps_kept",
            message=f"all {sum(g.n_steps_seen for g in graphs)} steps are warm-up or incomplete",
            cure=f"profile more than {warm_up} replays, or lower --warm-up",
        )


def _of_clock(devices: tuple[DeviceResidency, ...]) -> Iterator[TraceWarning]:
    for device in devices:
        for graph in device.graphs:
            for family in graph.families:
                if _below_grid(family):
                    yield TraceWarning(
                        code="below_clock_grid",
                        message=f"the residency of {family.family} in graph {graph.graph} is below what the"
                        f" {_CLOCK_GRID_NS} ns grid of its {family.all_ops.n_overlaps} overlaps can resolve",
                        cure="take it as no overlap",
                    )


def _of_collectives(devices: tuple[DeviceResidency, ...]) -> Iterator[TraceWarning]:
    for device in devices:
        if device.collectives is not None and device.collectives.concurrent_ns:
            yield TraceWarning(
                code="collectives_concurrent",
                message=f"two collectives of device {device.device} ran at once on two lanes for"
                f" {device.collectives.concurrent_ns} ns",
                cure="issue all collectives from one stream, after the join of a fork",
            )


def _below_grid(family: FamilyResidency) -> bool:
    measure = family.all_ops
    return 0 < measure.residency_ns < 2 * measure.n_overlaps * _CLOCK_GRID_NS


def _of_profiler(profiled: Profiled) -> Iterator[TraceWarning]:
    ratio = profiled.profiled_over_unprofiled
    if ratio is not None and ratio > _MAX_INFLATION:
        yield TraceWarning(
            code="profiler_slows",
            message=f"the profiled step takes {100 * (ratio - 1):.0f} % longer than the unprofiled one",
            cure="read residency as a lower quality of evidence; compare arms under the same tool only",
        )
