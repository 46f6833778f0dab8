"""What the trace stage read from GPU traces: exact integer nanoseconds per device, graph, step and family.

In: what `trace/residency.py` measured. Out: `k3bench.residency/1`. Out of scope: rounding, sentences, pictures.

Every `*_ns` is a sum over the kept steps of one graph on one device unless the name says `per_step`; divide by
`n_steps_kept`. Devices, ranks and graphs are never pooled: `summaries` gives means and worst cases over them, after
each was measured alone.
A number that cannot be had is None, never 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Finite, Grown, Model, Record

Arm = Literal["before", "after"]
Method = Literal["graph_nodes", "capture_record", "lane_ordinal", "launch_ranges", "patterns", "none"]
#: The bucket of operations that no range and no pattern names.
UNATTRIBUTED = "unattributed"


class TraceWarning(Model):
    """Something weak about the data, and what would cure it."""

    code: str
    message: str
    cure: str = ""


class Measure(Model):
    """One set of operations over the kept steps. Union inside a lane first, then lanes are counted."""

    n_ops: int
    #: time in which at least one operation runs
    busy_ns: int
    #: time in which at least two distinct lanes run: the two-stream residency
    residency_ns: int
    #: separate times of two lanes at once: a residency below 2 x n x the clock's grid is no evidence
    n_overlaps: int = 0
    #: time with at least k lanes, k = 3, 4, ...; empty where never more than two
    at_least_3_lanes_up_ns: tuple[int, ...] = ()
    #: time with at least two operations, on whatever lane (diagnostic: minus residency it is PDL or timestamp skew)
    conc2_ns: int
    #: time in which some single lane has at least two operations (diagnostic)
    same_lane_ns: int
    #: sum of durations; not a busy time
    sum_duration_ns: int
    #: one entry a kept step, in step order; empty for a whole window
    busy_per_step_ns: tuple[int, ...] = ()
    residency_per_step_ns: tuple[int, ...] = ()
    conc2_per_step_ns: tuple[int, ...] = ()

    @property
    def share_of_busy_pct(self) -> float | None:
        """Residency as a share of this trace's busy time (a ratio of sums); None without busy time."""
        return 100.0 * self.residency_ns / self.busy_ns if self.busy_ns else None


class KernelHidden(Model):
    """One kernel name inside one family: how much of it ran while something else ran."""

    name: str
    short_name: str
    kind: Literal["kernel", "memcpy", "memset"]
    n: int
    duration_ns: int
    #: (a) beside the same family on another lane
    hidden_same_family_ns: int
    #: (b) beside any family on another lane: the headline variant
    hidden_any_family_ns: int
    #: (c) beside any other operation, its own lane included (counts PDL)
    hidden_any_op_ns: int


class FamilyResidency(Model):
    """One family in the kept steps of one graph."""

    family: str
    segments_per_step: Finite
    lanes_per_step: Finite
    all_ops: Measure
    kernels_only: Measure
    kernels: tuple[KernelHidden, ...] = ()


class CrossFamily(Model):
    """Time in which two families run on two distinct lanes; belongs to neither family's residency."""

    family_a: str
    family_b: str
    overlap_ns: int


class GraphResidency(Model):
    """All steps of one executable graph (one batch size) on one device."""

    graph: str
    ops_per_step: int
    n_steps_seen: int
    n_steps_kept: int
    n_dropped_warm_up: int
    n_dropped_incomplete: int
    #: start of a step to the start of the next one, kept consecutive steps; None with fewer than two
    step_period_median_ns: int | None = None
    step_span_median_ns: int | None = None
    total: Measure
    total_kernels_only: Measure
    families: tuple[FamilyResidency, ...]
    cross_families: tuple[CrossFamily, ...] = ()


class LaneTime(Model):
    """How long one lane (process/context/stream, or context/stream where the format names no process) was busy."""

    lane: str
    busy_ns: int
    kernels_busy_ns: int


class WindowKernel(Model):
    """One kernel name in the whole window of a device, families aside."""

    name: str
    short_name: str
    kind: Literal["kernel", "memcpy", "memset"]
    n: int
    duration_ns: int
    hidden_other_lane_ns: int
    hidden_any_op_ns: int


class CollectiveTimes(Model):
    """Kernels of collectives in the whole window of one device."""

    n_kernels: int
    n_lanes: int
    busy_ns: int
    #: two of them at once on two lanes: anything but 0 is a fault of the engine
    concurrent_ns: int
    #: sum over them of the time in which another lane runs something as well
    hidden_ns: int


class DeviceResidency(Grown):
    """One device of one trace: the whole window, then its graphs. `collectives` where there are any."""

    ADDED: ClassVar[tuple[str, ...]] = ("collectives",)
    device: int
    #: first start to last end
    span_ns: int
    span_kernels_only_ns: int
    lanes: tuple[LaneTime, ...]
    window: Measure
    window_kernels_only: Measure
    #: by name, longest first (bounded)
    kernels: tuple[WindowKernel, ...] = ()
    graphs: tuple[GraphResidency, ...] = ()
    #: time in which two kept steps of this device ran at once
    cross_step_overlap_ns: int = 0
    collectives: CollectiveTimes | None = None


class Counts(Model):
    """What the file held, and what in it was not usable."""

    n_ops: int
    n_kernels: int
    n_memcpy: int
    n_memset: int
    n_zero_length: int
    n_negative: int
    n_exact_duplicates: int
    n_sub_ns: int = 0
    n_graph_launches: int


