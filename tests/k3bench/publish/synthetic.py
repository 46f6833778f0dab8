"""Synthetic campaigns for the publish tests: records with a planted effect, always `simulated`. No measured number.

The statistics here are just enough to fill a comparison record with consistent numbers; the real ones are `compare/`.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

from k3bench.records import comparison as c
from k3bench.records.measurement import ARMS_OF, Check, Measurement, PointName
from k3bench.store import CampaignFolder, gzip_bytes, write_atomic, write_record

ORDERS = ("ABBA", "BAAB")


@dataclass(frozen=True)
class Spec:
    """What to plant. `shifts` moves an observation's effect; `missing` and `failed` take data away."""

    name: str = "planted"
    title: str = "K3 attention decode overlap, planted effect"
    effects_pct: dict[int, float] = field(default_factory=lambda: {1: -4.0, 2: -0.3, 4: -4.1, 8: -3.6})
    racks: tuple[str, ...] = ("d157", "d127", "d131")
    shifts_pct: dict[str, float] = field(default_factory=dict)
    blocks: int = 4
    zero_change: int = 2
    run_sd_pct: float = 0.9
    missing: tuple[str, ...] = ()
    failed: tuple[tuple[str, int, int], ...] = ()
    evidence: bool = True
    seed: int = 17103


def build(spec: Spec, root: Path | None = None) -> c.Comparison:
    """The comparison of a planted campaign; with `root`, its point and raw files are written there too."""
    points = [p for obs in _names(spec) if obs not in spec.missing for p in _points(spec, obs)]
    if root is not None:
        for point, raw in points:
            folder = CampaignFolder(root)
            write_atomic(folder.raw(point.observation, str(point.name)), raw)
            write_record(folder.point(point.observation, str(point.name)), point)
    return _comparison(spec, [point for point, _ in points])


