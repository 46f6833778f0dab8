"""What hiding the shorter legs can gain at most, and what was gained. In: fork spans before and after. Out: `Headroom`.

Out of scope: measuring the spans (`forks.py`).

The ideal is the sum over the forks of the change of the shorter leg's serial span in the before trace, kernels and
the gaps between them: hiding a gap gains without adding residency. Forks lie one after another, so the sum is
reachable at best. The gap in front of a leg is not in it, so a fork can gain a little more than its ideal.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

from k3bench.errors import TraceError
from k3bench.records.reported import Reported
from k3bench.records.residency import Arm, ForkHeadroom, ForkSpan, Headroom, TraceResidency
from k3bench.units import ms_from_ns

_Key = tuple[str, str]
#: Legs of a serial fork overlap by timestamp skew at most; more of the shorter leg than this is side by side.
_SERIAL_SHARE = 0.05


def headroom(traces: tuple[TraceResidency, ...], claimed_gain_ms: float | None = None) -> Headroom | None:
    """Means over the traces of an arm; None where no before trace knows its forks."""
    before, after = _mean(traces, "before"), _mean(traces, "after")
    changed = _switched_on(traces)
    rows = tuple(
        _row(key, before[key], after.get(key)) for key in sorted(before) if changed is None or key[1] in changed
    )
    if not rows:
        return None
    counted = [row for row in rows if not row.already_forked]
    ideal = sum(row.ideal_ms_per_step for row in counted)
    known = [row.achieved_ms_per_step for row in counted if row.achieved_ms_per_step is not None]
    achieved = sum(known) if len(known) == len(counted) else None
    return Headroom(
        forks=rows,
        ideal_ms_per_step=ideal,
        achieved_ms_per_step=achieved,
        achieved_over_ideal=_over(achieved, ideal),
        claimed_gain_ms_per_step=claimed_gain_ms,
        claimed_beyond_ideal=None if claimed_gain_ms is None else claimed_gain_ms > ideal,
    )


def _switched_on(traces: tuple[TraceResidency, ...]) -> set[str] | None:
    """The forks that are on after and were not before; None where a trace does not say."""
    on: dict[Arm, set[str]] = {"before": set(), "after": set()}
    for trace in traces:
        if trace.arm is None or trace.forks_on is None:
            return None
        on[trace.arm] |= set(trace.forks_on)
    return on["after"] - on["before"] or None


def _mean(traces: tuple[TraceResidency, ...], arm: Arm) -> dict[_Key, ForkSpan]:
    """Per (family, fork) the mean over the traces of an arm."""
    found: dict[_Key, list[ForkSpan]] = {}
    for trace in traces:
        for span in trace.forks if trace.arm == arm else ():
            found.setdefault((span.family, span.fork), []).append(span)
    return {key: _mean_span(spans) for key, spans in found.items()}


def _mean_span(spans: list[ForkSpan]) -> ForkSpan:
    def mean(name: str) -> float:
        return sum(float(getattr(s, name)) for s in spans) / len(spans)

    numbers = {name: mean(name) for name in ForkSpan.model_fields if name not in ("fork", "family")}
    return ForkSpan(fork=spans[0].fork, family=spans[0].family, **numbers)


def _row(key: _Key, before: ForkSpan, after: ForkSpan | None) -> ForkHeadroom:
    ideal = ms_from_ns(before.shorter_leg_span_ns_per_step)
    achieved = None if after is None else ms_from_ns(before.fork_span_ns_per_step - after.fork_span_ns_per_step)
    return ForkHeadroom(
        fork=key[1],
        family=key[0],
        already_forked=before.overlapped_ns_per_step > _SERIAL_SHARE * before.shorter_leg_busy_ns_per_step,
        ideal_ms_per_step=ideal,
        ideal_kernels_only_ms_per_step=ms_from_ns(before.shorter_leg_busy_ns_per_step),
        achieved_ms_per_step=achieved,
        achieved_over_ideal=_over(achieved, ideal),
    )


def _over(achieved: float | None, ideal: float) -> float | None:
    return achieved / ideal if achieved is not None and ideal > 0 else None


def published(record: Reported, where: str) -> str:
    """The overlap that a published report shows, at its lowest level that has times."""
    residency = [
        row.two_stream_residency_ms_per_step
        for row in record.residency
        if row.arm == "after" and row.two_stream_residency_ms_per_step is not None
    ]
    shown = [d for d in record.deltas if d.before_tpot_ms is not None and d.after_tpot_ms is not None]
    if not residency or not shown:
        raise TraceError(
            "the report shows no residency after the change, or no times of both arms",
            where=where,
            fix="give a report that shows both, or traces",
        )
    level = min(d.level for d in shown)
    rows = [d for d in shown if d.level == level]
    gains = {f"observation {d.observation}": (d.before_tpot_ms or 0) - (d.after_tpot_ms or 0) for d in rows}
    return overlap_seen(residency, rows[0].before_tpot_ms or 0, gains)


def overlap_seen(residency_ms: list[float], step_ms: float, gains_ms: dict[str, float]) -> str:
    """All that published residencies alone allow: the overlap seen, not the headroom, because gaps are not shown."""
    seen = sum((Decimal(str(ms)) for ms in residency_ms), Decimal(0))
    saved = ", ".join(f"{name} saved {gain:.2f} ms" for name, gain in gains_ms.items())
    share = 100 * float(seen) / step_ms
    printed = seen.quantize(Decimal("0.001"), ROUND_HALF_UP)
    return f"overlap seen {printed} ms a step, {share:.1f} % of {step_ms:.1f} ms; gaps not shown; {saved}"
