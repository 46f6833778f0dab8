"""What the zero-change observations show becomes a floor, bands, and a record that later comparisons pick up.

In: the run table of a campaign, earlier noise records. Out: `ZeroSide`, `Floor`, `Noise`. Zero-change observations are
judged by the rule with the assumed floor: calibrated on themselves, they could never be called anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3bench.compare import noise as bands
from k3bench.compare.interval import Estimate
from k3bench.compare.levels import number
from k3bench.compare.meta import tau_squared
from k3bench.compare.outliers import Sweep, judge_sweep
from k3bench.compare.pairs import Floats, Pairs, pair_up
from k3bench.compare.planning import Design
from k3bench.compare.pooled import DEFAULT_FLOOR, MIN_PAIRS
from k3bench.compare.table import RunTable
from k3bench.compare.verdict import DISAGREEMENT, IMPROVEMENT, REGRESSION, Rule
from k3bench.metrics import METRICS
from k3bench.records.comparison import DeltaBand, Floor, RangeBand
from k3bench.records.noise import LevelNoise, Noise, Setting
from k3bench.units import pct_from_log

#: Holm p below which a zero change that was called something blocks the use of its own noise.
BLOCKED_P = 0.001


@dataclass(frozen=True)
class ZeroSide:
    """The zero-change observations of one campaign, headline metric, arrays over levels."""

    n_observations: int
    sweep: Sweep
    pairs: Pairs
    #: level -> values of all its zero-change runs
    runs: Mapping[int, Floats]
    run_sd: Floats
    tau: Floats
    called: bool
    called_p: float | None

    @property
    def blocked(self) -> bool:
        """Too improbable for an honest pipeline."""
        return self.called and self.called_p is not None and self.called_p < BLOCKED_P

    def spread(self) -> float | None:
        """Spread over all levels; None with fewer than three usable observations at every level.

        Both arms of one are the same build, so it holds what place, time and process do, not what rebuilding does.
        """
        if self.blocked or not np.isfinite(self.tau).any():
            return None
        return math.sqrt(float(np.nanmean(self.tau**2)))

    def tau0(self) -> float | None:
        """The floor with that spread: never below what is assumed without any."""
        spread = self.spread()
        return None if spread is None else max(DEFAULT_FLOOR, spread)


def zero_side(table: RunTable, metric: int, rule: Rule) -> ZeroSide | None:
    """None where the campaign has no zero-change run at all."""
    chosen = table.chosen(zero_change=True)
    values = table.values[metric][:, chosen]
    if not chosen or not np.isfinite(values).any():
        return None
    pairs = pair_up(np.log(values), table.after[chosen])
    if METRICS[table.metrics[metric]].better == "higher":
        pairs = pairs.flipped()
    sweep = judge_sweep(pairs, rule)
    codes, k = sweep.verdict.code, sweep.verdict.pooled.k
    called = np.isin(codes, (IMPROVEMENT, REGRESSION, DISAGREEMENT))
    return ZeroSide(
        n_observations=int(k.max(initial=0)),
        sweep=sweep,
        pairs=pairs,
        runs={level: _finite(values[i]) for i, level in enumerate(table.levels)},
        run_sd=bands.pooled_run_sd(pairs),
        tau=_taus(sweep),
        called=bool(called.any()),
        called_p=_called_p(sweep) if called.any() else None,
    )


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _taus(sweep: Sweep) -> Floats:
    """Spread between zero-change observations beyond their own noise, one a level; NaN below three of them."""
    v = sweep.verdict
    out = np.full(v.code.shape, np.nan)
    for i in range(len(out)):
        usable = v.usable[i]
        variances = v.used.variance[i][usable]
        if usable.sum() >= bands.MIN_OBSERVATIONS_FOR_FLOOR and (variances > 0).all():
            out[i] = math.sqrt(tau_squared(v.used.mean[i][usable], variances, "PM"))
    return out


def _called_p(sweep: Sweep) -> float | None:
    """Holm p of the most improbable call, over levels and over the two ways of being called."""
    p = np.concatenate([sweep.verdict.p_deciding, sweep.verdict.p_het_deciding])
    return number(2.0 * float(np.nanmin(p))) if np.isfinite(p).any() else None


def range_band(zero: ZeroSide | None, level: int, source: str) -> RangeBand | None:
    """The range band of one level with its false-positive rate; None without zero-change runs."""
    runs = None if zero is None else zero.runs.get(level)
    if runs is None or not len(runs):
        return None
    band = bands.range_band_pct(runs)
    rate = None if band is None else bands.range_exceeded_p(len(runs))
    return RangeBand(n_runs=len(runs), band_pct=band, false_positive_rate=rate, source=source)


def delta_band(zero: ZeroSide | None, index: int, tau0: float, observations: int) -> DeltaBand | None:
    """What a zero change of this design stays inside with 95 %, for as many observations as were compared."""
    if zero is None or observations < 1:
        return None
    v = zero.sweep.verdict
    usable = v.usable[index]
    if not usable.any():
        return None
    each = Estimate(
        v.each.plain.mean[index][usable], v.each.plain.variance[index][usable], v.each.plain.df[index][usable]
    )
    half, df = bands.design_band(each, tau0, observations)
    return DeltaBand(
        half_width_pct=pct_from_log(half), n_observations=int(usable.sum()), n_pairs=int(v.each.n[index].sum()), df=df
    )


def earlier_delta_band(earlier: Noise, level: int, observations: int, blocks: int, tau0: float) -> DeltaBand | None:
    """The same band for this design, from the run sd that an earlier campaign of this setting measured."""
    known = next((n for n in earlier.levels if n.concurrency == level and n.run_sd_log is not None), None)
    if known is None or known.run_sd_log is None or observations < 1 or known.n_pairs <= earlier.n_observations:
        return None
    df = float(known.n_pairs - earlier.n_observations)
    se = Design.of_runs(observations, known.run_sd_log, tau0).se(np.array([float(blocks)]))
    half = float(stats.t.ppf(0.975, df) * se[0])
    return DeltaBand(
        half_width_pct=pct_from_log(half), n_observations=earlier.n_observations, n_pairs=known.n_pairs, df=df
    )


def matching(records: Sequence[Noise], setting: Setting, metric: str, simulated: bool) -> Noise | None:
    """The record of this very setting with most observations; blocked ones and those of another world never match."""
    same = [r for r in records if r.setting == setting and r.metric == metric and r.simulated == simulated]
    fit = [r for r in same if not r.blocked]
    return max(fit, key=lambda r: (r.n_observations, r.dates), default=None)


def floor_of(zero: ZeroSide | None, dates: tuple[str, ...], campaign: str, earlier: Noise | None) -> Floor:
    """Own zero-change observations first, then an earlier record, else the assumed floor."""
    own = None if zero is None else zero.tau0()
    if own is not None and zero is not None:
        return Floor(
            tau0_log=own, assumed=False, n_zero_change_observations=zero.n_observations, dates=dates, source=campaign
        )
    if earlier is not None and earlier.tau0_log is not None:
        return Floor(
            tau0_log=earlier.tau0_log,
            assumed=False,
            n_zero_change_observations=earlier.n_observations,
            dates=earlier.dates,
            source=earlier.campaign,
        )
    return Floor(tau0_log=DEFAULT_FLOOR, assumed=True)


def noise_of(
    zero: ZeroSide, table: RunTable, setting: Setting, dates: tuple[str, ...], inputs: tuple[str, ...]
) -> Noise:
    """The record that later comparisons pick up."""
    recipe = table.plan.recipe
    return Noise(
        campaign=recipe.name,
        simulated=recipe.simulated,
        metric=recipe.primary_metric,
        setting=setting,
        n_observations=zero.n_observations,
        n_blocks=sum(len(o.blocks) for o in table.observations if o.zero_change),
        levels=tuple(_level_noise(zero, i, level, recipe.name) for i, level in enumerate(table.levels)),
        tau0_log=zero.tau0(),
        dates=dates,
        called=zero.called,
        called_p_holm=zero.called_p,
        blocked=zero.blocked,
        inputs=inputs,
    )


def _level_noise(zero: ZeroSide, index: int, level: int, campaign: str) -> LevelNoise:
    v = zero.sweep.verdict
    enough = v.each.n[index] >= MIN_PAIRS
    band = delta_band(zero, index, DEFAULT_FLOOR, 1) if enough.any() else None
    return LevelNoise(
        concurrency=level,
        n_runs=len(zero.runs[level]),
        n_pairs=int(v.each.n[index].sum()),
        run_sd_log=number(zero.run_sd[index]),
        range_band=range_band(zero, level, campaign),
        band95_log=None if band is None else math.log1p(band.half_width_pct / 100.0),
        tau_log=number(zero.tau[index]),
    )