def _names(spec: Spec) -> list[str]:
    real = [f"obs{i}" for i in range(1, len(spec.racks) + 1)]
    zero = [f"zero{i}" for i in range(1, spec.zero_change + 1)]
    return [*zero[: (len(zero) + 1) // 2], *real, *zero[(len(zero) + 1) // 2 :]]


def _points(spec: Spec, obs: str):
    rng = np.random.default_rng([spec.seed, *obs.encode()])
    zero = obs.startswith("zero")
    rack = spec.racks[0] if zero else spec.racks[int(obs[3:]) - 1]
    base = math.exp(rng.normal(0, 0.01))
    for block in range(spec.blocks):
        order = ORDERS[int(rng.integers(2))]
        for run, arm in enumerate(ARMS_OF[order]):
            for level, effect in spec.effects_pct.items():
                tpot = 13.2 * base * (1 + 0.09 * (level - 1)) * math.exp(rng.normal(0, spec.run_sd_pct / 100))
                if arm == "after" and not zero:
                    tpot *= 1 + (effect + spec.shifts_pct.get(obs, 0.0)) / 100
                yield _point(spec, obs, rack, block, run, arm, order, level, tpot)


def _point(spec, obs, rack, block, run, arm, order, level, tpot):
    tpot = round(tpot, 6)
    name = PointName(block=block, attempt=1, run=run, arm=arm, level=level)
    raw = gzip_bytes(f'{{"step_ns":[{int(1e6 * tpot)}]}}\n'.encode())
    failed = (obs, block, run) in spec.failed
    hour = f"{8 + int(hashlib.sha256(obs.encode()).hexdigest(), 16) % 10:02d}"
    stamp = f"2026-05-04T{hour}:{(block * 4 + run) % 60:02d}:{level % 60:02d}Z"
    point = Measurement(
        campaign=spec.name,
        recipe="ab" * 32,
        observation=obs,
        zero_change=obs.startswith("zero"),
        rack=rack,
        pair="p1" if obs.startswith("zero") else f"p{obs[3:]}",
        build="cd" * 32,
        allocation="alloc1",
        key="ef" * 32,
        job=f"27{20000 + int(hour)}",
        name=name,
        order=order,
        engine="simulated",
        simulated=True,
        device="simulated",
        restart="none",
        isl_tokens=8192,
        osl_tokens=1024,
        stream_interval=10,
        started=stamp,
        ended=stamp.replace("Z", ".5Z"),
        metrics={
            "tpot_median_ms": tpot,
            "ttft_median_ms": round(180 + 20 * level + tpot, 6),
            "itl_median_ms": 10 * tpot,
            "step_p99_ms": round(tpot * 1.08, 6),
            "tps_user": 1000 / tpot,
            "output_tok_s": 1000 * level / tpot * 0.97,
        },
        batch_tpot_ms=(tpot,) * 5,
        raw=f"{name}.jsonl.gz",
        raw_digest=hashlib.sha256(raw).hexdigest(),
        fingerprint="01" * 32,
        checks=(Check(name="requests_succeeded", ok=not failed, detail="2 requests failed" if failed else ""),),
    )
    return point, raw


# --- a comparison with consistent numbers ---------------------------------------------------------------------------


def _pairs(points, obs, level):
    runs = {(p.name.block, p.name.run): p for p in points if p.observation == obs and p.name.level == level}
    logs = []
    for block in sorted({b for b, _ in runs}):
        for first in (0, 2):
            two = [runs[block, first], runs[block, first + 1]]
            if all(p.valid for p in two):
                of = {p.name.arm: p.metrics["tpot_median_ms"] for p in two}
                logs.append(math.log(of["after"] / of["before"]))
    return logs


def _pct(x):
    return 100 * math.expm1(x)


def _interval(m, half):
    return c.IntervalPct(low_pct=_pct(m - half), high_pct=_pct(m + half))


def _median(points, obs, arm, level):
    found = [
        p.metrics["tpot_median_ms"]
        for p in points
        if p.observation == obs and p.name.arm == arm and p.name.level == level and p.valid
    ]
    return statistics.median(found) if found else None


def _level(spec, points, observations, level, *, primary, tau0=0.003):
    groups = [d for obs in observations if len(d := _pairs(points, obs, level)) >= 4]
    k = len(groups)
    if not k:
        return c.LevelResult(
            concurrency=level, is_primary=primary, word="insufficient_replication", n_observations=0, n_pairs=0,
            margin_pct=2.0, agreement=c.Agreement(word="not_testable", n_observations=0),
        )  # fmt: skip
    means = [statistics.mean(d) for d in groups]
    variances = [statistics.variance(d) / len(d) for d in groups]
    m, se = statistics.mean(means), math.sqrt(sum(variances) / k**2 + tau0**2 / k)
    df = float(sum(len(d) - 1 for d in groups))
    h95, h90 = float(stats.t.ppf(0.975, df)) * se, float(stats.t.ppf(0.95, df)) * se
    p = float(2 * stats.t.sf(abs(m) / se, df))
    p_het = None
    word = "agree" if k > 1 else "not_testable"
    if k > 1:
        f = statistics.variance(means) / (statistics.mean(variances) + tau0**2)
        p_het = float(stats.f.sf(f, k - 1, df))
        word = "agree" if p_het >= 0.05 else "disagree"
    ratios = [math.exp(x) for x in means]
    verdict = (
        "disagreement" if word == "disagree"
        else "improvement" if m + h95 < 0
        else "regression" if m - h95 > 0
        else "within_noise" if abs(m) + h90 < math.log(1.02)
        else "inconclusive"
    )  # fmt: skip
    return c.LevelResult(
        concurrency=level,
        is_primary=primary,
        word=verdict,
        inconclusive_because="interval_too_wide" if verdict == "inconclusive" else None,
        flags=("floor_assumed", "levels_share_start", "shared_process", *(("unreplicated",) if k == 1 else ())),
        n_observations=k,
        n_pairs=sum(map(len, groups)),
        before_median=statistics.median(x for o in observations if (x := _median(points, o, "before", level))),
        after_median=statistics.median(x for o in observations if (x := _median(points, o, "after", level))),
        estimate_log=m,
        se_log=se,
        df=df,
        delta_pct=_pct(m),
        ci95=_interval(m, h95),
        ci90=_interval(m, h90),
        half_width_pct=100 * h95,
        p=p,
        p_holm=p,
        margin_pct=2.0,
        non_inferior=m + h90 < math.log(1.02),
        non_inferior_p=float(stats.t.sf((math.log(1.02) - m) / se, df)),
        worst_case_pct=_pct(m + h90),
        blocks_to_settle=9 if verdict == "inconclusive" else None,
        agreement=c.Agreement(
            word=word, n_observations=k, f=f if k > 1 else None, df_between=float(k - 1), df_within=df, p=p_het,
            p_holm=p_het, q=1.1, i2_pct=0.0,
            ratio_gap_pct=100 * abs(ratios[1] / ratios[0] - 1) if k == 2 else None,
            spread_pct=100 * (max(ratios) / min(ratios) - 1) if k > 1 else None,
        ),
        next_rack=c.NextRack(
            n_observations=k, tau_log=0.001, delta_pct=_pct(m), ci95=_interval(m, 1.4 * h95),
            pi95=_interval(m, 2.6 * h95), expected_on_further_racks=m + 1.4 * h95 < 0,
        ) if k > 2 else None,
        range_band=c.RangeBand(n_runs=3, band_pct=2.3 + 0.1 * level, false_positive_rate=0.31, source="zero1"),
        delta_band=c.DeltaBand(half_width_pct=100 * h95 * 1.1, n_observations=2, n_pairs=16, df=14.0),
        beyond_range_band=abs(_pct(m)) > 2.3 + 0.1 * level,
    )  # fmt: skip


def _observation(spec, points, obs):
    mine = [p for p in points if p.observation == obs]
    zero = obs.startswith("zero")
    if not mine:
        rack = spec.racks[int(obs[3:]) - 1]
        return c.ObservationRow(
            observation=obs, rack=rack, build_pair=f"p{obs[3:]}", zero_change=False, status="missing",
            reason="the allocation was never measured: node failure", n_runs_planned=4 * spec.blocks, n_runs_valid=0,
        )  # fmt: skip
    levels = []
    for level in spec.effects_pct:
        d = _pairs(points, obs, level)
        m, v, n = statistics.mean(d), statistics.variance(d), len(d)
        half = float(stats.t.ppf(0.975, n - 1)) * math.sqrt(v / n)
        own = float(stats.t.ppf(0.975, n - 1)) * math.sqrt(v / n + 0.003**2)
        levels.append(
            c.ObservationLevel(
                concurrency=level,
                n_pairs=n,
                before_median=_median(points, obs, "before", level),
                after_median=_median(points, obs, "after", level),
                estimate_log=m,
                sd_log=math.sqrt(v),
                delta_pct=_pct(m),
                ci95=_interval(m, half),
                own_ci95=_interval(m, own),
                p=float(stats.ttest_1samp(d, 0).pvalue),
                order_p=0.41,
                sign_flip_p=0.0078,
                wilcoxon_p=0.0078,
                before_moved_pct=0.4,
                after_moved_pct=0.1,
                moved="neither",
            )
        )
    bad = [p for p in mine if not p.valid]
    runs = {(p.name.block, p.name.run) for p in mine}
    invalid = {(p.name.block, p.name.run) for p in bad}
    return c.ObservationRow(
        observation=obs,
        rack=mine[0].rack,
        build_pair=mine[0].pair,
        job=mine[0].job,
        started_at=min(p.started for p in mine),
        ended_at=max(p.ended for p in mine),
        zero_change=zero,
        status="incomplete" if bad else "complete",
        reason="a run failed" if bad else None,
        order=tuple({p.name.block: p.order for p in mine}.values()),
        n_runs_planned=4 * spec.blocks,
        n_runs_valid=len(runs - invalid),
        levels=tuple(levels),
        dropped_pairs=tuple(
            c.DroppedPair(
                concurrency=p.name.level, block=p.name.block, pair=p.name.run // 2, arm=p.name.arm,
                reason="requests_succeeded: 2 requests failed",
            )
            for p in bad
        ),
    )  # fmt: skip


def _comparison(spec, points):
    names = _names(spec)
    real = [n for n in names if not n.startswith("zero")]
    zeros = [n for n in names if n.startswith("zero")]
    primary = min(spec.effects_pct)
    levels = tuple(_level(spec, points, real, lv, primary=lv == primary) for lv in spec.effects_pct)
    head = levels[0]
    rows = tuple(_observation(spec, points, n) for n in names)
    words = {w: sum(lv.word == w for lv in levels) for w in {lv.word for lv in levels}}
    flags = tuple(sorted({*head.flags, *(["incomplete"] if spec.missing or spec.failed else [])}))
    return c.Comparison(
        campaign=spec.name,
        title=spec.title,
        kind="measured",
        simulated=True,
        recipe_digest="ab" * 32,
        inputs=tuple(
            c.InputRef(kind="allocation", record_id=f"{n}/alloc1", digest="9a" * 32) for n in names if n not in spec.missing
        ),
        metric="tpot_median_ms",
        metric_unit="ms",
        better="lower",
        primary_level=primary,
        alpha=0.05,
        margin_pct=2.0,
        floor=c.Floor(tau0_log=0.003, assumed=True),
        headline=c.Headline(
            word=head.word, concurrency=primary, metric="tpot_median_ms",
            delta_pct=None if head.word == "disagreement" else head.delta_pct,
            ci95=None if head.word == "disagreement" else head.ci95,
            n_observations=head.n_observations, n_planned=len(real), agreement=head.agreement.word,
            agreement_p=head.agreement.p, flags=flags, n_levels=len(levels), levels_by_word=words,
            n_non_inferior=sum(bool(lv.non_inferior) for lv in levels),
            regresses_nothing=all(lv.non_inferior for lv in levels), margin_pct=2.0,
        ),
        levels=levels,
        other_metrics=(
            c.MetricResult(metric="itl_median_ms", unit="ms", better="lower", restates="tpot_median_ms", levels=levels),
            c.MetricResult(metric="ttft_median_ms", unit="ms", better="lower", levels=levels),
        ),
        observations=rows,
        runs=tuple(
            c.RunValue(
                record_id=p.id, observation=p.observation, block=p.name.block,
                position=4 * p.name.block + p.name.run + 1, arm=p.name.arm, concurrency=p.name.level,
                value=p.metrics["tpot_median_ms"], valid=p.valid, reason=None if p.valid else "2 requests failed",
            )
            for p in points
        ),
        witnesses=c.Witnesses(
            restatements=(
                c.Restatement(metric="itl_median_ms", of="tpot_median_ms", kind="exact_ratio", factor=10.0, cv=1e-16, declared=True),
                c.Restatement(metric="tps_user", of="tpot_median_ms", kind="exact_product", factor=1000.0, cv=1e-16, declared=True),
                c.Restatement(metric="output_tok_s", of="tpot_median_ms", kind="near", r2=0.996, concurrency=1),
            ),
            n_metrics=6, effective_number=2.1,
            level_correlations=(c.LevelCorrelation(concurrency_a=4, concurrency_b=8, r=0.62, shares_start=True, counts_as_one=True),),
            corroborating=("ttft_median_ms", "c=4"), n_corroborations=2, n_replications=len(real) - 1,
        ),
        health=c.Health(
            n_runs_planned=4 * spec.blocks * len(names), n_runs_measured=4 * spec.blocks * (len(names) - len(spec.missing)),
            n_runs_valid=4 * spec.blocks * (len(names) - len(spec.missing)) - len(spec.failed),
            n_invalid_before=0, n_invalid_after=len(spec.failed),
            findings=(c.Finding(kind="drift", flagged=False, observation="obs1", statistic="Kendall tau", value=0.12, p=0.4),),
        ),
        zero_change=c.ZeroChange(
            n_observations=len(zeros),
            levels=tuple(_level(spec, points, zeros, lv, primary=lv == primary) for lv in spec.effects_pct),
            run_sd_pct={str(lv): spec.run_sd_pct for lv in spec.effects_pct}, tau_log=0.0,
        ) if zeros else None,
        mechanism=_mechanism() if spec.evidence else None,
        equality=_equality() if spec.evidence else None,
        outstanding=_outstanding(spec),
        provenance=c.Provenance(
            engine="simulated", preset="planted", hardware_class="none (simulated)", restart="none",
            commits={"before": ("1a2b3c4",), "after": ("5d6e7f8",)}, versions={"k3bench": ("0.1.0",)},
            environment={"device": ("simulated",), "driver": ("570.1",), "clock_mhz": ("1965", "1980")},
            workload={"isl_tokens": "8192", "osl_tokens": "1024", "stream_interval": "10"},
            declared_change="policy: before -> after", first_started_at="2026-05-04T08:00:01Z",
            last_ended_at="2026-05-04T17:15:08.5Z", seed=spec.seed,
        ),
    )  # fmt: skip


def _mechanism():
    rows = [
        ("before", "KDA", 69.0, 4.667, 0.0, 0.0, 0.5), ("before", "MLA", 24.0, 2.161, 0.0, 0.0, 0.21),
        ("before", "MoE", 92.0, 4.9, 1.9, 38.8, None), ("after", "KDA", 69.0, 4.358, 0.7016, 16.1, None),
        ("after", "MLA", 24.0, 1.978, 0.2829, 14.3, None), ("after", "MoE", 92.0, 4.9, 1.9, 38.8, None),
    ]  # fmt: skip
    return c.Mechanism(
        families=tuple(
            c.FamilyMechanism(
                arm=a, family=f, segments_per_step=n, busy_ms_per_step=b, two_stream_residency_ms_per_step=r,
                share_of_busy_pct=s, headroom_ms_per_step=h, profiled_over_unprofiled=1.031,
            )
            for a, f, n, b, r, s, h in rows
        ),
        gain_ms_per_step=0.53, explained_ms_per_step=0.49, ceiling_ms_per_step=0.98, ideal_ms_per_step=0.71,
        achieved_share=0.69, beyond_ceiling=False, sources=("obs1",),
    )  # fmt: skip


def _equality():
    row = c.EqualityRow
    return (
        row(kind="fork", status="pass", what="KDA projection staging", preset="k3-slice", batch=1, policy="after"),
        row(kind="fork", status="pass", what="MLA q and kv", preset="k3-slice", batch=1, policy="after"),
        row(kind="fork", status="not_run", what="absorb and rope", policy="after", reason="no CUDA device"),
        row(kind="greedy", status="pass", what="greedy tokens of 8 prompts", preset="nano", batch=8, policy="after"),
        row(kind="control", status="pass", what="a leg without its wait", policy="broken"),
    )


def _outstanding(spec):
    found = []
    if not spec.evidence:
        found.append(c.Outstanding(kind="residency", what="no trace of these builds", fix="./k3 trace"))
        found.append(c.Outstanding(kind="equality", what="no probe of sameness was run", fix="./k3 verify"))
    for name in spec.missing:
        found.append(c.Outstanding(kind="observation", what=f"{name} was planned and not measured", fix="./k3 run"))
    return tuple(found)


CASES: dict[str, Spec] = {
    "improvement": Spec(name="improvement"),
    "zero-change": Spec(
        name="zero-change", title="Nothing changed, both arms the same", effects_pct={1: 0.0, 2: 0.0, 4: 0.0},
        evidence=False,
    ),
    "disagreement": Spec(
        name="disagreement", title="One rack out of line", shifts_pct={"obs3": 6.5}, run_sd_pct=0.6,
    ),
    "missing": Spec(
        name="missing", title="A rack lost and a run that failed", missing=("obs2",), failed=(("obs3", 1, 2),),
    ),
    "one-rack": Spec(name="one-rack", title="One rack only", racks=("d157",), zero_change=0, evidence=False),
}  # fmt: skip
