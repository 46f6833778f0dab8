"""Every planned observation becomes a row, present or not.

In: the run table and the rule's arrays. Out: `ObservationRow`s and `RunValue`s. Out of scope: the pooled result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from k3bench.compare import crosscheck
from k3bench.compare.interval import PerObservation, per_observation
from k3bench.compare.levels import interval_pct, number
from k3bench.compare.moved import moved_pct, side_moved
from k3bench.compare.outliers import median_of_valid
from k3bench.compare.pairs import Bools, Floats, Pairs, pair_up
from k3bench.compare.pooled import MIN_PAIRS
from k3bench.compare.table import RUNS_A_BLOCK, Place, RunTable
from k3bench.records.builds import INSTALLED
from k3bench.records.comparison import DroppedPair, ObservationLevel, ObservationRow, RunValue
from k3bench.records.measurement import Allocation, Measurement
from k3bench.records.plan import Build, PlannedObservation
from k3bench.units import pct_from_log

Status = Literal["complete", "incomplete", "missing"]


class Rows:
    """Per-observation statistics of the headline metric, real and zero-change observations apart where they compare."""

    def __init__(self, table: RunTable, metric: int, tau0: float) -> None:
        self.table = table
        logs = np.log(table.values[metric])
        self.values = table.values[metric]
        self.pairs: Pairs = pair_up(logs, table.after)
        self.each: PerObservation = per_observation(self.pairs)
        self.reported, self.order_effect = self.each.reported(), self.each.order_effect()
        self.low, self.high = self.reported.interval(0.95)
        own = type(self.reported)(self.reported.mean, self.reported.variance + tau0**2, self.reported.df)
        self.own_low, self.own_high = own.interval(0.95)
        self.p = self.reported.p()
        self.sign_flip, self.wilcoxon = _crosschecks(self.pairs)
        self.medians = {arm: self._medians(arm) for arm in ("before", "after")}
        self.moved = {arm: self._moved(arm) for arm in ("before", "after")}
        self.points: dict[int, list[Measurement]] = {}
        for place, point in table.points.items():
            self.points.setdefault(place[1], []).append(point)
        self.invalid: dict[int, list[Place]] = {}
        for place in sorted(table.invalid):
            self.invalid.setdefault(place[1], []).append(place)

    def _medians(self, arm: str) -> Floats:
        members = self.table.after == (arm == "after")
        return median_of_valid(np.where(members, self.values, np.nan))

    def _moved(self, arm: str) -> Floats:
        """Real observations against real ones only."""
        out = np.full(self.medians[arm].shape, np.nan)
        real = self.table.chosen(zero_change=False)
        if real:
            out[:, real] = moved_pct(self.medians[arm][:, real])
        return out

    def crosscheck_disagrees(self, level: int, observations: list[int]) -> bool:
        """A t interval and an exact test on opposite sides of 0.05, where the exact test could reach it."""
        exact = np.where(np.isnan(self.sign_flip), self.wilcoxon, self.sign_flip)[level, observations]
        able = self.each.n[level, observations] >= crosscheck.MIN_PAIRS_TO_DISAGREE
        return bool((able & ((self.p[level, observations] < 0.05) != (exact < 0.05))).any())

    def level(self, i: int, o: int) -> ObservationLevel:
        """One observation at one level."""
        n = int(self.each.n[i, o])
        mean = self.reported.mean[i, o]
        before, after = self.moved["before"][i, o], self.moved["after"][i, o]
        return ObservationLevel(
            concurrency=self.table.levels[i],
            n_pairs=n,
            set_aside=None if n >= MIN_PAIRS else f"{n} valid pairs, {MIN_PAIRS} are needed",
            before_median=number(self.medians["before"][i, o]),
            after_median=number(self.medians["after"][i, o]),
            estimate_log=number(mean),
            sd_log=number(self.each.sd[i, o]),
            delta_pct=number(pct_from_log(mean)) if np.isfinite(mean) else None,
            ci95=interval_pct(self.low[i, o], self.high[i, o]),
            own_ci95=interval_pct(self.own_low[i, o], self.own_high[i, o]),
            p=number(self.p[i, o]),
            interval_basis="order_adjusted" if self.order_effect[i, o] else "pairs",
            order_p=number(self.each.order_p[i, o]),
            sign_flip_p=number(self.sign_flip[i, o]),
            wilcoxon_p=number(self.wilcoxon[i, o]),
            before_moved_pct=number(before),
            after_moved_pct=number(after),
            moved=side_moved(before, after),
        )

    def all(self, allocations: Sequence[Allocation]) -> tuple[ObservationRow, ...]:
        """Every planned observation, in planned order."""
        by_observation: dict[str, list[Allocation]] = {}
        for allocation in allocations:
            by_observation.setdefault(allocation.observation, []).append(allocation)
        return tuple(self.row(o, by_observation) for o in range(len(self.table.observations)))

    def row(self, o: int, allocations: dict[str, list[Allocation]]) -> ObservationRow:
        """One planned observation. Runs are counted over levels: a run is valid if it is so at every level."""
        planned = self.table.observations[o]
        places = self.table.planned[o]
        valid: Bools = np.asarray(np.isfinite(self.values[:, o]).all(axis=0))
        seen = dict(zip(self.table.levels, self.table.measured[:, o, places], strict=True))
        status, reason = _status(planned, seen, allocations.get(planned.id, []))
        points = self.points.get(o, [])
        return ObservationRow(
            observation=planned.id,
            rack=planned.rack,
            build_pair=planned.pair,
            job=", ".join(sorted({p.job for p in points})) or None,
            started_at=min((p.started for p in points), default=None),
            ended_at=max((p.ended for p in points), default=None),
            zero_change=planned.zero_change,
            status=status,
            reason=reason,
            order=tuple(b.order for b in planned.blocks),
            n_runs_planned=int(places.sum()),
            n_runs_valid=int(valid[places].sum()),
            levels=() if status == "missing" else tuple(self.level(i, o) for i in range(len(self.table.levels))),
            dropped_pairs=self._dropped(o),
        )

    def _dropped(self, o: int) -> tuple[DroppedPair, ...]:
        """Pairs left out because a run of theirs was measured and found invalid."""
        seen: dict[tuple[int, int], DroppedPair] = {}
        for place in self.invalid.get(o, []):
            pair = _dropped_pair(self.table.points[place], place[2], self.table.invalid[place])
            seen.setdefault((place[0], place[2] // 2), pair)
        return tuple(seen.values())


def _dropped_pair(point: Measurement, position: int, reason: str) -> DroppedPair:
    return DroppedPair(
        concurrency=point.name.level, block=point.name.block, pair=position // 2 + 1, arm=point.name.arm, reason=reason
    )


def _crosschecks(pairs: Pairs) -> tuple[Floats, Floats]:
    """Exact p-values of every observation at every level; rows of equal size go through together."""
    shape = pairs.log_ratio.shape[:-1]
    n = pairs.valid.sum(axis=-1)
    sign_flip, wilcoxon = np.full(shape, np.nan), np.full(shape, np.nan)
    for size in np.unique(n[n >= 2]):
        at = n == size
        rows = pairs.log_ratio[at]
        rows = rows[~np.isnan(rows)].reshape(-1, int(size))
        wilcoxon[at] = crosscheck.wilcoxon_p(rows)
        if size <= crosscheck.MAX_SIGN_FLIP_PAIRS:
            sign_flip[at] = crosscheck.sign_flip_p(rows)
    return sign_flip, wilcoxon


def _status(
    planned: PlannedObservation, seen: Mapping[int, Bools], allocations: list[Allocation]
) -> tuple[Status, str | None]:
    """complete, incomplete or missing, and why. `seen`: which planned runs were measured, by level."""
    somewhere, everywhere = np.any([*seen.values()], axis=0), np.all([*seen.values()], axis=0)
    if everywhere.all():
        return "complete", None
    failures = [a.reason for a in allocations if a.status == "failed" and a.reason]
    lost = [b.number for j, b in enumerate(planned.blocks) if not everywhere[4 * j : 4 * j + 4].all()]
    short = [level for level, runs in seen.items() if (somewhere & ~runs).any()]
    why = "; ".join(failures) or _why_lost(lost, short, allocations)
    if not somewhere.any():
        return "missing", why
    return "incomplete", f"{why} ({', '.join(f'b{n:03d}' for n in lost)} of {len(planned.blocks)} blocks)"


def _why_lost(blocks: Sequence[int], short: Sequence[int], allocations: Sequence[Allocation]) -> str:
    """`short`: levels that lack runs which other levels have."""
    if not allocations:
        return "no record of any allocation"
    if short:
        return f"points are missing at concurrency {', '.join(map(str, short))}"
    accepted = {ref.point.partition("-")[0] for allocation in allocations for ref in allocation.accepted}
    if accepted.intersection(f"b{number:03d}" for number in blocks):
        return "a block's closing record is missing, so its points do not count"
    return "not all blocks were measured"


def with_builds(rows: Sequence[ObservationRow], builds: Sequence[Build]) -> tuple[ObservationRow, ...]:
    """Rows that say what their builds were made from, where anything was made."""
    return tuple(row.model_copy(update=_made_from(row, builds)) for row in rows)


def _made_from(row: ObservationRow, builds: Sequence[Build]) -> dict[str, object]:
    arms = ("before",) if row.zero_change else ("before", "after")
    mine = [b for b in builds if b.pair == row.build_pair and b.arm in arms]
    if all(b.kind == INSTALLED and not b.rebuild for b in mine):
        return {}
    return {"rebuilt": any(b.rebuild for b in mine), "made_from": {b.arm: b.origin for b in mine}}


def run_values(table: RunTable, metric: int, digests: dict[tuple[str, str], str]) -> tuple[RunValue, ...]:
    """A dot a run and level, every measured one; `value` is None where it does not count."""
    values = table.values[metric]
    by_observation: dict[int, list[Place]] = {}
    for place in table.points:
        by_observation.setdefault(place[1], []).append(place)
    found: list[RunValue] = []
    for observation in sorted(by_observation):
        places = sorted(by_observation[observation], key=lambda p: (p[2], p[0]))
        found += _RUN_VALUES.validate_python([_run_value(table, place, values[place], digests) for place in places])
    return tuple(found)


def _run_value(table: RunTable, place: Place, value: float, digests: dict[tuple[str, str], str]) -> dict[str, object]:
    point, reason = table.points[place], table.invalid.get(place)
    stem = str(point.name)
    return {
        "record_id": f"{point.observation}/{stem}",
        "digest": digests.get((point.observation, stem)),
        "observation": point.observation,
        "block": place[2] // RUNS_A_BLOCK,
        "position": place[2] + 1,
        "arm": point.name.arm,
        "concurrency": point.name.level,
        "value": None if value != value else float(value),
        "valid": reason is None,
        "reason": reason,
    }


#: Validates the dots of an observation in one go: a campaign can have hundreds of thousands.
_RUN_VALUES: TypeAdapter[list[RunValue]] = TypeAdapter(list[RunValue])
