"""What a noise band from a few zero-change runs can and cannot carry.

In: `Figures`. Out: findings: claims beyond or within the band, what the rule is worth, levels that stay open.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from scipy import integrate, stats

from k3bench.compare.check_pr.arithmetic import label
from k3bench.compare.check_pr.figures import Figures
from k3bench.compare.check_pr.finding import Finding
from k3bench.compare.check_pr.rows import Row
from k3bench.compare.noise import MIN_RUNS_FOR_RANGE, range_exceeded_p, range_multiplier
from k3bench.compare.published import Printed
from k3bench.units import pct_from_log

#: Where a source does not say what its band was made of, it is taken for a range of three runs, which is said.
ASSUMED_RUNS = 3
MARGIN_PCT = 2.0


def noise_claims(figures: Figures) -> Iterator[Finding]:
    """Every delta with a band at its level, then the rule itself, then 'regresses nothing'."""
    judged = [(row, figures.bands[row.level]) for row in _newest(figures) if row.level in figures.bands]
    if not judged:
        return
    runs = figures.band_runs or ASSUMED_RUNS
    yield from _against_band(judged, runs)
    yield from _rule(figures, runs, len(judged))
    yield from _open_levels(judged, runs)


def _newest(figures: Figures) -> list[Row]:
    """The sweep: rows of the observation that shows most levels, one a level, the later one winning."""
    by: dict[str | None, list[Row]] = {}
    for row in figures.timed():
        if row.ratio is not None and row.level is not None:
            by.setdefault(row.observation, []).append(row)
    longest = max(by.values(), key=lambda rows: len(rows), default=list[Row]())
    return sorted(longest, key=lambda r: r.level or 0)


def _delta(row: Row) -> float:
    assert row.ratio is not None
    return 100.0 * (row.ratio - 1.0)


def _against_band(judged: list[tuple[Row, Printed]], runs: int) -> Iterator[Finding]:
    beyond = [(row, band) for row, band in judged if abs(_delta(row)) > band.value]
    if beyond:
        text = ", ".join(f"{_delta(r):+.2f} % against {b.value:g} % ({label(r)})" for r, b in beyond)
        yield Finding("holds", "noise band", f"beyond the printed band: {text}")
    for row, band in judged:
        over = abs(_delta(row)) - band.value
        p = range_exceeded_p(runs, abs(_delta(row)) / band.value) if _delta(row) else 1.0
        if 0 < over < 0.1 * band.value:
            yield Finding(
                "does_not_follow",
                "noise band",
                f"{label(row)}: {_delta(row):+.2f} % exceeds {band.value:g} % by {over:.2f} points, less than a band "
                f"of {runs} runs is good for (p = {p:.2f})",
                {"over_pp": over, "p": p},
            )


def _rule(figures: Figures, runs: int, levels: int) -> Iterator[Finding]:
    if runs < MIN_RUNS_FOR_RANGE:
        yield Finding("does_not_follow", "noise band", f"{runs} zero-change runs make no band", {"runs": float(runs)})
        return
    rate = range_exceeded_p(runs)
    any_of = 1.0 - (1.0 - rate) ** levels
    source = f"{runs} zero-change runs" if figures.band_runs else f"a few zero-change runs (taken as {runs})"
    yield Finding(
        "does_not_follow",
        "noise band",
        f"'beyond the range of {source}' is no evidence: an unchanged build exceeds it {100 * rate:.0f} % of the time "
        f"at a level, {100 * any_of:.0f} % over {levels}; for 5 % the range must be multiplied by "
        f"{range_multiplier(runs):.2f}",
        {"false_positive_rate": rate, "any_of_levels": any_of},
    )
    for row in sorted(figures.timed(), key=lambda r: (r.level or 0, r.observation or "")):
        band = figures.bands.get(row.level or -1)
        if band is not None and row.ratio is not None and abs(_delta(row)) > band.value:
            p = range_exceeded_p(runs, abs(_delta(row)) / band.value)
            if p >= 0.05:
                text = (
                    f"{label(row)}: {_delta(row):+.2f} % beyond {band.value:g} % is p = {p:.2f} by the range's own law"
                )
                yield Finding("does_not_follow", "noise band", text, {"p": p, "delta_pct": _delta(row)})


def _open_levels(judged: list[tuple[Row, Printed]], runs: int) -> Iterator[Finding]:
    """One-sided 95 % bound of every level, with the sd that the band implies (range over its mean, runs-1 df)."""
    if runs < MIN_RUNS_FOR_RANGE:
        return
    mean_range = _mean_range(runs)
    bounds = {}
    for row, band in judged:
        sd = band.value / 100.0 / mean_range
        half95 = float(stats.t.ppf(0.975, runs - 1)) * sd * math.sqrt(2.0)
        bound = pct_from_log(math.log(row.ratio or 1.0) + float(stats.t.ppf(0.95, runs - 1)) * sd * math.sqrt(2.0))
        bounds[row.level] = bound
        if abs(math.log(row.ratio or 1.0)) < half95 and abs(_delta(row)) <= band.value:
            yield Finding(
                "does_not_follow",
                "inconclusive",
                f"{label(row)} is inconclusive, not 'no change': {_delta(row):+.2f} % with a 95 % half-width of "
                f"{100 * half95:.1f} log-%; a slowdown of up to {bound:+.1f} % is not excluded (one-sided 95 %, t with "
                f"{runs - 1} df)",
                {"delta_pct": _delta(row), "half_width_log_pct": 100 * half95, "worst_case_pct": bound},
            )
    failing = {level: bound for level, bound in bounds.items() if bound >= MARGIN_PCT}
    if failing:
        listed = ", ".join(f"c={level}: {bound:+.1f} %" for level, bound in failing.items())
        yield Finding(
            "does_not_follow",
            "regresses nothing",
            f"'regresses nothing' is unsupported: it needs every level's upper bound below a stated margin (here "
            f"{MARGIN_PCT:g} %), and a difference inside the noise is no such bound ({listed})",
            {f"worst_case_pct c={level}": bound for level, bound in failing.items()},
        )


def _mean_range(n: int) -> float:
    """Expected range of n normal values in standard deviations."""
    return float(integrate.quad(lambda r: stats.studentized_range.sf(r, n, math.inf), 0.0, 12.0)[0])
