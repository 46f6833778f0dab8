"""Cases about bands, several tests, planning and attainable values.

In: the case's numbers. Out: a tree of numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from k3bench.compare import crosscheck, noise
from k3bench.compare.cases.names import Tree, answer
from k3bench.compare.multiplicity import holm
from k3bench.compare.planning import Design, blocks_for, pairs_for, power, power_of_pairs
from k3bench.compare.pooled import DEFAULT_FLOOR
from k3bench.units import pct_from_log


def bands(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    runs = np.asarray(given["runs"], float)
    spread = float(runs.max() - runs.min())
    lone = noise.lone_pair_band(runs)
    tree = {
        "n": len(runs),
        "range_over_min_pct": noise.range_band_pct(runs),
        "range_over_median_pct": 100 * spread / float(np.median(runs)),
        "range_over_mean_pct": 100 * spread / float(np.mean(runs)),
        "sd_log": noise.run_sd(runs),
        "t_band_1v1_log": lone,
        "t_band_1v1_pct_high": pct_from_log(lone),
        "t_band_1v1_pct_low": pct_from_log(-lone),
    }
    costly = {
        "false_positive_rate": noise.range_exceeded_p,
        "tolerance_factor": noise.tolerance_factor,
        "range_multiplier": noise.range_multiplier,
    }
    tree |= {name: compute(len(runs)) for name, compute in costly.items() if name in asked}
    for key in asked:
        if means := re.fullmatch(r"t_band_mean(\d+)v(\d+)_log", key):
            tree[key] = noise.lone_pair_band(runs, int(means[1]), int(means[2]))
    return answer(tree, asked)


def range_rule(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    """Keys are numbers of runs. A value above 1 can only be a multiplier, below 1 a false-positive rate."""
    multipliers = any(isinstance(v, (int, float)) and v > 1 for v in asked.values())
    rate = float(given.get("rate", given.get("alpha", 0.05)))
    counts = {key: int(key) for key in asked if key.isdigit()}
    if multipliers:
        return {key: noise.range_multiplier(n, rate) for key, n in counts.items()}
    return {key: noise.range_exceeded_p(n) for key, n in counts.items()}


def by_n(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    """One number for each n: what kind of number, the names asked for say."""
    numbers = [int(n) for n in given["n"]]
    kinds = (
        (r"mult|range_factor", noise.range_multiplier),
        (r"rate|false|exceed", noise.range_exceeded_p),
        (r"^k$|toler|factor", noise.tolerance_factor),
    )
    tree: Tree = {}
    for key in asked:
        pick = next((compute for pattern, compute in kinds if re.search(pattern, key)), None)
        if pick is not None:
            tree[key] = [pick(n) for n in numbers]
    return tree | median_ranks(given, asked)


def range_p(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    """p of |delta|/range under the range's own law."""
    ratios = next(v for k, v in given.items() if k != "n" and isinstance(v, list))
    p = [noise.range_exceeded_p(int(given["n"]), float(r)) for r in ratios]
    return dict.fromkeys(asked, p)


def adjusted(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    p = np.asarray(given["p"], float)
    return {
        "holm": holm(p).tolist(),
        "bonferroni": np.minimum(1.0, p * len(p)).tolist(),
        "bh": stats.false_discovery_control(p, method="bh").tolist(),
        "by": stats.false_discovery_control(p, method="by").tolist(),
        "hochberg": multipletests(p, method="simes-hochberg")[1].tolist(),
    }


def planning(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    run_sd, effect, alpha = float(given["run_sd"]), float(given["effect"]), float(given.get("alpha", 0.05))
    pair_sd, target = math.sqrt(2.0) * run_sd, float(given.get("power", 0.9))
    tree: Tree = {"run_sd": run_sd, "pair_sd": pair_sd, "effect": effect}
    for key in asked:
        if wanted := re.fullmatch(r"n_pairs_for_(\d+)", key):
            tree[key] = pairs_for(effect, pair_sd, int(wanted[1]) / 100.0, alpha)
        elif wanted := re.fullmatch(r"power_at_(\d+)_pairs", key):
            tree[key] = power_of_pairs(effect, pair_sd, int(wanted[1]), alpha)
        elif wanted := re.fullmatch(r"blocks_for_(\d+)", key):
            tree[key] = blocks_for(_design_of(given), effect, int(wanted[1]) / 100.0, alpha)
        elif wanted := re.fullmatch(r"power_at_(\d+)_blocks", key):
            tree[key] = float(power(_design_of(given), effect, np.array([float(wanted[1])]), alpha)[0])
    tree.setdefault("n_pairs", pairs_for(effect, pair_sd, target, alpha))
    return tree


def _design_of(given: Mapping[str, Any]) -> Design:
    k = int(given.get("k", given.get("observations", 1)))
    return Design.of_runs(k, float(given["run_sd"]), float(given.get("floor", DEFAULT_FLOOR)))


def smallest_p(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    return {
        "mann_whitney_n_vs_n": {
            n: float(stats.mannwhitneyu(range(int(n)), range(int(n), 2 * int(n)), method="exact").pvalue)
            for n in asked.get("mann_whitney_n_vs_n", {})
        },
        "wilcoxon_signed_rank_n_pairs": {
            n: float(crosscheck.wilcoxon_p(np.arange(1.0, int(n) + 1))[0])
            for n in asked.get("wilcoxon_signed_rank_n_pairs", {})
        },
    }


def median_ranks(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    rows = {str(n): crosscheck.median_ranks(int(n)) for n in given["n"]}
    return {n: dict(zip(("lower_rank", "upper_rank", "coverage"), row, strict=True)) for n, row in rows.items()}
