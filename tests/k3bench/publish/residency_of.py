"""A small residency record with made-up numbers, for tests of what is shown of it."""

from __future__ import annotations

from k3bench.records import residency as r


def residency(*, level: int) -> r.Residency:
    """Two traces, one an arm, one family each with two kernels."""
    return r.Residency(
        warm_up_steps=2,
        traces=(_trace("before", level, 0), _trace("after", level, 700_000)),
        summaries=(_summary("before", 0.0), _summary("after", 0.07)),
    )


def _trace(arm: str, level: int, hidden_ns: int) -> r.TraceResidency:
    measure = r.Measure(
        n_ops=40, busy_ns=4_358_001, residency_ns=hidden_ns, conc2_ns=hidden_ns + 17, same_lane_ns=17,
        sum_duration_ns=4_400_003, busy_per_step_ns=(435_800, 435_801), residency_per_step_ns=(hidden_ns // 10,) * 2,
    )  # fmt: skip
    kernels = tuple(
        r.KernelHidden(
            name=name, short_name=name[:8], kind="kernel", n=10, duration_ns=2_100_000 + i,
            hidden_same_family_ns=max(0, hidden_ns - i),
            hidden_any_family_ns=hidden_ns + i, hidden_any_op_ns=hidden_ns + 2 * i,
        )
        for i, name in enumerate(("void gemm<float, 4>(T*)", "conv [clone .kd]"), 1)
    )  # fmt: skip
    family = r.FamilyResidency(
        family="KDA", segments_per_step=69.0, lanes_per_step=2.0, all_ops=measure, kernels_only=measure, kernels=kernels
    )
    graph = r.GraphResidency(
        graph="g1", ops_per_step=40, n_steps_seen=13, n_steps_kept=10, n_dropped_warm_up=2, n_dropped_incomplete=1,
        step_period_median_ns=12_678_900, total=measure, total_kernels_only=measure, families=(family,),
    )  # fmt: skip
    return r.TraceResidency(
        file=f"{arm}.sqlite", sha256="ab" * 32, size_bytes=1234567, format="nsys_sqlite", arm=arm, level=level, rank=0,
        counts=r.Counts(
            n_ops=400, n_kernels=399, n_memcpy=1, n_memset=0, n_zero_length=0, n_negative=0, n_exact_duplicates=0,
            n_graph_launches=13,
        ),
        attribution=r.Attribution(
            method="patterns", families_asked=True, n_unattributed_ops=3, unattributed_ns=999, threshold_pct=5.0
        ),
        profiled=r.Profiled(profiled_step_ms=13.07, unprofiled_step_ms=12.679, profiled_over_unprofiled=1.0308),
        devices=(
            r.DeviceResidency(
                device=0, span_ns=170_000_000, span_kernels_only_ns=169_000_001, lanes=(),
                window=measure, window_kernels_only=measure,
                kernels=(r.WindowKernel(name="conv", short_name="conv", kind="kernel", n=3, duration_ns=41,
                                        hidden_other_lane_ns=19, hidden_any_op_ns=23),),
                graphs=(graph,),
            ),
        ),
    )  # fmt: skip


def _summary(arm: str, residency_ms: float) -> r.FamilySummary:
    return r.FamilySummary(
        arm=arm, family="KDA", n_traces=1, segments_per_step=69.0, busy_ms_per_step=0.4358001,
        two_stream_residency_ms_per_step=residency_ms, share_of_busy_pct=16.06, kernels_only_busy_ms_per_step=0.43,
        kernels_only_residency_ms_per_step=residency_ms, same_lane_only_ms_per_step=0.0000017,
        worst_residency_ms_per_step=residency_ms, worst_file=f"{arm}.sqlite", profiled_over_unprofiled=1.0308,
    )  # fmt: skip
