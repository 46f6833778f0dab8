"""Cases that give effects or pair log-ratios: random effects, equivalence, non-parametric lines.

In: the case's numbers. Out: a tree of numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from k3bench.compare import crosscheck
from k3bench.compare.cases.names import Tree, estimate_tree
from k3bench.compare.interval import per_observation
from k3bench.compare.meta import METHODS, TESTS, cochran_q, i_squared, meta_line
from k3bench.compare.pairs import Floats, Pairs
from k3bench.compare.pooled import pool


def meta_tree(effects: Floats, variances: Floats) -> Tree:
    lines = {(m, t): meta_line(effects, variances, m, t) for m in METHODS for t in TESTS}
    tree: Tree = {f"{m}_{t}": _meta_fields(line) for (m, t), line in lines.items()}
    q = cochran_q(effects, variances)
    return tree | {"I2_from_Q_pct": 100.0 * i_squared(q, len(effects))}


def _meta_fields(line: Any) -> Tree:
    return {
        "estimate": line.estimate,
        "se": line.se,
        "ci95": list(line.ci95),
        "p": line.p,
        "Q": line.q,
        "Q_p": line.q_p,
        "tau2": line.tau2,
        "I2_pct": line.i2_pct,
        "pi95_metafor": list(line.pi95),
    }


def random_effects(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    tree = meta_tree(np.asarray(given["effects"], float), np.asarray(given["variances"], float))
    return tree | {"published": tree["REML_z"]}


def equivalence(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    d = np.asarray(given["pair_log_ratios"], float)
    pairs = Pairs(d[None], np.ones((1, len(d))))
    each = per_observation(pairs)
    pooled = pool(each.plain, each.n >= 2, 0.0)
    tree = estimate_tree(each.plain) | {"mean": float(d.mean()), "sd": float(each.sd[0]), "n": len(d)}
    for margin in given["margins"]:
        bound = math.log1p(margin)
        lower, upper = float(pooled.p_not_below(-bound)), float(pooled.p_not_above(bound))
        tree["m" + f"{margin:g}".replace(".", "")] = {
            "margin": margin,
            "bound_log": bound,
            "p_lower": lower,
            "p_upper": upper,
            "p_tost": max(lower, upper),
            "noninferiority_p": upper,
        }
    for key in list(tree):
        if re.fullmatch(r"m0\d+", key):
            tree.setdefault("m" + key[2:], tree[key])
    return tree


def nonparametric(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    d = np.asarray(given["pair_log_ratios"], float)
    return {
        "wilcoxon_p": float(crosscheck.wilcoxon_p(d)[0]),
        "hodges_lehmann": crosscheck.hodges_lehmann(d),
        "wilcoxon_ci": list(crosscheck.hodges_lehmann_interval(d)),
        "wilcoxon_ci_level": 0.95,
        "signflip_p": float(crosscheck.sign_flip_p(d)[0]),
    }
