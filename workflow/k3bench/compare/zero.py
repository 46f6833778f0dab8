"""The zero-change observations as a part of the comparison: their own verdict tests the pipeline.

In: a `ZeroSide`. Out: `ZeroChange`. Out of scope: calibrating from them (`calibration`).
"""

from __future__ import annotations

import numpy as np

from k3bench.compare import calibration
from k3bench.compare.levels import LevelContext, level_result
from k3bench.compare.table import RunTable
from k3bench.compare.verdict import Rule
from k3bench.metrics import METRICS
from k3bench.records.comparison import Flag, LevelResult, ZeroChange
from k3bench.units import pct_from_log


def zero_change_of(zero: calibration.ZeroSide, table: RunTable, rule: Rule, primary: int) -> ZeroChange:
    """Levels judged with the assumed floor and Holm over all of them; `called` says what must not be there."""
    judged = Rule(margin=rule.margin, alpha=rule.alpha)
    return ZeroChange(
        n_observations=zero.n_observations,
        levels=tuple(_level(zero, table, judged, i, i == primary) for i in range(len(table.levels))),
        run_sd_pct={
            str(level): pct_from_log(float(sd))
            for level, sd in zip(table.levels, zero.run_sd, strict=True)
            if np.isfinite(sd)
        },
        tau_log=zero.spread(),
        called=zero.called,
        called_p_holm=zero.called_p,
        blocked=zero.blocked,
    )


def _level(zero: calibration.ZeroSide, table: RunTable, rule: Rule, i: int, is_primary: bool) -> LevelResult:
    recipe, flags = table.plan.recipe, set[Flag]()
    if zero.called:
        flags.add("zero_change_called")
    return level_result(
        zero.sweep,
        (i,),
        rule,
        LevelContext(
            concurrency=table.levels[i],
            is_primary=is_primary,
            sign=1 if METRICS[recipe.primary_metric].better == "lower" else -1,
            before_median=None,
            after_median=None,
            n_planned=len(table.chosen(zero_change=True)),
            flags=frozenset(flags),
            range_band=calibration.range_band(zero, table.levels[i], recipe.name),
            delta_band=calibration.delta_band(zero, i, rule.tau0, zero.n_observations),
        ),
    )
