"""A reported record, never called measured, becomes the same comparison record.

In: `k3bench.reported/1`. Out: `Comparison` of kind `reported`. A verdict only where the source shows four pairs or more
in declared order in an observation; else `insufficient_replication`, with every figure as it was published.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from k3bench.compare.claim import best_ratio, equality_of, mechanism_of, summary_of
from k3bench.compare.headline import headline_of
from k3bench.compare.imported import imported_outstanding, imported_witnesses
from k3bench.compare.levels import LevelContext, interval_pct, level_result, number
from k3bench.compare.moved import moved_pct, side_moved
from k3bench.compare.noise import MIN_RUNS_FOR_RANGE, range_exceeded_p
from k3bench.compare.outliers import Sweep, judge_sweep
from k3bench.compare.pairs import Bools, Floats, log_of, pair_up
from k3bench.compare.pooled import DEFAULT_FLOOR, MIN_PAIRS
from k3bench.compare.verdict import Rule
from k3bench.errors import StatisticsError
from k3bench.metrics import HEADLINE, METRICS
from k3bench.records.comparison import (
    Agreement,
    Comparison,
    DroppedPair,
    EqualityRow,
    Flag,
    Floor,
    Health,
    InputRef,
    LevelResult,
    Mechanism,
    ObservationLevel,
    ObservationRow,
    Outstanding,
    Provenance,
    RangeBand,
    RunValue,
)
from k3bench.records.reported import Reported, ReportedRun
from k3bench.units import pct_from_log


def reported_comparison(reported: Reported) -> Comparison:
    """What others published, recomputed. Raises `StatisticsError` where shown runs hold no numbers."""
    shown = _Shown(reported)
    levels = tuple(shown.level(i) for i in range(len(shown.levels)))
    primary = shown.levels.index(reported.primary_level)
    metric, how, same = METRICS[HEADLINE], mechanism_of(reported), equality_of(reported)
    return Comparison(
        campaign=reported.name,
        title=reported.title,
        kind="reported",
        simulated=reported.simulated,
        inputs=(InputRef(kind="reported", record_id=reported.name, digest=reported.digest()), *_files(reported)),
        metric=metric.tag,
        metric_unit=metric.unit,
        better=metric.better,
        primary_level=reported.primary_level,
        alpha=shown.rule.alpha,
        margin_pct=reported.margin_pct,
        floor=Floor(tau0_log=DEFAULT_FLOOR, assumed=True),
        headline=headline_of(levels, primary, metric.tag, len(reported.observations)),
        levels=levels,
        observations=tuple(shown.observation(o) for o in range(len(reported.observations))),
        runs=tuple(shown.run_values()),
        witnesses=imported_witnesses(reported, levels[primary]),
        health=_health(reported),
        mechanism=how,
        equality=same,
        outstanding=_outstanding(reported, levels, how, same),
        reported=summary_of(reported) if reported.deltas else None,
        provenance=_provenance(reported),
    )


class _Shown:
    """The runs a source shows, as arrays over level, observation, position; empty where it shows none."""

    def __init__(self, reported: Reported) -> None:
        self.reported = reported
        self.levels = sorted({d.level for d in reported.deltas} | {r.level for r in reported.runs})
        if reported.primary_level not in self.levels:
            raise StatisticsError(
                f"no figure at the primary level {reported.primary_level}",
                where=reported.name,
                fix=f"levels shown: {', '.join(map(str, self.levels)) or 'none'}",
            )
        self.names = [o.id for o in reported.observations]
        self.rule = Rule(margin=reported.margin_pct / 100.0, primary=self.levels.index(reported.primary_level))
        values, after = self._arrays()
        self.values, self.after = values, after
        logs = log_of(values, where=reported.name, absent=np.isnan(values))
        self.sweep: Sweep = judge_sweep(pair_up(logs, after), self.rule)
        self.moved = {arm: self._moved(arm) for arm in ("before", "after")}

    def _arrays(self) -> tuple[Floats, Bools]:
        paired = [r for r in self.reported.runs if r.pair is not None and r.position is not None]
        width = 2 * (1 + max((r.pair for r in paired if r.pair is not None), default=0))
        shape = (len(self.levels), len(self.names), width)
        values = np.full(shape, np.nan)
        after = np.broadcast_to(np.arange(width) % 2 == 1, shape).copy()
        for (level, observation, pair), runs in _pairs(paired).items():
            at = (self.levels.index(level), self.names.index(observation))
            for offset, run in enumerate(sorted(runs, key=lambda r: r.position or 0)[:2]):
                after[(*at, 2 * pair + offset)] = run.arm == "after"
                values[(*at, 2 * pair + offset)] = run.metrics.get(HEADLINE, np.nan)
        return values, after

    def _moved(self, arm: str) -> Floats:
        """Change of one side against the other observations that show it, by level."""
        shown = {(d.level, d.observation): getattr(d, f"{arm}_tpot_ms") for d in self.reported.deltas}
        rows = [[shown.get((level, name)) for name in self.names] for level in self.levels]
        return moved_pct(np.array([[np.nan if x is None else x for x in row] for row in rows]))

    def level(self, i: int) -> LevelResult:
        """The rule's result where there are pairs enough, else the published figures with nothing inferred."""
        level, flags = self.levels[i], frozenset[Flag](("environment_unverified", "floor_assumed"))
        if int(self.sweep.verdict.pooled.k[i]) == 0:
            return self._unjudged(level, i)
        medians = [_median(self.values[i][self.after[i] == arm]) for arm in (False, True)]
        context = LevelContext(
            level, i == self.rule.primary, 1, medians[0], medians[1], len(self.names), flags, self._band(level)
        )
        return level_result(self.sweep, (i,), self.rule, context)

    def _unjudged(self, level: int, i: int) -> LevelResult:
        rows = [d for d in self.reported.deltas if d.level == level]
        ratios = [r for d in rows if (r := best_ratio(d)) is not None]
        if not rows:
            ratios = [float(np.exp(m)) for m in self.sweep.verdict.used.mean[i] if np.isfinite(m)]
        alone = rows[0] if len(rows) == 1 else None
        before, after = (_median(self.values[i][self.after[i] == arm]) for arm in (False, True))
        band = self._band(level)
        delta = pct_from_log(float(np.mean(np.log(ratios)))) if ratios else None
        known = band is not None and band.band_pct is not None and delta is not None
        return LevelResult(
            concurrency=level,
            is_primary=i == self.rule.primary,
            word="insufficient_replication",
            flags=("environment_unverified",),
            n_observations=0,
            n_pairs=int(self.sweep.verdict.each.n[i].sum()),
            before_median=before if alone is None else alone.before_tpot_ms,
            after_median=after if alone is None else alone.after_tpot_ms,
            delta_pct=delta,
            margin_pct=self.reported.margin_pct,
            agreement=Agreement(word="not_testable", n_observations=0),
            range_band=band,
            beyond_range_band=abs(delta) > band.band_pct if known else None,  # type: ignore[arg-type,operator,union-attr]
        )

    def _band(self, level: int) -> RangeBand | None:
        band = next((b for b in self.reported.bands if b.level == level), None)
        if band is None:
            return None
        known = band.runs is not None and band.runs >= MIN_RUNS_FOR_RANGE
        return RangeBand(
            n_runs=band.runs or 0,
            band_pct=band.band_pct,
            false_positive_rate=range_exceeded_p(band.runs) if known else None,  # type: ignore[arg-type]
            source="published",
        )

    def observation(self, o: int) -> ObservationRow:
        """An observation as published; `missing` where the source names it and shows no figure."""
        about = self.reported.observations[o]
        rows = [self._observed(i, o) for i in range(len(self.levels))]
        present = [row for row in rows if row is not None]
        planned = [r for r in self.reported.runs if r.observation == about.id]
        return ObservationRow(
            observation=about.id,
            rack=about.rack,
            build_pair=about.build,
            job=about.job,
            zero_change=False,
            status="complete" if len(present) == len(self.levels) else "incomplete" if present else "missing",
            reason=None if len(present) == len(self.levels) else _why_absent(planned),
            n_runs_planned=len(planned),
            n_runs_valid=sum(HEADLINE in r.metrics for r in planned),
            levels=tuple(present),
            dropped_pairs=tuple(_dropped(run) for run in planned if _is_dropped(run)),
        )

    def _observed(self, i: int, o: int) -> ObservationLevel | None:
        v, name, level = self.sweep.verdict, self.names[o], self.levels[i]
        n = int(v.each.n[i, o])
        row = next((d for d in self.reported.deltas if d.observation == name and d.level == level), None)
        ratio = None if row is None else best_ratio(row)
        if n == 0 and row is None:
            return None
        low, high = (float(b[i, o]) for b in v.used.interval(0.95))
        before, after = (float(self.moved[arm][i, o]) for arm in ("before", "after"))
        mean = float(v.used.mean[i, o]) if n else (float(np.log(ratio)) if ratio else np.nan)
        return ObservationLevel(
            concurrency=level,
            n_pairs=n,
            set_aside=None if n >= MIN_PAIRS else "no pairs are shown" if n == 0 else f"{n} pairs are shown",
            before_median=self._run_median(i, o, False) if row is None else row.before_tpot_ms,
            after_median=self._run_median(i, o, True) if row is None else row.after_tpot_ms,
            estimate_log=number(mean),
            delta_pct=number(pct_from_log(mean)) if np.isfinite(mean) else None,
            ci95=interval_pct(low, high),
            own_ci95=interval_pct(float(v.agreement.own_low[i, o]), float(v.agreement.own_high[i, o])),
            p=number(v.used.p()[i, o]),
            before_moved_pct=number(before),
            after_moved_pct=number(after),
            moved=side_moved(before, after),
        )

    def _run_median(self, i: int, o: int, after: bool) -> float | None:
        return _median(self.values[i, o][self.after[i, o] == after])

    def run_values(self) -> Sequence[RunValue]:
        """Every run the source shows."""
        return [
            RunValue(
                record_id=f"{self.reported.name}/run{number_}",
                digest=None if run.imported is None else run.imported.digest,
                observation=run.observation,
                block=0 if run.pair is None else run.pair // 2,
                position=number_ if run.position is None else run.position,
                arm=run.arm,
                concurrency=run.level,
                value=run.metrics.get(HEADLINE),
                valid=HEADLINE in run.metrics,
                reason=None if HEADLINE in run.metrics else run.missing.get(HEADLINE),
            )
            for number_, run in enumerate(self.reported.runs, 1)
        ]


