"""One arm of one measured observation as an MLflow run: curves, columns, single runs, fragments, overlap, records.

In: a campaign's records. Out: `Projected` runs. Out of scope: published figures and the verdict (`projection.py`).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from k3bench.evidence import Evidence
from k3bench.publish.flatten import numbers
from k3bench.publish.projected import (
    MAX_PARAM_CHARS,
    MAX_PARAMS,
    Campaign,
    Point,
    Projected,
    bounded,
    curve,
    safe_key,
    shared_tags,
    time_ms,
)
from k3bench.records.builds import INSTALLED
from k3bench.records.comparison import Comparison, ObservationRow
from k3bench.records.measurement import Arm, Measurement
from k3bench.records.residency import FamilySummary
from k3bench.units import delta_pct


def measured_arms(campaign: Campaign, evidence: Evidence) -> Iterator[Projected]:
    """Every arm of every observation that has points, accepted or superseded."""
    groups: dict[tuple[str, Arm], list[Measurement]] = defaultdict(list)
    for point in (*evidence.points, *campaign.superseded):
        groups[point.observation, point.name.arm].append(point)
    accepted = {p.id for p in evidence.points}
    rows = {row.observation: row for row in campaign.record.observations}
    for (observation, arm), points in sorted(groups.items()):
        yield _arm(campaign, evidence, rows[observation], arm, sorted(points, key=_in_order), accepted)


def _in_order(point: Measurement) -> tuple[int, int, int, int]:
    return point.name.level, point.name.block, point.name.run, point.name.attempt


def _position(point: Measurement) -> int:
    """Which run of the observation it is, from 1."""
    return 4 * point.name.block + point.name.run + 1


def _arm(
    campaign: Campaign,
    evidence: Evidence,
    row: ObservationRow,
    arm: Arm,
    points: list[Measurement],
    accepted: set[str],
) -> Projected:
    taken = [p for p in points if p.id in accepted]
    left = [p for p in points if p.id not in accepted]
    start, end = min(time_ms(p.started) for p in points), max(time_ms(p.ended) for p in points)
    logged = [
        *_curves(campaign.record, row, arm, taken, end),
        *_single_runs("runs", taken),
        *_single_runs("superseded", left),
        *_overlap(campaign, evidence, row, arm, end),
    ]
    group = "zero-change" if row.zero_change else arm
    first = points[0]
    built: Arm = "before" if row.zero_change else arm
    tags = {
        "arm": group,
        "side": arm,
        "obs": row.observation,
        "rack": first.rack,
        "build": f"{first.pair}/{built}",
        "build.digest": first.build,
        "job": ", ".join(sorted({p.job for p in points})),
        "device": first.device,
        "runs.invalid": str(len({_position(p) for p in taken if not p.valid})),
        "runs.superseded": str(len({_position(p) for p in left})),
        **shared_tags(campaign.record, group),
        **_commit(evidence, first.pair, built),
        **_made(evidence, first.pair, built),
    }
    return Projected(
        key=f"{campaign.record.campaign}/{row.observation}/{arm}",
        name=f"{row.observation}.{arm}",
        role="measurement",
        start_ms=start,
        end_ms=end,
        tags=bounded(tags),
        params=_params(evidence),
        points=tuple(logged),
        artifacts=_arm_files(campaign, evidence, row, points),
    )


def _commit(evidence: Evidence, pair: str, arm: Arm) -> dict[str, str]:
    for build in evidence.builds:
        if build.pair == pair and build.arm == arm and build.git_commit:
            dirty = "+changes" if build.git_dirty else ""
            return {"git.sha": build.git_commit + dirty, "mlflow.source.git.commit": build.git_commit}
    return {}


def _made(evidence: Evidence, pair: str, arm: Arm) -> dict[str, str]:
    """What a build was made from, where one was made, and whether the pair was rebuilt."""
    for build in evidence.builds:
        if build.pair == pair and build.arm == arm and (build.kind != INSTALLED or build.rebuild):
            rebuilt = str(build.rebuild).lower()
            return {"build.kind": build.kind, "build.made_from": build.origin, "build.rebuilt": rebuilt}
    return {}


def _params(evidence: Evidence) -> dict[str, str]:
    """The recipe, key by key; a value too long for MLflow stays in the recipe artifact only."""
    flat: dict[str, str] = {}
    for path, value in _leaves(evidence.plan.recipe.model_dump(mode="json", by_alias=True)):
        text = str(value)
        if len(text) <= MAX_PARAM_CHARS and len(flat) < MAX_PARAMS:
            flat[safe_key(path)] = text
    return flat


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}.{i}")
    elif value is not None:
        yield path, ", ".join(map(str, value)) if isinstance(value, list) else value


def _arm_files(
    campaign: Campaign, evidence: Evidence, row: ObservationRow, points: list[Measurement]
) -> dict[str, bytes]:
    """The records themselves, and the per-step arrays as they were written."""
    of_row = [b for b in evidence.blocks if b.observation == row.observation]
    seen = {p.fingerprint for p in points} | {d for b in of_row for d in (b.fingerprint_before, b.fingerprint_after)}
    prints = [f for f in evidence.fingerprints if f.digest() in seen]
    files = {
        "records/points.jsonl": b"".join(p.to_bytes() for p in points),
        "records/blocks.jsonl": b"".join(b.to_bytes() for b in of_row),
        "records/fingerprints.jsonl": b"".join(f.to_bytes() for f in prints),
        "records/recipe.json": evidence.plan.recipe.to_bytes(),
    }
    files.update({f"raw/{p.raw}": campaign.raw[p.id] for p in points if p.id in campaign.raw})
    return {name: data for name, data in files.items() if data}


def _curves(record: Comparison, row: ObservationRow, arm: Arm, points: list[Measurement], end: int) -> Iterator[Point]:
    """Each metric's median over the arm's valid runs, as a curve over concurrency and as a flat column."""
    usable = {r.record_id for r in record.runs if r.valid and r.value is not None}
    for level in sorted({p.name.level for p in points}):
        here = [p for p in points if p.name.level == level and p.id in usable]
        for metric in sorted({m for p in here for m in p.metrics}):
            value = statistics.median(p.metrics[metric] for p in here if metric in p.metrics)
            yield from curve(metric, value, level, end)
            base = baseline(record, level)
            if metric == record.metric and base is not None:
                yield Point("rel/tpot_pct", delta_pct(base, value), level, end)
                yield Point(f"c{level}_rel_pct", delta_pct(base, value), 0, end)


def baseline(record: Comparison, level: int) -> float | None:
    """What relative curves are relative to: the mean over real observations of their before medians."""
    medians = [
        found.before_median
        for row in record.observations
        if not row.zero_change
        for found in row.levels
        if found.concurrency == level and found.before_median is not None
    ]
    return statistics.fmean(medians) if medians else None


def _single_runs(prefix: str, points: list[Measurement]) -> Iterator[Point]:
    """Every run by its position; a superseded fragment counts on by attempt."""
    for point in points:
        step = _position(point) if prefix == "runs" else 1000 * point.name.attempt + _position(point)
        for metric in sorted(point.metrics):
            key = f"{prefix}_c{point.name.level}/{safe_key(metric)}"
            yield Point(key, point.metrics[metric], step, time_ms(point.ended))


def _overlap(campaign: Campaign, evidence: Evidence, row: ObservationRow, arm: Arm, end: int) -> Iterator[Point]:
    """Busy time, residency, share and what each kernel hid, from the observation's own profiled runs of this arm."""
    found = campaign.residency.get(row.observation)
    if found is None:
        return
    levels = [t.level for t in found.traces if t.arm == arm and t.level is not None]
    step = levels[0] if levels else evidence.plan.recipe.primary_level
    mine = found.model_copy(
        update={
            "traces": tuple(t for t in found.traces if t.arm in (arm, None)),
            "summaries": tuple(s for s in found.summaries if s.arm in (arm, None)),
        }
    )
    for summary in mine.summaries:
        yield from _family(summary, step, end)
    for key, value in numbers(mine):
        yield Point(safe_key(f"trace.{key}"), value, step, end)


def _family(summary: FamilySummary, step: int, end: int) -> Iterator[Point]:
    """The three numbers that people look at, as curves and as flat columns."""
    family = summary.family.lower()
    for name, short, value in (
        ("residency_ms", "res_ms", summary.two_stream_residency_ms_per_step),
        ("busy_ms", "busy_ms", summary.busy_ms_per_step),
        ("share_pct", "share_pct", summary.share_of_busy_pct),
    ):
        if value is not None:
            yield Point(safe_key(f"overlap/{family}_{name}"), value, step, end)
            yield Point(safe_key(f"c{step}_{family}_{short}"), value, 0, end)
