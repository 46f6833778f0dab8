"""Records as MLflow will hold them: one run an arm of an observation, one verdict run; a value, its step, its time.

In: a comparison, the campaign's records, the report's files. Out: `Projected` runs with a digest each. Pure: no MLflow.
Out of scope: writing them (`tracking.py`), the arms of measured observations (`arms.py`).

Step is the concurrency for curves, the position in the observation for single runs (`runs_c<level>/...`), 0 for the
flat copies that the runs table shows. Times are the records' own, so that the same records always give the same points.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator

from k3bench.publish.arms import measured_arms
from k3bench.publish.flatten import numbers
from k3bench.publish.projected import Campaign, Point, Projected, bounded, curve, safe_key, shared_tags
from k3bench.records.comparison import Comparison, EqualityRow
from k3bench.records.measurement import Arm
from k3bench.records.reported import Reported


def project(campaign: Campaign) -> list[Projected]:
    """Every run of a campaign, measurement runs first, then the verdict."""
    if isinstance(campaign.evidence, Reported):
        arms = list(_reported_arms(campaign.record, campaign.evidence))
    else:
        arms = list(measured_arms(campaign, campaign.evidence))
    start = min((a.start_ms for a in arms), default=0)
    end = max((a.end_ms for a in arms), default=0)
    return [*arms, _verdict(campaign, start, end)]


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
                **shared_tags(record, arm),
            }
            yield Projected(
                key=f"{record.campaign}/{observation.id}/{arm}",
                name=f"{observation.id}.{arm}",
                role="measurement",
                start_ms=0,
                end_ms=0,
                tags=bounded(tags),
                params={"source.digest": reported.source.digest, "record": "published figures"},
                points=tuple(points),
                artifacts={"records/reported.json": reported.to_bytes()},
            )


def _published(reported: Reported, observation: str, arm: Arm) -> Iterator[Point]:
    for delta in reported.deltas:
        value = delta.before_tpot_ms if arm == "before" else delta.after_tpot_ms
        if delta.observation == observation and value is not None:
            yield from curve("tpot_median_ms", value, delta.level, 0)


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
        **_equality_tags(record),
        **shared_tags(record, "verdict"),
    }
    note = tags.pop("mlflow.note.content")
    return Projected(
        key=f"{record.campaign}/verdict",
        name=f"verdict {record.campaign}",
        role="verdict",
        start_ms=start,
        end_ms=end,
        tags={**bounded(tags), "mlflow.note.content": note},
        params={"comparison.digest": record.digest(), "metric": record.metric, "margin_pct": repr(record.margin_pct)},
        points=tuple(points),
        artifacts={
            "comparison.json": record.to_bytes(),
            **_equality_table(record),
            **{f"report/{n}": d for n, d in campaign.files.items()},
        },
    )


#: More probes than this are counted by kind in the tags; the table holds each of them anyway.
MAX_PROBE_TAGS = 24


def _equality_tags(record: Comparison) -> dict[str, str]:
    rows = record.equality or ()
    if len(rows) <= MAX_PROBE_TAGS:
        return {f"equality.{i:02d}": f"{row.status}: {row.what}" for i, row in enumerate(rows, 1)}
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        kinds.setdefault(f"{row.kind}, {row.what}", Counter())[row.status] += 1
    return {
        f"equality.{i:02d}": f"{what}: " + ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
        for i, (what, found) in enumerate(kinds.items(), 1)
    }


def _equality_table(record: Comparison) -> dict[str, bytes]:
    """Every probe as a row that the UI shows as a table."""
    if not record.equality:
        return {}
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(EqualityRow.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.model_dump(mode="json") for row in record.equality)
    return {"tables/equality.csv": out.getvalue().encode()}


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