class Attribution(Model):
    """How operations got their family, and how much stayed without."""

    method: Method
    families_asked: bool
    n_unattributed_ops: int
    unattributed_ns: int
    #: of the busy time of the kept steps; None without steps
    unattributed_pct: Finite | None = None
    threshold_pct: Finite
    #: operations whose layer and family are certain but whose fork leg is not
    n_leg_ambiguous: int = 0


class Profiled(Model):
    """The profiled run beside the timed one: residency of a trace that slows the step much is weak evidence."""

    profiled_step_ms: Finite | None = None
    unprofiled_step_ms: Finite | None = None
    profiled_over_unprofiled: Finite | None = None


class ForkSpan(Model):
    """One fork of one family in one graph: what its legs take, per kept step, gaps between their kernels included."""

    fork: str
    family: str
    n_instances_per_step: Finite
    #: sum over instances of the shorter leg's span
    shorter_leg_span_ns_per_step: Finite
    #: of the shorter legs' spans, what is kernels; the rest is gaps
    shorter_leg_busy_ns_per_step: Finite
    #: sum over instances of first start to last end of both legs
    fork_span_ns_per_step: Finite
    #: legs overlapped in time (on distinct lanes)
    overlapped_ns_per_step: Finite


class LaneBar(Model):
    """One operation in a picture; times are relative to the first operation of the layer."""

    row: int
    start_ns: int
    end_ns: int
    name: str
    kind: Literal["kernel", "memcpy", "memset"]
    fork: str | None = None
    leg: str | None = None


class LanePicture(Model):
    """One layer of one family in one step: the step whose residency is the median."""

    family: str
    segment: str
    graph: str
    device: int
    bars: tuple[LaneBar, ...]


class TraceResidency(Grown):
    """One trace file. `build` is the identity of the build that ran, where the collector knows."""

    ADDED: ClassVar[tuple[str, ...]] = ("build",)
    file: str
    sha256: Digest
    size_bytes: int
    format: Literal["nsys_sqlite", "kineto", "cupti"]
    tool_version: str | None = None
    schema_version: str | None = None
    cupti_version: str | None = None
    gpu: str | None = None
    arm: Arm | None = None
    level: int | None = None
    rank: int | None = None
    build: Digest | None = None
    #: forks that were on in this arm, where the collector knows
    forks_on: tuple[str, ...] | None = None
    counts: Counts
    attribution: Attribution
    profiled: Profiled = Profiled()
    devices: tuple[DeviceResidency, ...]
    forks: tuple[ForkSpan, ...] = ()
    pictures: tuple[LanePicture, ...] = ()
    warnings: tuple[TraceWarning, ...] = ()


class Collected(Record):
    """`k3bench.collected/1`: what the profiled run says about a trace it left; lies beside the trace."""

    SCHEMA: ClassVar[str] = "k3bench.collected/1"
    schema_: Literal["k3bench.collected/1"] = Field(default="k3bench.collected/1", alias="schema")
    #: file names in the same folder
    trace: str
    capture: str | None = None
    arm: Arm
    level: int
    rank: int | None = None
    tool: Literal["nsys", "kineto", "cupti"]
    tool_version: str
    cupti_version: str | None = None
    #: identity of the build that ran
    build: Digest | None = None
    n_replays: int
    #: median step time of the profiled replays, and of as many replays without a profiler, by CUDA events
    profiled_step_ms: Finite | None = None
    unprofiled_step_ms: Finite | None = None
    forks_on: tuple[str, ...] | None = None


class FamilySummary(Model):
    """One family in one arm, ranks and devices measured alone and then averaged; times per decode step."""

    arm: Arm | None = None
    family: str
    n_traces: int
    segments_per_step: Finite
    busy_ms_per_step: Finite
    two_stream_residency_ms_per_step: Finite
    #: ratio of sums over steps, mean over devices
    share_of_busy_pct: Finite | None = None
    kernels_only_busy_ms_per_step: Finite
    kernels_only_residency_ms_per_step: Finite
    #: conc2 minus residency: overlap inside one lane (PDL or skew), no two-stream work
    same_lane_only_ms_per_step: Finite
    worst_residency_ms_per_step: Finite
    worst_file: str
    profiled_over_unprofiled: Finite | None = None


class ForkHeadroom(Model):
    """What hiding the shorter leg of one fork can gain at most, from the before trace, and what was gained."""

    fork: str
    family: str
    #: the legs ran side by side in the before trace already: not of this change, not in the totals
    already_forked: bool = False
    #: shorter legs' serial spans, kernels and the gaps between them
    ideal_ms_per_step: Finite
    ideal_kernels_only_ms_per_step: Finite
    #: fork spans before minus after
    achieved_ms_per_step: Finite | None = None
    achieved_over_ideal: Finite | None = None


class Headroom(Model):
    """The bound on the gain by overlap. `families` lists families whose forks are all known."""

    forks: tuple[ForkHeadroom, ...]
    ideal_ms_per_step: Finite
    achieved_ms_per_step: Finite | None = None
    achieved_over_ideal: Finite | None = None
    claimed_gain_ms_per_step: Finite | None = None
    #: a claimed gain above the ideal cannot come from these forks
    claimed_beyond_ideal: bool | None = None


class Residency(Record):
    """`k3bench.residency/1`."""

    SCHEMA: ClassVar[str] = "k3bench.residency/1"
    schema_: Literal["k3bench.residency/1"] = Field(default="k3bench.residency/1", alias="schema")
    warm_up_steps: int
    traces: tuple[TraceResidency, ...]
    #: one row per arm and family, for the graph with most kept steps of every trace
    summaries: tuple[FamilySummary, ...] = ()
    headroom: Headroom | None = None
    warnings: tuple[TraceWarning, ...] = ()
