"""The rule's arrays at one level become the record's `LevelResult`.

In: a `Sweep` over the real observations and what the zero-change ones showed. Out: `LevelResult`. No statistics of its
own: signs are turned back for metrics of which more is better, numbers that do not exist become None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from k3bench.compare.agreement import spread_pct
from k3bench.compare.next_rack import next_rack
from k3bench.compare.outliers import Sweep
from k3bench.compare.pairs import Floats
from k3bench.compare.planning import Design, blocks_for, blocks_to_settle
from k3bench.compare.verdict import (
    IMPROVEMENT,
    INCONCLUSIVE,
    REGRESSION,
    WORDS,
    Rule,
    Verdict,
)
from k3bench.records.comparison import (
    Agreement,
    AgreementWord,
    DeltaBand,
    Flag,
    IntervalPct,
    LevelResult,
    NextRack,
    RangeBand,
    WithoutOutliers,
    Word,
)
from k3bench.units import pct_from_log

#: index of a level in the rule's arrays
At = tuple[int, ...]
Because = Literal["interval_too_wide", "significant_alone", "primary_not_called", "outliers_decide"]


@dataclass(frozen=True)
class LevelContext:
    """What a level's result needs besides the rule's arrays."""

    concurrency: int
    is_primary: bool
    #: +1 where less is better, -1 where the arrays hold the flipped metric
    sign: int
    before_median: float | None
    after_median: float | None
    n_planned: int
    flags: frozenset[Flag]
    range_band: RangeBand | None = None
    delta_band: DeltaBand | None = None


def number(value: float | np.floating) -> float | None:
    """None for NaN or an infinity: the record has no such numbers."""
    return float(value) if np.isfinite(value) else None


def interval_pct(low: float, high: float, sign: int = 1) -> IntervalPct | None:
    """Log bounds as percent, in the metric's own direction."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    ends = sorted((sign * low, sign * high))
    return IntervalPct(low_pct=pct_from_log(ends[0]), high_pct=pct_from_log(ends[1]))


def level_result(sweep: Sweep, at: At, rule: Rule, context: LevelContext) -> LevelResult:
    """Everything about one metric at one level."""
    v, sign = sweep.verdict, context.sign
    word: Word = WORDS[int(v.code[at])]  # type: ignore[assignment]
    mean, se, df = float(v.pooled.mean[at]), float(v.pooled.se[at]), float(v.pooled.df[at])
    ci95, ci90 = _bounds(v, at, 0.95), _bounds(v, at, 0.90)
    delta = number(pct_from_log(sign * mean)) if math.isfinite(mean) else None
    band = context.range_band
    testable, because = v.pooled.k[at] > 0, _because(sweep, at, rule)
    more_would_do = v.code[at] == INCONCLUSIVE and because != "primary_not_called"
    return LevelResult(
        concurrency=context.concurrency,
        is_primary=context.is_primary,
        word=word,
        inconclusive_because=because,
        flags=_flags(sweep, at, context),
        n_observations=int(v.pooled.k[at]),
        n_pairs=int(v.each.n[at][v.usable[at]].sum()),
        before_median=context.before_median,
        after_median=context.after_median,
        estimate_log=number(sign * mean),
        se_log=number(se),
        df=number(df),
        delta_pct=delta,
        ci95=interval_pct(*ci95, sign),
        ci90=interval_pct(*ci90, sign),
        half_width_pct=number(pct_from_log((ci95[1] - ci95[0]) / 2)) if math.isfinite(ci95[0]) else None,
        p=number(v.p[at]),
        p_holm=number(v.p_deciding[at]),
        margin_pct=100.0 * rule.margin,
        non_inferior=bool(v.non_inferior_p[at] < rule.alpha_a_look) if testable else None,
        non_inferior_p=number(v.non_inferior_p[at]) if testable else None,
        worst_case_pct=number(pct_from_log(sign * ci90[1])) if math.isfinite(ci90[1]) else None,
        blocks_to_settle=_blocks(v, at, rule) if more_would_do else None,
        agreement=agreement_of(v, at),
        next_rack=_next_rack(v, at, rule, sign),
        range_band=band,
        delta_band=context.delta_band,
        beyond_range_band=None
        if delta is None or band is None or band.band_pct is None
        else abs(delta) > band.band_pct,
        without_outliers=_without(sweep, at, sign),
    )


def _bounds(v: Verdict, at: At, level: float) -> tuple[float, float]:
    low, high = v.pooled.interval(level)
    return float(low[at]), float(high[at])


