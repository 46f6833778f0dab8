"""Arithmetic on printed figures: what they say exactly, and what their rounding leaves open.

In: numbers as a source printed them. Out: ratio gaps with their possible range, implied busy times, the t line over
observations. None of it is a verdict. Out of scope: where the figures come from (`check_pr`, `reported`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import stats

from k3bench.compare.pairs import Floats
from k3bench.errors import StatisticsError


@dataclass(frozen=True)
class Printed:
    """A number and half a unit of its last printed decimal."""

    value: float
    half: float

    @classmethod
    def parse(cls, shown: str | float | int, unit: str = "") -> Printed:
        """From the text of the source; a number is taken with the decimals of its shortest form."""
        text = str(shown).strip().removesuffix(unit).strip().replace("−", "-")
        match = re.fullmatch(r"[+-]?\d+(?:\.(\d+))?", text)
        if not match:
            raise StatisticsError(f"{shown!r} is no printed number", fix="digits with at most one decimal point")
        return cls(float(text), 0.5 * 10.0 ** -len(match[1] or ""))

    @property
    def ends(self) -> tuple[float, float]:
        """What it may have been before rounding."""
        return self.value - self.half, self.value + self.half

    def admits(self, exact: float) -> bool:
        """Whether `exact` rounds to it (a tie may go either way)."""
        low, high = self.ends
        slack = 1e-9 * max(1.0, abs(self.value))
        return low - slack <= exact <= high + slack


def alike(numbers: tuple[Printed, ...]) -> tuple[Printed, ...]:
    """Numbers of one column share its decimals: trailing zeros get lost in JSON."""
    half = min(n.half for n in numbers)
    return tuple(Printed(n.value, half) for n in numbers)


@dataclass(frozen=True)
class Gap:
    """|r2/r1 - 1| in percent of two observations, and the range that rounding of the inputs allows."""

    from_deltas_pct: float
    from_levels_pct: float | None
    range_pct: tuple[float, float]


def as_printed(delta: float, like: str) -> str:
    """A delta in the format of `like`: its decimals, the sign always shown."""
    decimals = len(like.rstrip("%").partition(".")[2])
    return f"{delta:+.{decimals}f}%"


def gap_of_printed(deltas: tuple[Printed, Printed], before: Printed | None = None, after: Printed | None = None) -> Gap:
    """Gap of two printed deltas, the earlier first; the second's levels, where printed, are sharper than its delta."""
    first, second = (1.0 + d.value / 100.0 for d in deltas)
    exact, others = None, tuple(1.0 + e / 100.0 for e in deltas[1].ends)
    if before is not None and after is not None:
        exact = after.value / before.value
        others = tuple(a / b for a, b in product(after.ends, before.ends))
    gaps = [100.0 * abs(r2 / (1.0 + e / 100.0) - 1.0) for e, r2 in product(deltas[0].ends, others)]
    from_levels = None if exact is None else 100.0 * abs(exact / first - 1.0)
    return Gap(100.0 * abs(second / first - 1.0), from_levels, (min(gaps), max(gaps)))


@dataclass(frozen=True)
class OverObservations:
    """One-sample t over the observations' log-ratios: all that can be had when no pairs are shown. Not a verdict."""

    k: int
    mean: float
    sd: float
    ci95: tuple[float, float]
    p: float
    pi95: tuple[float, float]


def t_over_observations(log_ratios: Floats) -> OverObservations:
    """Two or more observations; the prediction interval is for one further rack."""
    k = len(log_ratios)
    if k < 2:
        raise StatisticsError("one observation has no spread", fix="the t line needs two observations or more")
    test = stats.ttest_1samp(log_ratios, 0.0)
    interval = test.confidence_interval(0.95)
    mean, sd = float(np.mean(log_ratios)), float(np.std(log_ratios, ddof=1))
    reach = float(stats.t.ppf(0.975, k - 1)) * sd * math.sqrt(1.0 + 1.0 / k)
    return OverObservations(
        k, mean, sd, (float(interval.low), float(interval.high)), float(test.pvalue), (mean - reach, mean + reach)
    )


@dataclass(frozen=True)
class ImpliedBusy:
    """After-change busy time that a stated share of residency implies, and what was then saved."""

    after_ms: float
    after_range_ms: tuple[float, float]
    saved_ms: float


def implied_busy(busy_before_ms: float, residency_ms: float, share_pct: float, digits: int = 1) -> ImpliedBusy:
    """share = residency / busy, hence busy = residency / share; the range is that of the share's rounding."""
    half = 0.5 * 10.0**-digits
    after = 100.0 * residency_ms / share_pct
    ends = (100.0 * residency_ms / (share_pct + half), 100.0 * residency_ms / (share_pct - half))
    return ImpliedBusy(after, ends, busy_before_ms - after)
