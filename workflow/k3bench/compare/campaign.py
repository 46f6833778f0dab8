"""A whole campaign, all planned observations counted, becomes one `k3bench.comparison/1`.

In: the plan and every record measured under it. Out: `Comparison`, and `Noise` from its zero-change observations.
No file, no clock, no hand-picked pair: what the plan names and nobody measured is a row that says so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from k3bench.compare import calibration, cited, kinds, machine, outstanding
from k3bench.compare.corroborate import count_witnesses
from k3bench.compare.findings import Checked, check_runs
from k3bench.compare.headline import headline_of
from k3bench.compare.inputs import Inputs
from k3bench.compare.levels import LevelContext, level_result, number
from k3bench.compare.outliers import Sweep, judge_sweep, median_of_valid
from k3bench.compare.pairs import Floats, Pairs, pair_up
from k3bench.compare.provenance import dates_of, inputs_of, provenance_of, setting_of
from k3bench.compare.rows import Rows, run_values, with_builds
from k3bench.compare.table import run_table
from k3bench.compare.verdict import Rule
from k3bench.compare.zero import zero_change_of
from k3bench.errors import StatisticsError
from k3bench.metrics import METRICS, same_steps
from k3bench.records.comparison import (
    Comparison,
    DeltaBand,
    Flag,
    Floor,
    Health,
    LevelResult,
    MetricResult,
    RangeBand,
    Restatement,
    Witnesses,
)
from k3bench.records.equivalence import Equivalence
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Allocation, Block, Measurement
from k3bench.records.noise import Noise
from k3bench.records.plan import Build, Plan
from k3bench.records.residency import Residency


def campaign(
    plan: Plan,
    points: Iterable[Measurement],
    *,
    blocks: Sequence[Block] = (),
    allocations: Sequence[Allocation] = (),
    builds: Sequence[Build] = (),
    fingerprints: Sequence[Fingerprint] = (),
    residency: Mapping[str, Residency] | None = None,
    equivalence: Sequence[Equivalence] = (),
    noise: Sequence[Noise] = (),
    raw: Mapping[str, str] | None = None,
) -> Comparison:
    """The verdict of a campaign. `points` are its accepted measurements, `raw` digests of the files beside them."""
    given = Inputs(
        plan,
        tuple(points),
        tuple(blocks),
        tuple(allocations),
        tuple(builds),
        tuple(fingerprints),
        residency or {},
        tuple(equivalence),
        tuple(noise),
        raw,
    )
    with _collector_off():
        return _Comparing(given).comparison()


@contextmanager
def _collector_off() -> Iterator[None]:
    """Hundreds of thousands of records that all stay alive: the cycle collector would walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def noise_record(
    plan: Plan,
    points: Iterable[Measurement],
    *,
    blocks: Sequence[Block] = (),
    fingerprints: Sequence[Fingerprint] = (),
) -> Noise | None:
    """The calibration from a campaign's zero-change observations; None where it has none."""
    given = Inputs(plan, tuple(points), tuple(blocks), fingerprints=tuple(fingerprints))
    comparing = _Comparing(given)
    if comparing.zero is None:
        return None
    return calibration.noise_of(
        comparing.zero, comparing.table, comparing.setting, comparing.zero_dates, (plan.digest(),)
    )


