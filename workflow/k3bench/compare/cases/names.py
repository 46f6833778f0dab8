"""Which of our numbers a case means: the names of quantities differ a little from file to file.

In: a tree of numbers under our names, the names asked for. Out: the numbers under the names asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from k3bench.compare.interval import Estimate
from k3bench.units import pct_from_log

Tree = dict[str, Any]

#: Words in a name that point to a branch of the tree; "" is the trunk.
_BRANCHES: tuple[tuple[str, str], ...] = (
    (r"(order_)?adjusted|ols|lm|with_order|regression_on_order", "adjusted"),
    (r"welch|order_(check|test|effect)|ab_(vs|against)_ba", "welch"),
    (r"plain|unadjusted|naive|without_order|one_sample|t_?test|pairs_t", ""),
)
#: Words around a branch's name that say nothing more.
_FILLERS = r"(?:(?<=_)|^)(?:with|order|on|line|model|fit|test|check|interval|result)(?=_|$)"
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "estimate": ("mean", "intercept", "m", "diff", "difference"),
    "p": ("p_value", "pvalue", "p_t"),
    "se": ("std_err", "stderr", "standard_error"),
    "order_p": ("p_order", "welch_p", "order_welch_p", "p_welch"),
    "order_coefficient": ("slope", "coef", "order_coef", "order_slope", "coefficient"),
    "n_pairs": ("n",),
    "signflip_p": ("sign_flip_p", "p_signflip"),
    "verdict": ("word", "label"),
}


def answer(tree: Tree, asked: Mapping[str, Any]) -> Tree:
    """For every name asked for, our number of that name or of a synonym; names we do not know are left out.

    A group whose name we do not know is answered from the trunk: its own names then decide.
    """
    found: Tree = {}
    for name, value in asked.items():
        branch = _find(tree, str(name).lower())
        if isinstance(value, Mapping):
            if not isinstance(branch, Mapping) and re.search(r"order|slope|coef", str(name)) and "order_line" in tree:
                branch = tree["order_line"]
            branch = answer({**tree, **branch} if isinstance(branch, Mapping) else tree, value)
        if branch is not None:
            found[str(name)] = branch
    return found


def _find(tree: Tree, name: str) -> Any:
    lowered = {key.lower(): key for key in tree}
    if name in lowered:
        return tree[lowered[name]]
    for ours, others in _SYNONYMS.items():
        if name in others and ours in tree:
            return tree[ours]
    for pattern, branch in _BRANCHES:
        word = rf"(?:(?<=_)|^)(?:{pattern})(?=_|$)"
        if re.search(word, name):
            rest = re.sub(r"_+", "_", re.sub(rf"{word}|{_FILLERS}", "", name)).strip("_")
            inside = tree if not branch else tree.get(branch)
            return None if inside is None else (_find(inside, rest) if rest else inside)
    return None


def estimate_tree(estimate: Estimate, index: int = 0) -> Tree:
    """Every customary line of a one-sample t, log units and percent."""
    mean, se, df = (float(x[index]) for x in (estimate.mean, np.sqrt(estimate.variance), estimate.df))
    ci95, ci90 = ([float(b[index]) for b in estimate.interval(level)] for level in (0.95, 0.90))
    return {
        "estimate": mean,
        "se": se,
        "df": df,
        "t": mean / se if se else math.copysign(math.inf, mean),
        "p": float(estimate.p()[index]),
        "ci95": ci95,
        "ci90": ci90,
        "delta_pct": pct_from_log(mean),
        "ci95_pct": [pct_from_log(b) for b in ci95],
        "ci90_pct": [pct_from_log(b) for b in ci90],
    }
