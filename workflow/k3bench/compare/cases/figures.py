"""Cases that give published figures or several metrics of the same runs.

In: the case's numbers. Out: a tree of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from k3bench.compare import published
from k3bench.compare.cases.names import Tree
from k3bench.units import delta_pct, pct_from_log


def over_observations(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    logs = np.log(np.asarray(given["ratios"], float))
    words = {"two": 2, "three": 3, "four": 4}
    tree: Tree = {}
    for key in asked:
        count = words.get(key.removeprefix("first_"), len(logs))
        line = published.t_over_observations(logs[:count])
        tree[key] = {
            "log_ratios": logs[:count].tolist(),
            "mean": line.mean,
            "sd": line.sd,
            "ci95": list(line.ci95),
            "p": line.p,
            "pi95": list(line.pi95),
            "delta_pct": pct_from_log(line.mean),
            "ci95_pct": [pct_from_log(b) for b in line.ci95],
            "pi95_pct": [pct_from_log(b) for b in line.pi95],
        }
    return tree


def printed_deltas(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    rows = given["rows"]
    deltas = [delta_pct(r["before"], r["after"]) for r in rows]
    banded = [(d, r["band_pct"]) for d, r in zip(deltas, rows, strict=True) if r.get("band_pct") is not None]
    return {
        "delta_pct": deltas,
        "printed": [published.as_printed(d, r.get("printed", "+0.00%")) for d, r in zip(deltas, rows, strict=True)],
        "log_ratio": [math.log(r["after"] / r["before"]) for r in rows],
        "beyond_range_band": [abs(d) > band for d, band in banded],
        "margin_over_band_pp": [abs(d) - band for d, band in banded],
    }


def printed_gap(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    first, second = published.alike(tuple(published.Printed.parse(x, "%") for x in given["delta_pct"]))
    gap = published.gap_of_printed(
        (first, second),
        before=published.Printed.parse(given["obs2_before"]),
        after=published.Printed.parse(given["obs2_after"]),
    )
    return {
        "from_printed_deltas": gap.from_deltas_pct,
        "from_obs2_levels": gap.from_levels_pct,
        "possible_range_given_rounding": list(gap.range_pct),
        "not_the_formula": {
            "difference of deltas in points": abs(first.value - second.value),
            "relative difference of deltas (%)": 100.0 * abs(second.value / first.value - 1.0),
        },
    }


def busy(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    rows = [
        published.implied_busy(r["busy_before"], r["residency_after"], 100.0 * r["share_after"], digits=1)
        for r in given["rows"]
    ]
    return {
        "residency_over_busy_before": [r["residency_after"] / r["busy_before"] for r in given["rows"]],
        "implied_busy_after_ms": [row.after_ms for row in rows],
        "implied_busy_after_range_ms": [list(row.after_range_ms) for row in rows],
        "implied_busy_saved_ms": [row.saved_ms for row in rows],
        "total_saved_ms": sum(row.saved_ms for row in rows),
        "ceiling_ms": sum(r["residency_after"] for r in given["rows"]),
    }
