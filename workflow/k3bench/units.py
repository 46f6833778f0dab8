"""Conversions between the units that appear in names: ns, ms, log-ratio, percent."""

from __future__ import annotations

import math

NS_PER_MS = 1_000_000


def ms_from_ns(ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return ns / NS_PER_MS


def pct_from_log(log_ratio: float) -> float:
    """A log-ratio ln(after/before) as a delta in percent: 100 (exp(x) - 1)."""
    return 100.0 * math.expm1(log_ratio)


def log_from_pct(pct: float) -> float:
    """A delta in percent as a log-ratio: ln(1 + pct/100)."""
    return math.log1p(pct / 100.0)


def delta_pct(before: float, after: float) -> float:
    """100 (after/before - 1), the delta as a pull request prints it."""
    return 100.0 * (after / before - 1.0)