def _because(sweep: Sweep, at: At, rule: Rule) -> Because | None:
    if sweep.verdict.code[at] != INCONCLUSIVE:
        return None
    if sweep.hangs[at]:
        return "outliers_decide"
    if not sweep.verdict.significant_alone[at]:
        return "interval_too_wide"
    return "primary_not_called" if sweep.verdict.gate_is_shut(at, rule) else "significant_alone"


def _flags(sweep: Sweep, at: At, context: LevelContext) -> tuple[Flag, ...]:
    v, flags = sweep.verdict, set(context.flags)
    k = int(v.pooled.k[at])
    seen: dict[Flag, bool] = {
        "below_margin": bool(v.below_margin[at]) and v.code[at] in (IMPROVEMENT, REGRESSION),
        "incomplete": k < context.n_planned,
        "order_effect": bool((v.each.order_effect()[at] & v.usable[at]).any()),
        "outliers": bool(sweep.flagged[at].any()),
        "outliers_decide": bool(sweep.hangs[at]),
        "size_differs": bool(v.size_differs[at]),
        "unreplicated": k == 1,
    }
    return tuple(sorted(flags | {name for name, on in seen.items() if on}))


def agreement_of(v: Verdict, at: At) -> Agreement:
    """The agreement line; spread and gap are over the usable observations' ratios, in planned order."""
    a, usable = v.agreement, v.usable[at]
    k = int(usable.sum())
    ratios = np.exp(v.used.mean[at][usable])
    word: AgreementWord = "agree"
    if k < 2:
        word = "not_testable"
    elif v.size_differs[at]:
        word = "size_differs"
    elif v.p_het_deciding[at] < 0.05:
        word = "disagree"
    return Agreement(
        word=word,
        n_observations=k,
        f=number(a.f[at]),
        df_between=number(a.df_between[at]),
        df_within=number(a.df_within[at]),
        p=number(a.p[at]),
        p_holm=number(v.p_het_deciding[at]),
        q=number(a.q[at]),
        i2_pct=None if k < 2 else number(100.0 * a.i2[at]),
        ratio_gap_pct=100.0 * abs(float(ratios[1] / ratios[0]) - 1.0) if k == 2 else None,
        spread_pct=spread_pct(ratios) if k >= 2 else None,
    )


def _next_rack(v: Verdict, at: At, rule: Rule, sign: int) -> NextRack | None:
    usable = v.usable[at]
    line = next_rack(v.used.mean[at][usable], v.used.variance[at][usable], rule.tau0)
    if line is None:
        return None
    ci95, pi95 = interval_pct(*line.ci95, sign), interval_pct(*line.pi95, sign)
    if ci95 is None or pi95 is None:
        return None
    return NextRack(
        n_observations=line.k,
        tau_log=math.sqrt(line.tau2),
        delta_pct=pct_from_log(sign * line.mean),
        ci95=ci95,
        pi95=pi95,
        expected_on_further_racks=line.expected_to_hold,
    )


def _blocks(v: Verdict, at: At, rule: Rule) -> int | None:
    """Blocks an observation that would settle it, were the estimate the truth; with the spread of pairs seen here."""
    usable = v.usable[at]
    variance = _pooled_variance(v.each.sd[at][usable] ** 2, v.each.plain.df[at][usable])
    design = Design(int(usable.sum()), float(f"{math.sqrt(variance):.3g}"), rule.tau0)
    estimate = float(f"{float(v.pooled.mean[at]):.3g}")
    if v.significant_alone[at]:  # never within noise, so it must be called, at what Holm leaves of alpha
        share = float(f"{float(v.p[at] / v.p_deciding[at]):.3g}")
        return blocks_for(design, estimate, alpha=rule.alpha_a_look * share)
    return blocks_to_settle(design, estimate, rule.bound, rule.alpha_a_look)


def _pooled_variance(variances: Floats, df: Floats) -> float:
    return float((variances * df).sum() / df.sum()) or 1e-18


def _without(sweep: Sweep, at: At, sign: int) -> WithoutOutliers | None:
    flagged = sweep.flagged[at]
    if not flagged.any():
        return None
    w = sweep.without
    low, high = (float(b[at]) for b in w.pooled.interval(0.95))
    mean = float(w.pooled.mean[at])
    return WithoutOutliers(
        word=WORDS[int(w.code[at])],  # type: ignore[arg-type]
        delta_pct=pct_from_log(sign * mean) if math.isfinite(mean) else None,
        ci95=interval_pct(low, high, sign),
        n_pairs=int(w.each.n[at][w.usable[at]].sum()),
        n_flagged=int(flagged.sum()),
    )


def words_of(levels: Sequence[LevelResult]) -> dict[Word, int]:
    """How many levels got which word."""
    counts: dict[Word, int] = {}
    for level in levels:
        counts[level.word] = counts.get(level.word, 0) + 1
    return counts
