"""Do the printed deltas and the agreement follow from the printed levels?

In: `Figures`. Out: findings. Out of scope: whether a delta means anything (`bands`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

import numpy as np

from k3bench.compare.agreement import ratio_gap_pct, spread_pct
from k3bench.compare.check_pr.figures import Figures
from k3bench.compare.check_pr.finding import Finding
from k3bench.compare.check_pr.rows import Row
from k3bench.compare.moved import MOVED_PCT
from k3bench.compare.published import Printed, alike, gap_of_printed, t_over_observations
from k3bench.units import delta_pct, pct_from_log

_OTHER_FORMULAS = (
    ("(before - after)/before", lambda b, a: 100.0 * (b - a) / b),
    ("before/after - 1, a speed-up", lambda b, a: 100.0 * (b / a - 1.0)),
    ("(after - before)/after", lambda b, a: 100.0 * (a - b) / a),
    ("the natural log of after/before", lambda b, a: 100.0 * math.log(a / b)),
    ("before/after, a factor", lambda b, a: b / a),
    ("after/before, a factor", lambda b, a: a / b),
)

#: Percentage points: the mean of paired ratios need not be the ratio of the two medians that stand beside it.
_PAIRED_PP = 0.1


def arithmetic(figures: Figures) -> Iterator[Finding]:
    """Deltas, agreement, spread, and which side moved."""
    yield from _units(figures)
    yield from _deltas(figures)
    yield from _agreement(figures)
    yield from _moved(figures)


def label(row: Row) -> str:
    """How findings name a row."""
    parts = [f"observation {row.observation}" if row.observation else "", f"c={row.level}" if row.level else ""]
    parts += [row.metric] if row.metric != "tpot" or not any(parts) else []
    return ", ".join(p for p in parts if p)


def _units(figures: Figures) -> Iterator[Finding]:
    for before, after in sorted({row.units for row in figures.rows if row.units is not None}):
        text = f"the headers give before in {before} and after in {after}; read here in {before}: print one unit"
        yield Finding("does_not_follow", "units", text)


def _deltas(figures: Figures) -> Iterator[Finding]:
    good, unsaid, factors, values = [], [], [], {}
    for row in figures.rows:
        exact = _exact(row)
        if exact is None:
            continue
        values[f"{label(row)} delta_pct"] = exact
        if row.factor is not None:
            if _is_ratio(row, row.factor):
                factors.append(f"{row.factor.value:g}x ({label(row)}, {exact:+.2f} %)")
            else:
                yield _wrong_factor(row, row.factor, exact)
        elif row.delta is None:
            unsaid.append(f"{exact:+.2f} % ({label(row)})")
        elif _fits(row, row.delta) or (figures.paired and abs(row.delta.value - exact) <= _PAIRED_PP):
            good.append(f"{row.delta.value:+g} % ({label(row)})")
        else:
            yield _wrong_delta(row, row.delta, exact)
    if good:
        about = f" within {_PAIRED_PP:g} pp, as deltas of pairs do" if figures.paired else ""
        yield Finding("holds", "deltas", f"100 (after/before - 1) reproduces{about} " + ", ".join(good), values)
    if factors:
        text = "before/after or after/before reproduces " + ", ".join(factors)
        yield Finding("holds", "deltas", text, values)
    if unsaid:
        yield Finding("holds", "deltas", "no delta is printed; the levels give " + ", ".join(unsaid), values)


def _exact(row: Row) -> float | None:
    """The delta of both levels; None where one is not shown or is no time."""
    if row.before is None or row.after is None or row.before.value <= 0 or row.after.value <= 0:
        return None
    return delta_pct(row.before.value, row.after.value)


def _fits(row: Row, delta: Printed) -> bool:
    """The exact delta of levels anywhere inside their rounding can be what was printed."""
    assert row.before is not None
    assert row.after is not None
    low = delta_pct(row.before.ends[1], row.after.ends[0])
    high = delta_pct(row.before.ends[0], row.after.ends[1])
    return low <= delta.ends[1] + 1e-9 and delta.ends[0] - 1e-9 <= high


def _is_ratio(row: Row, factor: Printed) -> bool:
    """A factor may be written either way round; levels anywhere inside their rounding can give it."""
    assert row.before is not None
    assert row.after is not None
    low, high = row.before.ends[0] / row.after.ends[1], row.before.ends[1] / row.after.ends[0]
    return any(lo <= factor.ends[1] and factor.ends[0] <= hi for lo, hi in ((low, high), (1 / high, 1 / low)))


def _wrong_factor(row: Row, factor: Printed, exact: float) -> Finding:
    assert row.before is not None
    assert row.after is not None
    b, a = row.before.value, row.after.value
    ratios = {"before/after": b / a, "after/before": a / b}
    name = min(ratios, key=lambda n: abs(ratios[n] - factor.value))
    text = f"{label(row)}: {factor.value:g}x is printed, {b:g} -> {a:g} gives {ratios[name]:.4g}x ({name}), "
    text += f"a delta of {exact:+.2f} %"
    return Finding("does_not_follow", "deltas", text, {"printed": factor.value, "recomputed_pct": exact})


def _wrong_delta(row: Row, delta: Printed, exact: float) -> Finding:
    assert row.before is not None
    assert row.after is not None
    b, a = row.before.value, row.after.value
    other = next((name for name, formula in _OTHER_FORMULAS if delta.admits(formula(b, a))), None)
    text = f"{label(row)}: {delta.value:+g} is printed, {b:g} -> {a:g} gives {exact:+.3f} %"
    if other:
        text += f"; the printed number is {other}"
    if row.metric in ("throughput", "tps_user") and exact < 0 < delta.value:
        text += f": {row.metric} fell, and more of it is better, so this is a loss"
    return Finding("does_not_follow", "deltas", text, {"printed": delta.value, "recomputed_pct": exact})


def _agreement(figures: Figures) -> Iterator[Finding]:
    rows = {name: row for name, row in figures.primary().items() if row.ratio is not None and row.ratio > 0}
    ratios = {name: row.ratio for name, row in rows.items() if row.ratio is not None}
    if len(ratios) < 2:
        return
    pairs = [(a, b, ratio_gap_pct(ratios[a], ratios[b])) for a, b in combinations(ratios, 2)]
    spread = spread_pct(np.array(list(ratios.values())))
    claim = figures.agreement
    if claim is not None:
        yield from _claimed_gap(claim, pairs, rows, spread)
    if len(ratios) > 2:
        text = f"the ratios of all {len(ratios)} observations ({', '.join(ratios)}) spread {spread:.2f} % (max/min - 1)"
        yield Finding("holds", "agreement", text, {"spread_pct": spread})
    yield from _t_line(ratios)


def _claimed_gap(
    claim: Printed, pairs: list[tuple[str, str, float]], rows: Mapping[str, Row], spread: float
) -> Iterator[Finding]:
    fitting = [(a, b, gap) for a, b, gap in pairs if _admits(claim, rows[a], rows[b])]
    if not fitting:
        closest = min(pairs, key=lambda p: abs(p[2] - claim.value))
        yield Finding(
            "does_not_follow",
            "agreement",
            f"{claim.value:g} % is the ratio gap of no two observations; the nearest, {closest[0]} and {closest[1]}, "
            f"is {closest[2]:.3f} %",
            {"claimed_pct": claim.value, "nearest_pct": closest[2]},
        )
        return
    a, b, gap = fitting[0]
    yield Finding(
        "holds",
        "agreement",
        f"{claim.value:g} % is the ratio gap |r2/r1 - 1| of observations {a} and {b}: {gap:.3f} %, inside the rounding "
        "of its inputs",
        {"claimed_pct": claim.value, "ratio_gap_pct": gap},
    )
    left_out = [name for name in rows if name not in (a, b)]
    if left_out:
        yield Finding(
            "does_not_follow",
            "agreement",
            f"{claim.value:g} % speaks of observations {a} and {b} only: with {', '.join(left_out)} the spread is "
            f"{spread:.2f} %",
            {"claimed_pct": claim.value, "spread_pct": spread},
        )


def _admits(claim: Printed, first: Row, second: Row) -> bool:
    """The gap can be the claimed one, given how its inputs were rounded."""
    if first.delta is not None and second.delta is not None:
        deltas = alike((first.delta, second.delta)) if _same_column(first, second) else (first.delta, second.delta)
        low, high = gap_of_printed((deltas[0], deltas[1]), second.before, second.after).range_pct
        return low <= claim.ends[1] and claim.ends[0] <= high
    if first.ratio is None or second.ratio is None:
        return False
    return claim.admits(ratio_gap_pct(first.ratio, second.ratio))


def _same_column(first: Row, second: Row) -> bool:
    """Two deltas that were probably printed alike: the coarser one could be a number that lost its zeros."""
    assert first.delta is not None
    assert second.delta is not None
    return (
        abs(math.log10(first.delta.half / second.delta.half)) < 1.5 and min(first.delta.half, second.delta.half) < 0.004
    )


def _t_line(ratios: Mapping[str, float]) -> Iterator[Finding]:
    if len(ratios) < 3:
        return
    line = t_over_observations(np.log(list(ratios.values())))
    low, high = (pct_from_log(x) for x in line.ci95)
    next_low, next_high = (pct_from_log(x) for x in line.pi95)
    text = (
        f"over the {line.k} observations, each counted once: {pct_from_log(line.mean):+.2f} % (95 % CI {low:+.2f} to "
        f"{high:+.2f}, p = {line.p:.3f}; a further rack {next_low:+.1f} to {next_high:+.1f}); not a verdict"
    )
    yield Finding("holds", "t over observations", text, {"delta_pct": pct_from_log(line.mean), "p": line.p})


def _moved(figures: Figures) -> Iterator[Finding]:
    shown = [r for r in figures.primary().values() if r.before is not None and r.after is not None]
    for row in shown if len(shown) >= 2 else []:
        others = [r for r in shown if r is not row]
        assert row.before is not None
        assert row.after is not None
        before = delta_pct(float(np.median([r.before.value for r in others if r.before])), row.before.value)
        after = delta_pct(float(np.median([r.after.value for r in others if r.after])), row.after.value)
        if row is shown[-1] and max(abs(before), abs(after)) > MOVED_PCT:
            slow = "a slow before run, not a better after run" if before > MOVED_PCT >= abs(after) else "see both sides"
            yield Finding(
                "does_not_follow",
                "which side moved",
                f"observation {row.observation}: against the other levels shown, before moved {before:+.2f} % and "
                f"after {after:+.2f} %: {slow}",
                {"before_moved_pct": before, "after_moved_pct": after},
            )
