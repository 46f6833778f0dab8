"""Plan and points become arrays: every planned run has its place, measured or not.

In: a plan, its accepted measurements and closing block records. Out: `RunTable`. No run is chosen by hand: a point that
the plan does not know, or that comes twice, is an error; a planned one that is not there is an empty place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from k3bench.compare.pairs import Bools, Floats
from k3bench.errors import StatisticsError
from k3bench.metrics import METRICS
from k3bench.records.measurement import ARMS_OF, Block, Measurement
from k3bench.records.plan import Plan, PlannedObservation

#: level, observation, position
Place = tuple[int, int, int]
RUNS_A_BLOCK = 4


@dataclass(frozen=True)
class RunTable:
    """Axes are metric, level, observation, position; positions count the runs of an observation in planned order."""

    plan: Plan
    metrics: tuple[str, ...]
    levels: tuple[int, ...]
    observations: tuple[PlannedObservation, ...]
    #: NaN where the run is absent or invalid
    values: Floats
    after: Bools
    planned: Bools
    measured: Bools
    #: why a measured run does not count
    invalid: Mapping[Place, str]
    points: Mapping[Place, Measurement]

    @property
    def log_values(self) -> Floats:
        """Natural logs; every value was checked when the table was filled."""
        return np.log(self.values)

    def chosen(self, zero_change: bool) -> list[int]:
        """Indices of the observations on one side of the wall between real and zero-change ones."""
        return [i for i, o in enumerate(self.observations) if o.zero_change == zero_change]


def run_table(plan: Plan, points: Iterable[Measurement], blocks: Sequence[Block] = ()) -> RunTable:
    """Fill the table. Raises `StatisticsError` for points that are not this plan's, come twice, or hold no number."""
    observations, levels = plan.observations, tuple(sorted(plan.recipe.workload.levels))
    width = RUNS_A_BLOCK * max(len(o.blocks) for o in observations)
    placed = _place_all(plan, points, levels)
    shape = (len(levels), len(observations), width)
    measured, planned = np.zeros(shape, dtype=bool), np.zeros(shape[1:], dtype=bool)
    after = np.zeros(shape[1:], dtype=bool)
    for i, observation in enumerate(observations):
        arms = [arm == "after" for block in observation.blocks for arm in ARMS_OF[block.order]]
        after[i, : len(arms)], planned[i, : len(arms)] = arms, True
    # padding past an observation's last block still alternates, so that no pair there holds one arm twice
    after[~planned] = np.broadcast_to(np.arange(width) % 2 == 1, after.shape)[~planned]
    if placed:
        measured[tuple(np.array(list(placed)).T)] = True
    invalid = _invalid(placed, blocks, plan.recipe.primary_metric)
    metrics = tuple(m for m in METRICS if any(m in p.metrics for p in placed.values())) or (plan.recipe.primary_metric,)
    values = _values(placed, invalid, metrics, shape)
    return RunTable(plan, metrics, levels, observations, values, after, planned, measured, invalid, placed)


def _place_all(plan: Plan, points: Iterable[Measurement], levels: tuple[int, ...]) -> dict[Place, Measurement]:
    """Where every point belongs."""
    level_at = {level: i for i, level in enumerate(levels)}
    at = {o.id: (i, {b.number: (j, b.order) for j, b in enumerate(o.blocks)}) for i, o in enumerate(plan.observations)}
    placed: dict[Place, Measurement] = {}
    for point in points:
        name = point.name
        index, numbers = at.get(point.observation, (None, {}))
        block = numbers.get(name.block)
        drawn = block is not None and name.level in level_at and block[1] == point.order
        if index is None or block is None or not drawn or point.zero_change != plan.observations[index].zero_change:
            raise StatisticsError(
                "a measurement that this plan did not draw",
                where=point.id,
                fix="compare a campaign with its own plan.json; a changed recipe needs a folder of its own",
            )
        place = (level_at[name.level], index, RUNS_A_BLOCK * block[0] + name.run)
        if place in placed:
            raise StatisticsError(
                "a planned point has two accepted measurements",
                where=f"{placed[place].id} and {point.id}",
                fix="one attempt of a block counts: supersede the other",
            )
        placed[place] = point
    return placed


def _invalid(placed: Mapping[Place, Measurement], blocks: Sequence[Block], primary: str) -> dict[Place, str]:
    """Runs that broke a criterion written before the data, or whose block did; the reason names it."""
    void = {(b.observation, b.block): _first_failure(b.checks) for b in blocks if not b.valid}
    reasons = {}
    for place, point in placed.items():
        reason = void.get((point.observation, point.name.block)) if void else None
        if reason is not None:
            reasons[place] = f"block {point.name.block}: {reason}"
        elif not point.valid:
            reasons[place] = _first_failure(point.checks)
        elif primary not in point.metrics:
            reasons[place] = f"no {primary}: the record holds no value of the metric that decides"
    return reasons


def _columns(rows: Sequence[Mapping[str, float]], metrics: Sequence[str]) -> Floats:
    """Metric by point; NaN where a point lacks a metric."""
    try:
        pick = operator.itemgetter(*metrics)
        return np.array([pick(row) for row in rows], dtype=np.float64).reshape(len(rows), -1).T
    except KeyError:
        return np.array([[row.get(m, np.nan) for m in metrics] for row in rows], dtype=np.float64).T


def _first_failure(checks: Iterable) -> str:  # type: ignore[type-arg]
    check = next(c for c in checks if not c.ok)
    return f"{check.name}: {check.detail}" if check.detail else str(check.name)


def _values(
    placed: Mapping[Place, Measurement], invalid: Mapping[Place, str], metrics: Sequence[str], shape: tuple[int, ...]
) -> Floats:
    values = np.full((len(metrics), *shape), np.nan)
    usable = [(place, point) for place, point in placed.items() if place not in invalid]
    if usable:
        where = tuple(np.array([place for place, _ in usable]).T)
        for m, column in enumerate(_columns([point.metrics for _, point in usable], metrics)):
            values[m][where] = column
    bad = ~np.isnan(values) & ~(np.isfinite(values) & (values > 0))
    if bad.any():
        m, *place = (int(i) for i in np.argwhere(bad)[0])
        raise StatisticsError(
            f"{metrics[m]} = {values[(m, *place)]} is no measurement: run values are positive finite numbers",
            where=placed[(place[0], place[1], place[2])].id,
            fix="the run should have failed a validity check; measure its block again",
        )
    return values
