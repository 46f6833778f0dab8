"""What each kind of golden case asks for, told by the shape of its input; every number from the rule's own functions.

In: a case's `input` and `expected` (the latter only for the names asked for). Out: a tree of numbers with those names.
Out of scope: comparing them (`selfcheck`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from k3bench.compare.cases import dependent, design, effects, figures, sweep
from k3bench.compare.cases.names import Tree
from k3bench.errors import StatisticsError


def compute(given: Mapping[str, Any], asked: Mapping[str, Any]) -> Tree:
    """The numbers of one case. Raises `StatisticsError` where no kind has this shape."""
    for fits, kind in _KINDS:
        if fits(given, asked):
            return kind(given, asked)
    raise StatisticsError(
        f"no kind of case has the inputs {', '.join(sorted(given)) or '(none)'}",
        fix="inputs: runs, observations, effects+variances, pair_log_ratios, p, n, ratios, rows, run_sd, metrics",
    )


def _has(*keys: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], bool]:
    return lambda given, asked: all(key in given for key in keys)


def _first_of(given: Mapping[str, Any], key: str) -> Any:
    value = given.get(key)
    return value[0] if isinstance(value, list) and value else None


_KINDS: tuple[tuple[Callable[[Mapping[str, Any], Mapping[str, Any]], bool], Callable[..., Tree]], ...] = (
    (lambda g, a: dependent.is_case(g), dependent.dependent),
    (_has("observations"), sweep.verdict),
    (lambda g, a: isinstance(_first_of(g, "runs"), Mapping), sweep.one_observation),
    (lambda g, a: isinstance(_first_of(g, "runs"), (int, float)), design.bands),
    (_has("effects", "variances"), effects.random_effects),
    (_has("pair_log_ratios", "margins"), effects.equivalence),
    (_has("pair_log_ratios"), effects.nonparametric),
    (_has("ratios"), figures.over_observations),
    (_has("p"), design.adjusted),
    (_has("run_sd", "effect"), design.planning),
    (lambda g, a: isinstance(g.get("n"), list), design.by_n),
    (lambda g, a: str(g.get("n", "")).isdigit() and any(isinstance(v, list) for v in g.values()), design.range_p),
    (_has("delta_pct", "obs2_before", "obs2_after"), figures.printed_gap),
    (lambda g, a: isinstance(_first_of(g, "rows"), Mapping) and "busy_before" in _first_of(g, "rows"), figures.busy),
    (_has("rows"), figures.printed_deltas),
    (lambda g, a: bool(a) and all(str(key).isdigit() for key in a), design.range_rule),
    (lambda g, a: not g, design.smallest_p),
)