def _is_dropped(run: ReportedRun) -> bool:
    return run.imported is not None and run.pair is not None and HEADLINE not in run.metrics


def _dropped(run: ReportedRun) -> DroppedPair:
    """The pair of an imported run whose file did not pass, in the words of its checks."""
    pair = run.pair or 0
    reason = run.missing.get(HEADLINE, "the file does not give it")
    return DroppedPair(concurrency=run.level, block=pair // 2, pair=pair % 2 + 1, arm=run.arm, reason=reason)


def _why_absent(runs: Sequence[ReportedRun]) -> str:
    return "no valid pair of runs at some level" if runs else "the source does not show every level"


def _files(reported: Reported) -> list[InputRef]:
    """The imported file behind every run, so that each dot leads back to the bytes that were read."""
    return [
        InputRef(
            kind="reported",
            record_id=f"{reported.name}/run{n} {re.sub(r'[^A-Za-z0-9._+-]', '_', run.imported.file)}",
            digest=run.imported.digest,
        )
        for n, run in enumerate(reported.runs, 1)
        if run.imported is not None
    ]


def _pairs(runs: Sequence[ReportedRun]) -> dict[tuple[int, str, int], list[ReportedRun]]:
    """Runs by declared pair; a pair that is not one run of each arm is no pair."""
    found: dict[tuple[int, str, int], list[ReportedRun]] = {}
    for run in runs:
        if run.pair is not None:
            found.setdefault((run.level, run.observation, run.pair), []).append(run)
    return {key: pair for key, pair in found.items() if sorted(r.arm for r in pair) == ["after", "before"]}


def _median(values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _health(reported: Reported) -> Health:
    n = len(reported.runs)
    valid = sum(HEADLINE in r.metrics for r in reported.runs)
    return Health(
        n_runs_planned=n,
        n_runs_measured=n,
        n_runs_valid=valid,
        n_invalid_before=sum(HEADLINE not in r.metrics for r in reported.runs if r.arm == "before"),
        n_invalid_after=sum(HEADLINE not in r.metrics for r in reported.runs if r.arm == "after"),
        reasons=dict(Counter(r.missing[HEADLINE] for r in reported.runs if HEADLINE in r.missing)),
    )


def _outstanding(
    reported: Reported,
    levels: Sequence[LevelResult],
    how: Mechanism | None,
    same: tuple[EqualityRow, ...] | None,
) -> tuple[Outstanding, ...]:
    found = []
    if any(level.n_observations == 0 for level in levels):
        found.append(
            Outstanding(
                kind="time",
                what=f"{'too few' if reported.runs else 'no'} pairs in declared order: a verdict needs four valid "
                "pairs in at least one observation",
                fix="two ABBA/BAAB blocks or more an observation, every run shown",
            )
        )
    swept = [o.id for o in reported.observations if sum(d.observation == o.id for d in reported.deltas) > 1]
    if len(swept) == 1 and len(levels) > 1:
        found.append(
            Outstanding(
                kind="replication",
                what=f"levels other than {reported.primary_level} are shown for {swept[0]} only",
                fix="the same sweep on a further rack",
            )
        )
    found += imported_outstanding(reported)
    if not reported.runs:
        found.append(
            Outstanding(
                kind="zero_change",
                what="zero-change runs are not shown: the bands cannot be checked and no floor can be calibrated",
                fix="zero-change observations of the same design",
            )
        )
    found.append(
        Outstanding(
            kind="environment",
            what="the environments of both arms are not shown: whether only the declared change differs is unverified",
            fix="k3bench run records a fingerprint before and after every block",
        )
    )
    found += _evidence(reported, how, same)
    return tuple(found)


def _evidence(reported: Reported, how: Mechanism | None, same: tuple[EqualityRow, ...] | None) -> list[Outstanding]:
    found = []
    if how is None:
        found.append(Outstanding(kind="residency", what="two-stream residency from GPU traces"))
    for row in reported.residency:
        if row.device_busy_ms_per_step is None:
            found.append(
                Outstanding(
                    kind="residency",
                    what=f"{row.family} busy time of {row.arm}: its share cannot be checked",
                    fix="k3bench trace prints residency, busy time and share of the same trace",
                )
            )
    if same is None:
        found.append(Outstanding(kind="equality", what="sameness of outputs (bitwise, greedy tokens)"))
    for probe in same or ():
        if probe.status != "pass":
            found.append(Outstanding(kind="equality", what=f"{probe.what}: {probe.reason}", fix="k3bench verify"))
    return found


def _provenance(reported: Reported) -> Provenance:
    work = {
        "model": reported.model,
        "parallelism": reported.parallelism,
        "isl_tokens": reported.isl_tokens,
        "osl_tokens": reported.osl_tokens,
        "stream_interval": reported.stream_interval,
    }
    return Provenance(
        hardware_class=reported.hardware,
        workload={k: str(v) for k, v in work.items() if v is not None},
        source_title=reported.source.title,
        source_url=reported.source.url,
        notes=tuple(n for n in (reported.source.note, reported.band_rule, reported.metric_dependence) if n),
    )
