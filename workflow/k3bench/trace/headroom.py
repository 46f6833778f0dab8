"""What hiding the shorter legs can gain at most, and what was gained. In: fork spans before and after. Out: `Headroom`.

Out of scope: measuring the spans (`forks.py`).

The ideal is the sum over forks of the shorter leg's serial span in the before trace, kernels and the gaps between
them: hiding a gap gains without adding residency. Forks lie one after another, so the sum is reachable at best.
"""

from __future__ import annotations

from k3bench.records.residency import Arm, ForkHeadroom, ForkSpan, Headroom, TraceResidency
from k3bench.units import ms_from_ns


def headroom(traces: tuple[TraceResidency, ...], claimed_gain_ms: float | None = None) -> Headroom | None:
    """Mean over the traces of an arm; None where no before trace knows its forks."""
    before, after = _mean(traces, "before"), _mean(traces, "after")
    if not before:
        return None
    rows = tuple(_row(key, before[key], after.get(key)) for key in sorted(before))
    ideal = sum(row.ideal_ms_per_step for row in rows)
    known = [row.achieved_ms_per_step for row in rows if row.achieved_ms_per_step is not None]
    achieved = sum(known) if len(known) == len(rows) else None
    return Headroom(
        forks=rows,
        ideal_ms_per_step=ideal,
        achieved_ms_per_step=achieved,
        achieved_over_ideal=_over(achieved, ideal),
        claimed_gain_ms_per_step=claimed_gain_ms,
        claimed_beyond_ideal=None if claimed_gain_ms is None else claimed_gain_ms > ideal,
    )


_Spans = dict[tuple[str, str], tuple[float, float, float]]


def _mean(traces: tuple[TraceResidency, ...], arm: Arm) -> _Spans:
    """(shorter leg span, its kernels, fork span) per (family, fork), in ns a step."""
    found: dict[tuple[str, str], list[ForkSpan]] = {}
    for trace in traces:
        for span in trace.forks if trace.arm == arm else ():
            found.setdefault((span.family, span.fork), []).append(span)
    return {
        key: (
            sum(s.shorter_leg_span_ns_per_step for s in spans) / len(spans),
            sum(s.shorter_leg_busy_ns_per_step for s in spans) / len(spans),
            sum(s.fork_span_ns_per_step for s in spans) / len(spans),
        )
        for key, spans in found.items()
    }


def _row(
    key: tuple[str, str], before: tuple[float, float, float], after: tuple[float, float, float] | None
) -> ForkHeadroom:
    ideal, kernels = ms_from_ns(before[0]), ms_from_ns(before[1])
    achieved = None if after is None else ms_from_ns(before[2] - after[2])
    return ForkHeadroom(
        fork=key[1],
        family=key[0],
        ideal_ms_per_step=ideal,
        ideal_kernels_only_ms_per_step=kernels,
        achieved_ms_per_step=achieved,
        achieved_over_ideal=_over(achieved, ideal),
    )


def _over(achieved: float | None, ideal: float) -> float | None:
    return achieved / ideal if achieved is not None and ideal > 0 else None


def overlap_seen(residency_ms: list[float], step_ms: float, gains_ms: dict[str, float]) -> str:
    """All that published residencies alone allow: the overlap seen, not the headroom, because gaps are not shown."""
    seen = sum(residency_ms)
    saved = ", ".join(f"{name} saved {gain:.2f} ms" for name, gain in gains_ms.items())
    return (
        f"overlap seen {seen:.3f} ms a step, {100 * seen / step_ms:.1f} % of {step_ms:.1f} ms; gaps not shown; {saved}"
    )
