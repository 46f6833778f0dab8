"""Readings of a file in; one flat JSON object of metrics and reasons, or lines for a terminal, out. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3bench.errors import RecordError
from k3bench.imports.dictionary import dictionary
from k3bench.imports.foreign import ForeignFile
from k3bench.imports.reading import Reading
from k3bench.metrics import HEADLINE
from k3bench.records.reported import Reported, ReportedRun


def chosen(file: ForeignFile, readings: Sequence[Reading], entry: int | None) -> list[tuple[int, Reading]]:
    """The runs asked for, each with its number in the file. Raises `RecordError` for a number that is not there."""
    numbered = list(enumerate(readings, 1))
    if entry is None:
        return numbered
    if not 1 <= entry <= len(numbered):
        raise RecordError(
            f"no run {entry}: the file holds {len(numbered)}", where=file.name, fix="--entry counts from 1"
        )
    return [numbered[entry - 1]]


def show(file: ForeignFile, runs: Sequence[tuple[int, Reading]]) -> dict[str, Any]:
    """Metric -> number or null, `reasons` for every null, `flags`. Of several runs only what they share is a number."""
    if len(runs) == 1:
        return _one(file, runs[0][1])
    why = f"the file holds {len(runs)} runs: choose one with --entry 1 to --entry {len(runs)}"
    objects = [_one(file, reading) for _, reading in runs]
    shared = {k: v for k, v in objects[0].items() if all(o.get(k) == v for o in objects)}
    flat = {k: shared.get(k) for k in objects[0] if k not in ("reasons", "flags", "notes", "valid")}
    reasons = {k: _shared_reason(k, objects) or why for k, v in flat.items() if v is None}
    flags = [f"run {n}: {flag}" for n, reading in runs for flag in reading.flags]
    return {**flat, "valid": int(all(r.valid for _, r in runs)), "reasons": reasons, "notes": {}, "flags": flags}


def _shared_reason(key: str, objects: Sequence[dict[str, Any]]) -> str | None:
    found = {o["reasons"].get(key) for o in objects}
    return found.pop() if len(found) == 1 else None


def _one(file: ForeignFile, reading: Reading) -> dict[str, Any]:
    facts = reading.facts
    numbers = {
        "concurrency": facts.level,
        "isl_tokens": facts.isl_tokens,
        "osl_tokens": facts.osl_tokens,
        "stream_interval": facts.stream_interval,
        "requests_planned": facts.planned,
        "requests_completed": facts.completed,
    }
    unknown = {k: "the file does not say" for k, v in numbers.items() if v is None}
    source = dictionary().token_sources[facts.token_source]
    return {
        **{k: reading.metrics.get(k) for k in dictionary().ours},
        **numbers,
        "valid": int(reading.valid),
        "format": reading.format,
        "model": facts.model,
        "token_source": f"{facts.token_source}: {source}",
        "reasons": {**reading.missing, **unknown, **({} if facts.model else {"model": "the file names no model"})},
        "notes": dict(reading.notes),
        "flags": list(reading.flags),
    }


def show_figures(reported: Reported) -> dict[str, Any]:
    """A pull request's rows in the same flat shape: `observation.cN.what`."""
    flat: dict[str, float | None] = {}
    for row in reported.deltas:
        at = f"{row.observation}.c{row.level}"
        flat |= {f"{at}.before_tpot_ms": row.before_tpot_ms, f"{at}.after_tpot_ms": row.after_tpot_ms}
        flat[f"{at}.delta_pct"] = row.delta_pct
    reasons = {k: "not shown in the source" for k, v in flat.items() if v is None}
    return {**flat, "format": "pr-figures", "reasons": reasons, "flags": []}


def line_of(reading: Reading, place: str, run: ReportedRun) -> str:
    """One imported run in a line, what is wrong with it below."""
    value = run.metrics.get(HEADLINE)
    number = "null" if value is None else f"{value:.4g}"
    used = "" if reading.valid else "; not valid, its pair is dropped"
    head = f"{place} c={run.level} ({reading.format}): {HEADLINE} {number}{used}"
    lack = [f"{HEADLINE} is null: {reading.missing[HEADLINE]}"] if HEADLINE in reading.missing else []
    flags = run.imported.flags if run.imported else reading.flags
    return "\n".join([head, *(f"  flag: {text}" for text in (*lack, *flags))])
