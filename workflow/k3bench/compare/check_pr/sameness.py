"""Metrics that say the same thing twice, evidence of sameness, and what is missing for a verdict.

In: `Figures`. Out: findings. Restatements follow from the stream interval and the definitions, never from the prose.
"""

from __future__ import annotations

from collections.abc import Iterator

from k3bench.compare.check_pr.figures import Figures
from k3bench.compare.check_pr.finding import Finding
from k3bench.compare.check_pr.rows import Row
from k3bench.compare.pooled import MIN_PAIRS

_RESTATED = ("itl", "tps_user", "throughput")


def restatements(figures: Figures) -> Iterator[Finding]:
    """ITL, tps/user and throughput at concurrency 1 by definition; by the numbers too where a table shows them."""
    si = figures.stream_interval
    if si is None:
        yield Finding(
            "missing", "restated metrics", "stream interval: without it nobody can tell whether ITL is TPOT again"
        )
    else:
        tail = "" if figures.osl_tokens is None else f" ({figures.osl_tokens - 1} of {figures.osl_tokens} tokens)"
        yield Finding(
            "holds",
            "restated metrics",
            f"stream_interval = {si}: chunks come every {si} tokens, so ITL = {si} x TPOT; tps/user = 1000/TPOT; at "
            f"c=1 output throughput is OSL/(TTFT + (OSL-1) TPOT), which is TPOT but for the first token{tail}: "
            "restatements, no witnesses",
            {"stream_interval": float(si)},
        )
    yield from _by_numbers(figures)


def _by_numbers(figures: Figures) -> Iterator[Finding]:
    """Tables that show several metrics: a constant ratio or product is an identity."""
    tpot = {(r.observation, r.level): r for r in figures.timed()}
    for metric in _RESTATED:
        pairs = [
            (r, tpot[key]) for r in figures.rows if r.metric == metric and (key := (r.observation, r.level)) in tpot
        ]
        factors = [f for row, base in pairs for f in _factors(row, base, inverse=metric != "itl")]
        if len(factors) >= 2 and max(factors) / min(factors) - 1.0 < 2e-3:
            sign = "x TPOT" if metric == "itl" else "/ TPOT"
            mean = sum(factors) / len(factors)
            text = f"{metric} = {mean:.4g} {sign} in all {len(factors)} cells shown: a restatement, no witness"
            yield Finding("holds", "restated metrics", text, {"factor": mean})


def _factors(row: Row, base: Row, *, inverse: bool) -> list[float]:
    sides = ((row.before, base.before), (row.after, base.after))
    both = [(a.value, b.value) for a, b in sides if a is not None and b is not None and a.value > 0 and b.value > 0]
    return [a * b if inverse else a / b for a, b in both]


def sameness(figures: Figures) -> Iterator[Finding]:
    """Every probe shown; forks named without one; greedy tokens always asked for."""
    for probe in figures.probes:
        if probe.shown:
            yield Finding("holds", "sameness", f"{probe.what}: {probe.claim} (as claimed; not checked here)")
        else:
            yield Finding("missing", "sameness", f"{probe.what}: {probe.claim}")
    if not any(p.what.startswith("fork") for p in figures.probes):
        yield Finding("missing", "sameness", "bitwise comparison of the changed parts against the unchanged ones")
    if not any(p.what.startswith("greedy") for p in figures.probes):
        yield Finding("missing", "sameness", "greedy tokens of the whole model, before against after")


def missing(figures: Figures) -> Iterator[Finding]:
    """What a verdict would need and the figures do not show."""
    yield Finding(
        "missing",
        "replication",
        f"runs in declared order: at least {MIN_PAIRS} before/after pairs an observation, with every run shown",
    )
    blind = [r for r in figures.timed() if r.before is None or r.after is None]
    if blind:
        rows = ", ".join(
            f"observation {r.observation} at c={r.level}" if r.observation else f"c={r.level}" for r in blind
        )
        yield Finding("missing", "levels", f"before and after behind the delta of {rows}")
    yield from _unnamed(figures)
    yield from _swept_once(figures)
    if figures.bands:
        yield Finding(
            "missing", "zero change", "the zero-change runs behind the noise bands, and zero-change observations"
        )
    else:
        yield Finding("missing", "zero change", "any noise figure: what an unchanged build shows")
    for family in figures.families:
        if family.busy_after is None:
            yield Finding("missing", "residency", f"{family.name} busy time after the change")
    if not figures.families:
        yield Finding("missing", "residency", "the mechanism: overlap from traces, before and after")
    yield Finding("missing", "environment", "evidence that only the declared change differs between the arms")


def _unnamed(figures: Figures) -> Iterator[Finding]:
    rows = figures.primary()
    if not any(r.rack or r.build for r in rows.values()):
        return
    for name, row in rows.items():
        absent = [what for what in ("rack", "build") if getattr(row, what) is None]
        if absent:
            yield Finding("missing", "observations", f"{' and '.join(absent)} of observation {name}")


def _swept_once(figures: Figures) -> Iterator[Finding]:
    by_level: dict[int, set[str]] = {}
    for row in figures.timed():
        if row.level is not None and row.observation is not None:
            by_level.setdefault(row.level, set()).add(row.observation)
    most = max((len(v) for v in by_level.values()), default=0)
    once = sorted(level for level, seen in by_level.items() if len(seen) == 1)
    if most > 1 and once:
        levels = ", ".join(map(str, once))
        yield Finding(
            "missing", "replication", f"a second observation at c = {levels}: levels of one job are no replicates"
        )
