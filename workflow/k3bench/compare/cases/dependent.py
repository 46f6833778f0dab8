"""Cases about dependent metrics: several metrics of the same runs, as rows or as columns.

In: rows of runs with more than one metric, or columns of equal length. Out: a tree of numbers, None for unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from k3bench.compare import witnesses
from k3bench.compare.cases.names import Tree
from k3bench.compare.pairs import Floats, Ints, log_of

#: Columns that say where a run belongs rather than what it measured.
_PLACE = frozenset(
    ["arm", "obs", "observation", "rack", "block", "pos", "position", "run", "pair", "valid", "reason", "level", "c"]
)


def columns(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The columns of a case, whichever way it wrote them."""
    for key in ("metrics", "columns", "data", "values"):
        if isinstance(given.get(key), Mapping):
            return {**{k: v for k, v in given.items() if k != key and isinstance(v, list)}, **given[key]}
    rows = next((v for v in given.values() if isinstance(v, list) and v and isinstance(v[0], Mapping)), None)
    if rows is not None:
        return {str(k): [row[k] for row in rows] for k in rows[0] if all(k in row for row in rows)}
    return {k: v for k, v in given.items() if isinstance(v, list)}


def _metrics(table: Mapping[str, list[Any]]) -> list[str]:
    return [name for name, values in table.items() if name not in _PLACE and values and all(map(_is_number, values))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_case(given: Mapping[str, Any]) -> bool:
    """Two metrics or more of the same four or more runs, each of them a positive number."""
    table = columns(given)
    names = _metrics(table)
    lengths = {len(table[name]) for name in names}
    reserved = {"effects", "variances", "delta_pct", "before", "after", "busy_before", "ratios", "n", "p"}
    return len(names) >= 2 and len(lengths) == 1 and min(lengths) >= 4 and not reserved & set(names)


def dependent(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    """Identities, residual correlations and the effective number, under the names asked for."""
    table = columns(given)
    names = _metrics(table)
    logs = log_of([table[name] for name in names], where="metrics")
    return _named(asked, names, logs, _groups(table, len(logs[0])))


def _groups(table: Mapping[str, list[Any]], n: int) -> Ints:
    keys = [table[k] for k in ("arm", "obs", "observation", "rack") if k in table and len(table[k]) == n]
    labels = list(zip(*keys, strict=True)) if keys else [()] * n
    index = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([index[label] for label in labels])


def _named(asked: Mapping[str, Any], names: list[str], logs: Floats, groups: Ints, context: str = "") -> Tree:
    tree: Tree = {}
    for key, value in asked.items():
        if isinstance(value, Mapping):
            tree[key] = _named(value, names, logs, groups, f"{context} {key}")
        else:
            tree[key] = _quantity(f"{context} {key}".lower(), key.lower(), names, logs, groups)
    return tree


#: Words in a path and the statistic of two metrics they ask for, the first that fits.
_STATISTICS = (
    (r"\bcv|_cv|cv_", "cv"),
    (r"r2|r_squared|rsq|r\^2", "r2"),
    (r"corr|\br\b", "r"),
    (r"kind", "kind"),
    (r"ratio|factor|over|mean|product|times|multiple", "factor"),
)


def _quantity(context: str, key: str, names: list[str], logs: Floats, groups: Ints) -> Any:
    """One number by what its path contains: effective, eigenvalues, matrix, or a statistic of two named metrics."""
    corr = witnesses.correlations(witnesses.residuals(logs, groups))
    if "effective" in key or "eff_n" in key or key in ("n_eff", "m_eff"):
        return witnesses.effective_number(corr)
    if "eigen" in key:
        return sorted(np.linalg.eigvalsh(corr).tolist(), reverse=True)
    if re.search(r"restat|dependent|duplicate", key):
        return [names[r.metric] for r in witnesses.restated(logs, groups)]
    two = _two_metrics(context, names)
    if two is None:
        return corr.tolist() if re.search(r"matrix|corr", key) else None
    x, y = two
    kind, factor, cv = witnesses.exact_factor(logs[x], logs[y])
    answers = {"cv": cv, "r2": float(corr[x, y] ** 2), "r": float(corr[x, y]), "kind": kind, "factor": factor}
    return next((answers[statistic] for pattern, statistic in _STATISTICS if re.search(pattern, context)), None)


def _two_metrics(context: str, names: list[str]) -> tuple[int, int] | None:
    """The metrics a name mentions, longest names first; one alone is taken against the first column."""
    hits: list[int] = []
    for index in sorted(range(len(names)), key=lambda i: -len(names[i])):
        stem = names[index].lower().removesuffix("_ms")
        if stem in context or stem.split("_")[0] in context:
            hits.append(index)
            context = context.replace(stem, " ")
    hits = sorted(set(hits))[:2]
    if len(hits) == 1 and hits[0] != 0:
        hits = [0, hits[0]]
    return (hits[0], hits[1]) if len(hits) == 2 else None
