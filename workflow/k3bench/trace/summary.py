"""Rows a report needs first: one per arm and family, over traces that were each measured alone.

In: `TraceResidency` rows. Out: `FamilySummary` rows and warnings. Out of scope: measuring.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3bench.records.residency import (
    Arm,
    FamilyResidency,
    FamilySummary,
    GraphResidency,
    TraceResidency,
    TraceWarning,
)
from k3bench.units import ms_from_ns


@dataclass(frozen=True)
class _Part:
    """One family on one device of one trace."""

    trace: TraceResidency
    graph: GraphResidency
    family: FamilyResidency

    def per_step_ms(self, ns: int) -> float:
        return ms_from_ns(ns / self.graph.n_steps_kept)


def summaries(traces: tuple[TraceResidency, ...]) -> tuple[FamilySummary, ...]:
    """Of every device the graph with most kept steps; means over devices, and the one with least residency."""
    parts: dict[tuple[Arm | None, str], list[_Part]] = {}
    for trace in traces:
        for device in trace.devices:
            graph = most_steps(device.graphs)
            for family in graph.families if graph else ():
                assert graph is not None
                parts.setdefault((trace.arm, family.family), []).append(_Part(trace, graph, family))
    keys = sorted(parts, key=lambda k: (("before", "after", None).index(k[0]), k[1]))
    return tuple(_summary(key, parts[key]) for key in keys)


def most_steps(graphs: tuple[GraphResidency, ...]) -> GraphResidency | None:
    """The graph with most kept steps (the larger one of equals)."""
    kept = [g for g in graphs if g.n_steps_kept]
    return max(kept, key=lambda g: (g.n_steps_kept, g.ops_per_step)) if kept else None


def _summary(key: tuple[Arm | None, str], parts: list[_Part]) -> FamilySummary:
    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def per_step(ns: list[int]) -> float:
        return mean([p.per_step_ms(n) for p, n in zip(parts, ns, strict=True)])

    residency = [p.per_step_ms(p.family.all_ops.residency_ns) for p in parts]
    shares = [s for p in parts if (s := p.family.all_ops.share_of_busy_pct) is not None]
    ratios = [r for p in parts if (r := p.trace.profiled.profiled_over_unprofiled) is not None]
    worst = min(range(len(parts)), key=lambda i: residency[i])
    return FamilySummary(
        arm=key[0],
        family=key[1],
        n_traces=len({p.trace.sha256 for p in parts}),
        segments_per_step=mean([p.family.segments_per_step for p in parts]),
        busy_ms_per_step=per_step([p.family.all_ops.busy_ns for p in parts]),
        two_stream_residency_ms_per_step=mean(residency),
        share_of_busy_pct=mean(shares) if shares else None,
        kernels_only_busy_ms_per_step=per_step([p.family.kernels_only.busy_ns for p in parts]),
        kernels_only_residency_ms_per_step=per_step([p.family.kernels_only.residency_ns for p in parts]),
        same_lane_only_ms_per_step=per_step([p.family.all_ops.conc2_ns - p.family.all_ops.residency_ns for p in parts]),
        worst_residency_ms_per_step=residency[worst],
        worst_file=parts[worst].trace.file,
        profiled_over_unprofiled=max(ratios) if len(ratios) == len(parts) else None,
    )


def disagreements(traces: tuple[TraceResidency, ...]) -> tuple[TraceWarning, ...]:
    """Traces that are compared must come from the same tool; what differs is named."""
    found = []
    for name in ("format", "tool_version", "cupti_version", "gpu"):
        values = sorted({str(getattr(t, name)) for t in traces})
        if len(values) > 1 and {t.arm for t in traces} >= {"before", "after"}:
            found.append(
                TraceWarning(
                    code="tools_differ",
                    message=f"{name} differs between the traces: {', '.join(values)}",
                    cure="profile both arms with the same tool, version and machine",
                )
            )
    return tuple(found)
