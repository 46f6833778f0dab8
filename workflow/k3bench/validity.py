"""Is a point a point? Criteria written before the data, evaluated before any number is used.

In: what a run produced. Out: named checks. Out of scope: dropping pairs (`compare/`).
"""

from __future__ import annotations

from collections.abc import Sequence

from k3bench.metrics import BatchTimes
from k3bench.records.measurement import Check


def check_batches(batches: Sequence[BatchTimes], *, planned: int, osl_tokens: int) -> tuple[Check, ...]:
    """Completed = planned, every output exactly OSL tokens, every step took time."""
    lengths = sorted({len(b.step_ns) for b in batches})
    shortest = min((min(b.step_ns) for b in batches if b.step_ns), default=0)
    return (
        Check(
            name="completed_equals_planned",
            ok=len(batches) == planned,
            detail="" if len(batches) == planned else f"{len(batches)} of {planned} batches",
        ),
        Check(
            name="output_length_exact",
            ok=lengths == [osl_tokens],
            detail="" if lengths == [osl_tokens] else f"lengths {lengths}, planned {osl_tokens}",
        ),
        Check(
            name="times_positive",
            ok=shortest > 0,
            detail="" if shortest > 0 else f"a step took {shortest} ns",
        ),
    )
