"""Records as MLflow will hold them: one run an arm of an observation, one verdict run; a value, its step, its time.

In: a comparison, the campaign's records, the report's files. Out: `Projected` runs with a digest each. Pure: no MLflow.
Out of scope: writing them (`tracking.py`).

Step is the concurrency for curves, the position in the observation for single runs (`runs_c<level>/...`), 0 for the
flat copies that the runs table shows. Times are the records' own, so that the same records always give the same points.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from k3bench.evidence import Evidence
from k3bench.metrics import METRICS
from k3bench.publish.flatten import numbers
from k3bench.records.base import digest_of
from k3bench.records.comparison import Comparison, ObservationRow
from k3bench.records.measurement import Arm, Measurement
from k3bench.records.reported import Reported
from k3bench.records.residency import FamilySummary, Residency
from k3bench.units import delta_pct

#: Short names of the flat columns: the runs table cuts a header at about thirteen characters.
COLUMN = {
    "tpot_median_ms": "tpot_ms",
    "ttft_median_ms": "ttft_ms",
    "itl_median_ms": "itl_ms",
    "step_p99_ms": "p99_ms",
    "output_tok_s": "tok_s",
}
COLOUR = {"before": "#868e98", "after": "#0a4a86", "zero-change": "#b08d3c"}
#: Changes when the same records are projected differently: every run is then written anew.
VERSION = "1"


class Point(NamedTuple):
    """One logged value."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class Projected:
    """One MLflow run. `key` says which; `digest` says with what content."""

    key: str
    name: str
    role: str
    start_ms: int
    end_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: tuple[Point, ...]
    artifacts: Mapping[str, bytes] = field(repr=False, default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of everything that is written."""
        files = {name: hashlib.sha256(data).hexdigest() for name, data in self.artifacts.items()}
        return digest_of(
            [VERSION, self.key, self.name, self.start_ms, self.end_ms, dict(self.tags), dict(self.params),
             [list(p) for p in self.points], files]
        )  # fmt: skip


@dataclass(frozen=True)
class Campaign:
    """Everything that a projection reads. `files` are the report's."""

    record: Comparison
    evidence: Evidence | Reported
    superseded: tuple[Measurement, ...] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict)
    residency: Mapping[str, Residency] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    note: str = ""


def project(campaign: Campaign) -> list[Projected]:
    """Every run of a campaign, measurement runs first, then the verdict."""
    if isinstance(campaign.evidence, Reported):
        arms = list(_reported_arms(campaign.record, campaign.evidence))
    else:
        arms = list(_measured_arms(campaign, campaign.evidence))
    start = min((a.start_ms for a in arms), default=0)
    end = max((a.end_ms for a in arms), default=0)
    return [*arms, _verdict(campaign, start, end)]


# --- one arm of one observation -------------------------------------------------------------------------------------


def _measured_arms(campaign: Campaign, evidence: Evidence) -> Iterator[Projected]:
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
    tags = {
        "arm": group,
        "side": arm,
        "obs": row.observation,
        "rack": first.rack,
        "build": f"{first.pair}/{arm}",
        "build.digest": first.build,
        "job": ", ".join(sorted({p.job for p in points})),
        "device": first.device,
        "runs.invalid": str(len({_position(p) for p in taken if not p.valid})),
        "runs.superseded": str(len({_position(p) for p in left})),
        **_shared_tags(campaign.record, group),
        **_commit(evidence, first.pair, arm),
    }
    return Projected(
        key=f"{campaign.record.campaign}/{row.observation}/{arm}",
        name=f"{row.observation}.{arm}",
        role="measurement",
        start_ms=start,
        end_ms=end,
        tags=_bounded(tags),
        params=_params(evidence),
        points=tuple(logged),
        artifacts=_arm_files(campaign, evidence, row, points),
    )


def _shared_tags(record: Comparison, group: str) -> dict[str, str]:
    tags = {"study": record.campaign, "mlflow.source.name": "k3bench", "mlflow.runColor": COLOUR.get(group, "#1f2328")}
    if record.simulated:
        tags["simulated"] = "yes"
    if record.kind == "reported":
        tags["published"] = "yes, not measured here"
    return tags


def _commit(evidence: Evidence, pair: str, arm: Arm) -> dict[str, str]:
    for build in evidence.builds:
        if build.pair == pair and build.arm == arm and build.git_commit:
            dirty = "+changes" if build.git_dirty else ""
            return {"git.sha": build.git_commit + dirty, "mlflow.source.git.commit": build.git_commit}
    return {}


def _params(evidence: Evidence) -> dict[str, str]:
    """The recipe, key by key; a value too long for MLflow stays in the recipe artifact only."""
    flat: dict[str, str] = {}
    for path, value in _leaves(evidence.plan.recipe.model_dump(mode="json", by_alias=True)):
        text = str(value)
        if len(text) <= MAX_PARAM_CHARS and len(flat) < MAX_PARAMS:
            flat[safe_key(path)] = text
    return flat


MAX_PARAMS, MAX_PARAM_CHARS, MAX_TAG_CHARS = 100, 500, 5000


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}.{i}")
    elif value is not None:
        yield path, ", ".join(map(str, value)) if isinstance(value, list) else value


