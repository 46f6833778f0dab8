"""Cases that give runs: one observation's pairs, or a whole verdict from several observations.

In: the case's runs. Out: a tree of numbers. Out of scope: deciding whether they match (`selfcheck`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.stats.oneway import anova_oneway

from k3bench.compare import crosscheck
from k3bench.compare.agreement import agreement
from k3bench.compare.cases.effects import meta_tree
from k3bench.compare.cases.names import Tree, answer, estimate_tree
from k3bench.compare.interval import Estimate, per_observation
from k3bench.compare.pairs import Pairs, log_of, pair_up
from k3bench.compare.pooled import MIN_PAIRS, pool
from k3bench.compare.verdict import Rule, judge
from k3bench.units import pct_from_log


def _pairs_of(runs: list[list[Mapping[str, Any]]]) -> Pairs:
    """One row of runs an observation, shorter ones padded with absent runs; positions order them."""
    width = max(len(row) for row in runs)
    values, after = np.full((len(runs), width), np.nan), np.zeros((len(runs), width), dtype=bool)
    for i, row in enumerate(runs):
        for j, run in enumerate(sorted(row, key=lambda r: (r.get("block", 0), r.get("pos", 0)))):
            after[i, j] = run["arm"] == "after"
            values[i, j] = run["tpot_ms"] if run.get("valid", True) else np.nan
    return pair_up(log_of(values, absent=np.isnan(values)), after)


def one_observation(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    pairs = _pairs_of([given["runs"]])
    each = per_observation(pairs)
    d, valid, order = pairs.log_ratio[0], pairs.valid[0], pairs.order[0]
    first, second = d[valid & (order > 0)], d[valid & (order < 0)]
    tree = estimate_tree(each.plain)
    tree |= {
        "pair_log_ratios": d[valid].tolist(),
        "order": [int(o) for o in order[valid]],
        "n_pairs": int(valid.sum()),
        "n": int(valid.sum()),
        "sd": float(each.sd[0]),
        "dropped_pairs": [int(i) + 1 for i in np.flatnonzero(~valid)],
        "order_effect": bool(each.order_effect()[0]),
        "mean_before_first": float(first.mean()) if len(first) else None,
        "mean_after_first": float(second.mean()) if len(second) else None,
        "order_p": _number(each.order_p[0]),
        "order_coefficient": float(first.mean() - second.mean()) / 2 if len(first) and len(second) else None,
        "signflip_p": float(crosscheck.sign_flip_p(d[valid])[0]) if valid.sum() <= 16 else None,
        "wilcoxon_p": float(crosscheck.wilcoxon_p(d[valid])[0]),
    }
    if np.isfinite(each.adjusted.variance[0]):
        tree["adjusted"] = estimate_tree(each.adjusted)
        # two orders coded +1 and -1: both coefficients of the regression have the same standard error
        half = np.array([(first.mean() - second.mean()) / 2])
        tree["order_line"] = estimate_tree(Estimate(half, each.adjusted.variance, each.adjusted.df))
    if len(first) > 1 and len(second) > 1:
        welch = stats.ttest_ind(first, second, equal_var=False)
        tree["welch"] = {"t": float(welch.statistic), "df": float(welch.df), "p": float(each.order_p[0])}
        low, high = welch.confidence_interval(0.95)
        tree["welch"] |= {"ci95": [float(low), float(high)], "estimate": float(first.mean() - second.mean())}
    if {"verdict", "flags"} & set(asked):
        tree |= verdict({**given, "observations": [given["runs"]]}, {"verdict": "", "flags": []})
    return answer(tree, asked)


def verdict(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    pairs = _pairs_of(given["observations"])
    floors = {_floor_name(f): f for f in (0.0, float(given.get("floor", 0.003)))}
    each = per_observation(pairs)
    tree: Tree = {name: _floor_tree(pairs, floor) for name, floor in floors.items()}
    margin, alpha = float(given.get("margin", 0.02)), float(given.get("alpha", 0.05))
    rule = Rule(margin=margin, alpha=alpha, tau0=float(given.get("floor", 0.003)), adjust_order=False)
    verdict = judge(Pairs(pairs.log_ratio[None], pairs.order[None]), rule)
    usable = verdict.usable[0]
    tree |= {
        "verdict": verdict.word(0),
        "flags": _case_flags(verdict, len(given["observations"])),
        "n_pairs": [int(n) for n in each.n],
        "set_aside": [i + 1 for i in np.flatnonzero(~usable)],
        "k": int(usable.sum()),
    }
    tree |= {"delta_pct": [pct_from_log(float(m)) for m in each.plain.mean]}
    if len(usable) >= 2 and (each.plain.variance > 0).all():
        tree |= _other_peoples_lines(pairs, each.plain)
    return answer(tree, asked)


def _floor_name(floor: float) -> str:
    return "floor_" + f"{floor:g}".replace(".", "_")


def _floor_tree(pairs: Pairs, floor: float) -> Tree:
    each = per_observation(pairs)
    usable = each.n >= MIN_PAIRS if (each.n >= MIN_PAIRS).any() else each.n >= 2
    pooled, agree = pool(each.plain, usable, floor), agreement(each.plain, usable, floor)
    ci95, ci90 = ([float(b) for b in pooled.interval(level)] for level in (0.95, 0.90))
    mean = float(pooled.mean)
    return {
        "k": int(pooled.k),
        "floor": floor,
        "obs_estimates": each.plain.mean.tolist(),
        "obs_variances": each.plain.variance.tolist(),
        "obs_df": each.plain.df.tolist(),
        "estimate": mean,
        "se": float(pooled.se),
        "df": float(pooled.df),
        "p": float(pooled.p()),
        "ci95": ci95,
        "ci90": ci90,
        "delta_pct": pct_from_log(mean),
        "ci95_pct": [pct_from_log(b) for b in ci95],
        "obs_ci95_low": agree.own_low.tolist(),
        "obs_ci95_high": agree.own_high.tolist(),
        "F": _number(agree.f),
        "F_df": [int(pooled.k) - 1, _number(agree.df_within) if int(pooled.k) > 1 else _number(pooled.df)],
        "F_p": _number(agree.p),
    }


def _case_flags(verdict: Any, planned: int) -> list[str]:
    """The flags that follow from the pairs alone; data-quality flags need records."""
    k = int(verdict.pooled.k[0])
    flags = {
        "below_margin": bool(verdict.below_margin[0]),
        "incomplete": k < planned,
        "size_differs": bool(verdict.size_differs[0]),
        "unreplicated": k == 1,
    }
    return sorted(name for name, on in flags.items() if on)


def _other_peoples_lines(pairs: Pairs, each: Estimate) -> Tree:
    """Random effects by every method, the classical and Welch's analysis of variance."""
    groups = [row[ok] for row, ok in zip(pairs.log_ratio, pairs.valid, strict=True)]
    classical = stats.f_oneway(*groups)
    return {
        "meta_of_observations": meta_tree(each.mean, each.variance),
        "classical_anova_F_and_p": [float(classical.statistic), float(classical.pvalue)],
        "welch_anova_p": float(anova_oneway(groups, use_var="unequal").pvalue),
    }


def _number(value: Any) -> float | None:
    number = float(np.asarray(value).reshape(-1)[0]) if np.size(value) else math.nan
    return None if math.isnan(number) else number
