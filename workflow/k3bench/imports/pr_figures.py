"""A pull request's published figures, as a JSON file, in; a `k3bench.reported/1` record out.

Null stays null: what the description does not show is not filled in. Out of scope: judging the figures (`check-pr`).
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from k3bench.errors import RecordError
from k3bench.records.measurement import Arm
from k3bench.records.reported import (
    Reported,
    ReportedAgreement,
    ReportedBand,
    ReportedDelta,
    ReportedEquality,
    ReportedObservation,
    ReportedResidency,
    Source,
)
from k3bench.store import read_bytes

Json = dict[str, Any]


def read_pr_figures(path: Path, *, name: str) -> Reported:
    """Read a JSON file of published figures. Raises `RecordError` naming the file and the field that is wrong."""
    data = read_bytes(path)
    try:
        figures = json.loads(data)
        return _reported(figures, name=name, digest=hashlib.sha256(data).hexdigest())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecordError(
            f"not a file of pull-request figures: {type(error).__name__}: {error}",
            where=str(path),
            fix="expected are source, workload, observations, before_residency, after_residency, equality_evidence",
        ) from None


def _reported(figures: Json, *, name: str, digest: str) -> Reported:
    source, workload = figures["source"], figures["workload"]
    rows = figures["observations"]
    firsts = {_obs(row): row for row in reversed(rows)}
    return Reported(
        name=name,
        title=source["title"],
        source=Source(
            title=source["title"], url=source.get("url"), state=source.get("state"), note=source["note"], digest=digest
        ),
        model=workload.get("model"),
        hardware=workload.get("hardware"),
        parallelism=workload.get("parallelism"),
        isl_tokens=workload.get("isl_tokens"),
        osl_tokens=workload.get("osl_tokens"),
        stream_interval=workload.get("stream_interval"),
        primary_level=min(row["concurrency"] for row in rows),
        observations=tuple(
            ReportedObservation(id=obs, job=row.get("job"), rack=row.get("rack"), build=row.get("build"))
            for obs, row in sorted(firsts.items())
        ),
        deltas=tuple(
            ReportedDelta(
                observation=_obs(row),
                level=row["concurrency"],
                before_tpot_ms=row["before_tpot_ms"],
                after_tpot_ms=row["after_tpot_ms"],
                delta_pct=row["delta_pct"],
            )
            for row in rows
        ),
        residency=(
            *_residency(figures.get("before_residency", []), "before"),
            *_residency(figures.get("after_residency", []), "after"),
        ),
        bands=tuple(
            ReportedBand(level=int(level), band_pct=band, runs=_runs_of(figures.get("noise_band_rule")))
            for level, band in figures.get("noise_band_pct", {}).items()
        ),
        band_rule=figures.get("noise_band_rule"),
        agreement=_agreement(figures.get("agreement")),
        equality=tuple(_equality(what, claim) for what, claim in figures.get("equality_evidence", {}).items()),
        metric_dependence=figures.get("metric_dependence"),
    )


def _obs(row: Json) -> str:
    return f"obs{row['id']}"


def _residency(rows: list[Json], arm: Arm) -> tuple[ReportedResidency, ...]:
    return tuple(
        ReportedResidency(
            family=row["family"],
            arm=arm,
            segments_per_step=row.get("segments_per_step"),
            device_busy_ms_per_step=row.get("device_busy_ms_per_step"),
            two_stream_residency_ms_per_step=row.get("two_stream_residency_ms_per_step"),
            share_of_busy_pct=row.get("share_of_busy_pct"),
        )
        for row in rows
    )


def _runs_of(rule: str | None) -> int | None:
    """How many zero-change runs a band's description speaks of; None where it names no number."""
    words = {"two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}
    found = re.search(r"\b(\d+|" + "|".join(words) + r")\s+zero-change", rule or "")
    return (words.get(found[1]) or int(found[1])) if found else None


def _agreement(claim: Json | None) -> tuple[ReportedAgreement, ...]:
    if not claim:
        return ()
    return (ReportedAgreement(between=tuple(f"obs{n}" for n in claim["between"]), value_pct=claim["value_pct"]),)


def _equality(what: str, claim: str) -> ReportedEquality:
    """A claim is evidence only if it says that something was run."""
    if "not run" in claim:
        return ReportedEquality(what=what, claim=claim, kind="not_run")
    argued = "argued" in claim or "no numerical probe" in claim
    return ReportedEquality(what=what, claim=claim, kind="argued" if argued else "measured")
