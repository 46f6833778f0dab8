"""What `k3bench trace` prints. In: records, comparison rows. Out: lines. Out of scope: deciding anything."""

from __future__ import annotations

from collections.abc import Iterator

from k3bench.records.residency import (
    CollectiveTimes,
    DeviceResidency,
    FamilyResidency,
    GraphResidency,
    Headroom,
    Residency,
    TraceResidency,
    TraceWarning,
)
from k3bench.trace.against import Row
from k3bench.trace.agree import WITHIN_PCT_OF_BUSY, Agreement
from k3bench.units import ms_from_ns


def of_comparison(rows: list[Row]) -> list[str]:
    """Every value, then the count."""
    n_bad = sum(not row.agrees for row in rows)
    verdict = "all equal" if not n_bad else f"{n_bad} differ"
    return [*(_row(row) for row in rows), f"{len(rows)} values, {verdict}"]


def _row(row: Row) -> str:
    if row.agrees:
        return f"equal   {row.what}: {row.ours}"
    return f"DIFFERS {row.what}: expected {row.expected}, got {row.ours}"


def of_agreement(rows: list[Agreement]) -> list[str]:
    """Family by family, then whether all are within the bound."""
    n_bad = sum(abs(row.difference_pct_of_busy) > WITHIN_PCT_OF_BUSY for row in rows)
    verdict = "all within" if not n_bad else f"{n_bad} beyond"
    found = [
        f"{row.arm or 'trace'} {row.family}: two-stream {row.first_ms:.4f} and {row.second_ms:.4f} ms a step,"
        f" {row.difference_pct_of_busy:+.2f} % of busy"
        for row in rows
    ]
    return [*found, f"{verdict} {WITHIN_PCT_OF_BUSY:g} % of busy"]


def of_record(record: Residency) -> list[str]:
    """File by file, then the headroom and the warnings."""
    found: list[str] = []
    for trace in record.traces:
        found += _trace(trace)
    if record.headroom:
        found += _headroom(record.headroom)
    return found + [line for warning in record.warnings for line in _warning(warning)]


def _trace(trace: TraceResidency) -> Iterator[str]:
    arm = f", {trace.arm}" if trace.arm else ""
    counts = trace.counts
    held = f"{counts.n_kernels} kernels, {counts.n_memcpy} copies, {counts.n_memset} sets"
    yield f"{trace.file}{arm}: {trace.format}, {held}"
    for device in trace.devices:
        yield from _device(device)
    known = trace.attribution
    if known.method != "none":
        share = "" if known.unattributed_pct is None else f", {known.unattributed_pct:.2f} % of busy without a family"
        yield f"  families by {known.method.replace('_', ' ')}{share}"
    ratio = trace.profiled.profiled_over_unprofiled
    if ratio is not None:
        yield f"  profiled over unprofiled step time {ratio:.3f}"
    for warning in trace.warnings:
        yield from _warning(warning)


def _device(device: DeviceResidency) -> Iterator[str]:
    window = device.window
    yield (
        f"  device {device.device}: busy {_ms(window.busy_ns)} ms, two-stream {_ms(window.residency_ns)} ms,"
        f" same-lane overlap {_ms(window.same_lane_ns)} ms, {len(device.lanes)} lanes"
    )
    if device.collectives is not None:
        yield "  " + _collectives(device.collectives)
    for graph in device.graphs:
        yield from _graph(graph)


def _collectives(found: CollectiveTimes) -> str:
    share = f"{100 * found.hidden_ns / found.busy_ns:.1f} % beside others" if found.busy_ns else "no time"
    return (
        f"{found.n_kernels} collectives: busy {_ms(found.busy_ns)} ms, {share};"
        f" collectives concurrent on two lanes: {found.concurrent_ns} ns"
    )


def _graph(graph: GraphResidency) -> Iterator[str]:
    yield (
        f"    graph {graph.graph}: {graph.n_steps_kept} of {graph.n_steps_seen} steps kept"
        f" ({graph.n_dropped_warm_up} warm-up, {graph.n_dropped_incomplete} incomplete),"
        f" {graph.ops_per_step} ops a step"
    )
    for family in graph.families:
        yield "      " + _family(family, graph.n_steps_kept)
    for cross in graph.cross_families:
        yield f"      {cross.family_a} beside {cross.family_b}: {_ms(cross.overlap_ns / graph.n_steps_kept)} ms a step"


def _family(family: FamilyResidency, n_steps: int) -> str:
    measure, kernels = family.all_ops, family.kernels_only
    share = "no busy time" if measure.share_of_busy_pct is None else f"{measure.share_of_busy_pct:.1f} %"
    return (
        f"{family.family}: {family.segments_per_step:g} segments, busy {_ms(measure.busy_ns / n_steps)} ms,"
        f" two-stream {_ms(measure.residency_ns / n_steps)} ms ({share}),"
        f" kernels only {_ms(kernels.busy_ns / n_steps)} and {_ms(kernels.residency_ns / n_steps)} ms,"
        f" {family.lanes_per_step:g} lanes"
    )


def _headroom(found: Headroom) -> Iterator[str]:
    for fork in found.forks:
        yield f"  fork {fork.fork} ({fork.family}): {_gain(fork.ideal_ms_per_step, fork.achieved_ms_per_step)}"
    yield f"headroom: {_gain(found.ideal_ms_per_step, found.achieved_ms_per_step)}"
    if found.claimed_beyond_ideal:
        yield f"  a gain of {found.claimed_gain_ms_per_step:.4f} ms is more than these forks can give"


def _gain(ideal: float, achieved: float | None) -> str:
    done = "achieved unknown (no after trace)" if achieved is None else f"achieved {achieved:.4f} ms"
    return f"ideal {ideal:.4f} ms a step, {done}"


def _warning(warning: TraceWarning) -> Iterator[str]:
    yield f"  warning: {warning.message}" + (f"; {warning.cure}" if warning.cure else "")


def _ms(ns: float) -> str:
    return f"{ms_from_ns(ns):.4f}"