class _Comparing:
    """One campaign on its way to a record; each step reads what the steps before it left."""

    def __init__(self, given: Inputs) -> None:
        self.given, recipe = given, given.plan.recipe
        self.recipe = recipe
        self.table = run_table(given.plan, given.points, given.blocks)
        if recipe.primary_metric not in self.table.metrics:
            raise StatisticsError(
                f"no measurement holds the primary metric {recipe.primary_metric}",
                where=recipe.name,
                fix=f"metrics measured: {', '.join(self.table.metrics) or 'none'}",
            )
        self.headline = self.table.metrics.index(recipe.primary_metric)
        self.primary = self.table.levels.index(recipe.primary_level)
        # a recipe whose arms are equal is a zero-change campaign: it is judged like any other, and calibrates
        self.real = self.table.chosen(zero_change=False) or self.table.chosen(zero_change=True)
        self.zero = calibration.zero_side(self.table, self.headline, Rule(margin=recipe.margin_pct / 100.0))
        self.zero_dates = dates_of(self.table, self.table.chosen(zero_change=True))
        self.differing = (*machine.undeclared(given.builds, recipe), *cited.other_builds(given))
        self.unrecorded = cited.unrecorded(given)
        self.setting = setting_of(given.plan, given.points, given.fingerprints)
        # own zero-change observations come first; an earlier campaign's are used where there are none
        fit = calibration.matching(given.noise, self.setting, recipe.primary_metric, recipe.simulated)
        self.earlier = fit if self.zero is None or self.zero.tau0() is None else None
        self.floor: Floor = calibration.floor_of(self.zero, self.zero_dates, recipe.name, self.earlier)
        self.rule = Rule(
            margin=recipe.margin_pct / 100.0, tau0=self.floor.tau0_log, primary=self.primary, looks=recipe.looks
        )

    def comparison(self) -> Comparison:
        """All steps, in order."""
        signs = [1 if METRICS[m].better == "lower" else -1 for m in self.table.metrics]
        pairs, sweep = self._judge(signs)
        rows = Rows(self.table, self.headline, self.rule.tau0)
        checked = check_runs(self.table, self.headline, _pairs_at(pairs, self.headline), self.real)
        flags = self._flags(checked, rows)
        per_metric = [self._levels(sweep, m, signs[m], flags) for m in range(len(self.table.metrics))]
        levels = per_metric[self.headline]
        witnesses = self._witnesses(pairs, levels, per_metric)
        observations = with_builds(rows.all(self.given.allocations), self.given.builds)
        zero = None if self.zero is None else zero_change_of(self.zero, self.table, self.rule, self.primary)
        timed = cited.timed_builds(self.given)
        traced = cited.traced_elsewhere(self.given.residency, timed)
        own = {name: record for name, record in self.given.residency.items() if name not in traced}
        of_traces = self._traced_level(levels, own)
        how = kinds.mechanism(own, *self._gains(of_traces))
        elsewhere = cited.probed_elsewhere(self.given.equivalence, timed)
        same = kinds.equality(self.given.equivalence, elsewhere)
        others = self._others(per_metric, witnesses.restatements if witnesses else ())
        digests = {(a.observation, r.point): r.digest for a in self.given.allocations for r in a.accepted}
        metric = METRICS[self.recipe.primary_metric]
        return Comparison(
            campaign=self.recipe.name,
            title=self.recipe.title,
            kind="measured",
            simulated=self.recipe.simulated or any(p.simulated for p in self.given.points),
            recipe_digest=self.recipe.digest(),
            inputs=inputs_of(self.given, self.earlier),
            metric=metric.tag,
            metric_unit=metric.unit,
            better=metric.better,
            primary_level=self.recipe.primary_level,
            alpha=self.rule.alpha,
            margin_pct=self.recipe.margin_pct,
            looks=self.recipe.looks,
            floor=self.floor,
            headline=headline_of(levels, self.primary, metric.tag, len(self.real)),
            levels=levels,
            other_metrics=others,
            observations=observations,
            runs=run_values(self.table, self.headline, digests),
            witnesses=witnesses,
            health=self._health(checked),
            zero_change=zero,
            mechanism=how,
            equality=same,
            outstanding=(
                *self.differing,
                *self.unrecorded,
                *cited.raw_not_kept(self.given),
                *outstanding.not_profiled(self.given.plan, self.given.residency),
                *cited.not_its_own(traced),
                *cited.not_of_these_builds(elsewhere),
                *cited.probed_less(self.given),
                *outstanding.left_open(how, same, observations, levels, zero),
            ),
            provenance=provenance_of(self.given),
        )

    def _health(self, checked: Checked) -> Health:
        """The run checks with the machine's own signs beside them."""
        seen = machine.clocks(self.given.blocks, self.given.fingerprints)
        return checked.health.model_copy(update={"findings": (*checked.health.findings, *seen)})

    def _judge(self, signs: Sequence[int]) -> tuple[Pairs, Sweep]:
        """Every metric and level at once; where more is better the pairs are flipped, so that down is good."""
        pairs = pair_up(np.log(self.table.values[:, :, self.real]), self.table.after[self.real])
        flip = np.array(signs, dtype=float)[:, None, None, None]
        pairs = Pairs(pairs.log_ratio * flip, np.broadcast_to(pairs.order, pairs.log_ratio.shape))
        return pairs, judge_sweep(pairs, self.rule)

    def _flags(self, checked: Checked, rows: Rows) -> list[frozenset[Flag]]:
        """Flags of each level that need records rather than pairs."""
        flags: list[frozenset[Flag]] = []
        missing = self.table.planned[self.real] & ~self.table.measured[:, self.real]
        for i in range(len(self.table.levels)):
            found: dict[Flag, bool] = {
                "environment_differs": bool(self.differing),
                "environment_unverified": bool(self.unrecorded),
                "floor_assumed": self.floor.assumed,
                "incomplete": bool(missing[i].any()),
                "levels_share_start": len(self.table.levels) > 1,
                "nonparametric_disagrees": rows.crosscheck_disagrees(i, self.real),
                "shared_process": any(p.restart == "none" for p in self.given.points),
                "zero_change_called": self.zero is not None and self.zero.called,
            }
            flags.append(frozenset(checked.flags[i]) | {name for name, on in found.items() if on})
        return flags

    def _levels(
        self, sweep: Sweep, metric: int, sign: int, flags: Sequence[frozenset[Flag]]
    ) -> tuple[LevelResult, ...]:
        medians = self._medians(metric)
        return tuple(
            level_result(sweep, (metric, i), self.rule, self._context(sweep, metric, i, sign, flags[i], medians))
            for i in range(len(self.table.levels))
        )

    def _context(
        self, sweep: Sweep, metric: int, i: int, sign: int, flags: frozenset[Flag], medians: tuple[Floats, Floats]
    ) -> LevelContext:
        head, level = metric == self.headline, self.table.levels[i]
        usable_zero = self.zero if head and self.zero is not None and not self.zero.blocked else None
        k = int(sweep.verdict.pooled.k[metric, i])
        return LevelContext(
            concurrency=level,
            is_primary=i == self.primary,
            sign=sign,
            before_median=number(medians[0][i]),
            after_median=number(medians[1][i]),
            n_planned=len(self.real),
            flags=flags,
            range_band=calibration.range_band(usable_zero, level, self.recipe.name) or self._earlier_band(head, level),
            delta_band=calibration.delta_band(usable_zero, i, self.rule.tau0, k) or self._earlier_delta(head, level, k),
        )

    def _earlier_delta(self, head: bool, level: int, observations: int) -> DeltaBand | None:
        if not head or self.earlier is None:
            return None
        return calibration.earlier_delta_band(self.earlier, level, observations, self.recipe.blocks, self.rule.tau0)

    def _earlier_band(self, head: bool, level: int) -> RangeBand | None:
        if not head or self.earlier is None:
            return None
        return next((n.range_band for n in self.earlier.levels if n.concurrency == level), None)

    def _medians(self, metric: int) -> tuple[Floats, Floats]:
        """Median over observations of each one's median run: every observation counts once."""
        values, after = self.table.values[metric][:, self.real], self.table.after[self.real]
        arms = (median_of_valid(np.where(after == arm, values, np.nan)) for arm in (False, True))
        before, after_ = (median_of_valid(m) for m in arms)
        return before, after_

    def _witnesses(
        self, pairs: Pairs, levels: Sequence[LevelResult], per_metric: Sequence[tuple[LevelResult, ...]]
    ) -> Witnesses | None:
        if len(self.table.metrics) < 2:
            return None
        return count_witnesses(
            self.table,
            self.headline,
            self.primary,
            self.real,
            _pairs_at(pairs, self.headline),
            levels,
            self._others(per_metric, ()),
            same_steps(in_process=any(p.restart == "none" for p in self.given.points)),
        )

    def _others(
        self, per_metric: Sequence[tuple[LevelResult, ...]], found: Sequence[Restatement]
    ) -> tuple[MetricResult, ...]:
        """The other metrics; one restates another only if it does so at every level."""
        rows = []
        for m, tag in enumerate(self.table.metrics):
            if m == self.headline:
                continue
            of = [{r.of for r in found if r.metric == tag and r.concurrency == c} for c in self.table.levels]
            shared = set.intersection(*of)
            rows.append(
                MetricResult(
                    metric=tag,
                    unit=METRICS[tag].unit,
                    better=METRICS[tag].better,
                    restates=min(shared, default=None),
                    levels=per_metric[m],
                )
            )
        return tuple(rows)

    def _traced_level(self, levels: Sequence[LevelResult], own: Mapping[str, Residency]) -> LevelResult | None:
        """The level whose gain a trace may explain: the one that was profiled; None where several were."""
        profiled = {t.level for record in own.values() for t in record.traces if t.level is not None}
        if not profiled:
            return levels[self.primary]
        return next((level for level in levels if {level.concurrency} == profiled), None)

    def _gains(self, level: LevelResult | None) -> tuple[float | None, float | None]:
        """Milliseconds a step that a level saves, and surely saves; a step is a token where nothing is speculated."""
        if level is None or level.before_median is None or not self.recipe.primary_metric.startswith("tpot"):
            return None, None
        high = None if level.ci95 is None else level.ci95.high_pct
        return _of(level.before_median, level.delta_pct), _of(level.before_median, high)


def _of(before_ms: float, delta_pct: float | None) -> float | None:
    return None if delta_pct is None else -before_ms * delta_pct / 100.0


def _pairs_at(pairs: Pairs, metric: int) -> Pairs:
    return Pairs(pairs.log_ratio[metric], pairs.order[metric])