def _bounded(tags: Mapping[str, str]) -> dict[str, str]:
    """MLflow cuts long values without a word: cut them here, visibly."""
    return {k: v if len(v) <= MAX_TAG_CHARS else v[: MAX_TAG_CHARS - 1] + "…" for k, v in tags.items() if v}


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
            yield from _curve(metric, value, level, end)
            base = baseline(record, level)
            if metric == record.metric and base is not None:
                yield Point("rel/tpot_pct", delta_pct(base, value), level, end)
                yield Point(f"c{level}_rel_pct", delta_pct(base, value), 0, end)


def _curve(metric: str, value: float, level: int, end: int) -> Iterator[Point]:
    section = METRICS[metric].section if metric in METRICS else "other"
    yield Point(f"{section}/{metric}", value, level, end)
    yield Point(f"c{level}_{COLUMN.get(metric, metric)}", value, 0, end)


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


# --- published figures ----------------------------------------------------------------------------------------------


def _reported_arms(record: Comparison, reported: Reported) -> Iterator[Projected]:
    """An arm of a published observation, where at least one of its levels is shown."""
    arms: tuple[Arm, ...] = ("before", "after")
    for observation in reported.observations:
        for arm in arms:
            points = [*_published(reported, observation.id, arm), *_published_runs(reported, observation.id, arm)]
            if not points:
                continue
            tags = {
                "arm": arm,
                "side": arm,
                "obs": observation.id,
                "rack": observation.rack or "",
                "build": observation.build or "",
                "job": observation.job or "",
                "source": reported.source.title,
                **_shared_tags(record, arm),
            }
            yield Projected(
                key=f"{record.campaign}/{observation.id}/{arm}",
                name=f"{observation.id}.{arm}",
                role="measurement",
                start_ms=0,
                end_ms=0,
                tags=_bounded(tags),
                params={"source.digest": reported.source.digest, "record": "published figures"},
                points=tuple(points),
                artifacts={"records/reported.json": reported.to_bytes()},
            )


def _published(reported: Reported, observation: str, arm: Arm) -> Iterator[Point]:
    for delta in reported.deltas:
        value = delta.before_tpot_ms if arm == "before" else delta.after_tpot_ms
        if delta.observation == observation and value is not None:
            yield from _curve("tpot_median_ms", value, delta.level, 0)


def _published_runs(reported: Reported, observation: str, arm: Arm) -> Iterator[Point]:
    for i, run in enumerate(reported.runs):
        if run.observation == observation and run.arm == arm:
            for metric, value in sorted(run.metrics.items()):
                yield Point(f"runs_c{run.level}/{safe_key(metric)}", value, run.position or i + 1, 0)


# --- the verdict ----------------------------------------------------------------------------------------------------


def _verdict(campaign: Campaign, start: int, end: int) -> Projected:
    """Every number of the comparison, the words as tags, the pull-request section as note, the report as artifacts."""
    record = campaign.record
    points = [Point(safe_key(key), value, 0, end) for key, value in numbers(record)]
    points += list(_verdict_columns(record, end))
    tags = {
        "verdict": record.headline.word,
        "agreement": record.headline.agreement,
        "flags": ", ".join(record.headline.flags),
        "mlflow.note.content": campaign.note,
        "kind": record.kind,
        **{f"c{level.concurrency}_word": level.word for level in record.levels},
        **{f"equality.{i:02d}": f"{row.status}: {row.what}" for i, row in enumerate(record.equality or (), 1)},
        **_shared_tags(record, "verdict"),
    }
    note = tags.pop("mlflow.note.content")
    return Projected(
        key=f"{record.campaign}/verdict",
        name=f"verdict {record.campaign}",
        role="verdict",
        start_ms=start,
        end_ms=end,
        tags={**_bounded(tags), "mlflow.note.content": note},
        params={"comparison.digest": record.digest(), "metric": record.metric, "margin_pct": repr(record.margin_pct)},
        points=tuple(points),
        artifacts={"comparison.json": record.to_bytes(), **{f"report/{n}": d for n, d in campaign.files.items()}},
    )


def _verdict_columns(record: Comparison, end: int) -> Iterator[Point]:
    """The few columns that the table of verdicts shows, and the same as curves over concurrency."""
    for level in record.levels:
        band = level.delta_band.half_width_pct if level.delta_band else None
        gain = None if level.delta_pct is None else -level.delta_pct if record.better == "lower" else level.delta_pct
        for name, value in (
            ("delta_pct", level.delta_pct),
            ("gain_pct", gain),
            ("low_pct", level.ci95.low_pct if level.ci95 else None),
            ("high_pct", level.ci95.high_pct if level.ci95 else None),
            ("band_pct", band),
            ("worst_pct", level.worst_case_pct),
        ):
            if value is not None:
                yield Point(f"c{level.concurrency}_{name}", value, 0, end)
                yield Point(f"verdict/{name}", value, level.concurrency, end)


# --- names and times ------------------------------------------------------------------------------------------------

_UNSAFE = re.compile(r"[^A-Za-z0-9_\-.:/ ]+")


def safe_key(text: str) -> str:
    """A name that MLflow takes: its letters only, at most 250 of them; a name that had to change keeps a digest."""
    clean = re.sub(r"/+", "/", _UNSAFE.sub("_", text)).strip("/")
    if clean == text and len(clean) <= 250:
        return clean
    return f"{clean[:225]}.{digest_of(text)[:12]}"


def time_ms(instant: str) -> int:
    """Milliseconds since the epoch of a record's instant."""
    return round(datetime.fromisoformat(instant).timestamp() * 1000)
