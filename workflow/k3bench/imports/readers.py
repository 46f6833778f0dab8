"""From the object of a known format to a `Reading`: what all readers do the same way.

In: fields, the format's dictionary entry, facts and metrics found so far. Out: a whole `Reading`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace

from k3bench.errors import RecordError
from k3bench.imports.dictionary import Format, dictionary, why_null, words_found
from k3bench.imports.foreign import Fields
from k3bench.imports.gate import Totals, counted, dispersion, refuse_empty, refuse_impossible, summary_checks
from k3bench.imports.reading import Facts, Reading, check
from k3bench.imports.requests import Judged, whole_ratio
from k3bench.metrics import HEADLINE
from k3bench.records.measurement import Check

#: Counts of prompt tokens by two tokenizers differ a little; a workload of drawn lengths differs a lot.
MAX_ISL_SPREAD = 0.01
ALWAYS_ASKED = ("completed_equals_planned", "output_length_exact")
#: A recomputed median and the summary's own.
MAX_SUMMARY_MISS = 0.01


def read_facts(fields: Fields, entry: Format) -> Facts:
    """The facts whose paths the dictionary names."""
    at = entry.facts
    return Facts(
        model=_text(fields, at, "model"),
        level=_count(fields, at, "level") or None,
        isl_tokens=_whole(fields, at, "isl"),
        osl_tokens=_whole(fields, at, "osl"),
        token_source=entry.token_source,
        started_s=started(fields, at),
        rack=_text(fields, at, "rack"),
        build=_text(fields, at, "build"),
        arm=_text(fields, at, "arm"),
        simulated=str(_text(fields, at, "simulated") or _get(fields, at, "simulated")).lower() == "true",
        planned=_count(fields, at, "planned"),
        completed=_count(fields, at, "completed"),
        failed=_count(fields, at, "failed"),
    )


def _get(fields: Fields, at: Mapping[str, str], fact: str) -> object:
    return fields.get(at[fact]) if fact in at else None


def _text(fields: Fields, at: Mapping[str, str], fact: str) -> str | None:
    return fields.text(at[fact]) if fact in at else None


def _count(fields: Fields, at: Mapping[str, str], fact: str) -> int | None:
    return fields.count(at[fact]) if fact in at else None


def _whole(fields: Fields, at: Mapping[str, str], fact: str) -> int | None:
    value = number(fields, at, fact)
    return int(value) if value is not None and value == int(value) and 1 <= value < 1e9 else None


def number(fields: Fields, at: Mapping[str, str], fact: str) -> float | None:
    """A fact that is a number, if the format has it."""
    return fields.number(at[fact]) if fact in at else None


def started(fields: Fields, at: Mapping[str, str]) -> float | None:
    """When the run started or was written down, in seconds on the tool's own clock: good for order inside one tool."""
    unix = number(fields, at, "started_unix_s")
    if unix is not None:
        return unix
    text = _text(fields, at, "started")
    for shape in ("%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S"):
        try:
            return dt.datetime.strptime(text or "", shape).replace(tzinfo=dt.UTC).timestamp()
        except ValueError:
            continue
    return None


def rate_of(fields: Fields, entry: Format) -> float | None:
    """The request rate of an open-loop run; None where the next request waits for a slot."""
    value = _get(fields, entry.facts, "rate")
    if value is None or value == "inf" or value == float("inf"):
        return None
    try:
        return float(str(value)[:40])
    except ValueError:
        return None


def level_from(most: int, mean: float) -> int | None:
    """A concurrency that a run which states none shows by itself: filled almost all the time, never exceeded."""
    return most if most >= 1 and mean >= 0.9 * most else None


def summary(fields: Fields, entry: Format) -> tuple[dict[str, float], dict[str, str]]:
    """The summary's metrics in our words, and what differs a little from ours."""
    metrics, notes = {}, {}
    for word, value in words_found(fields, entry):
        assert word.is_ is not None
        metrics[word.is_] = value
        if word.near:
            notes[word.is_] = f"{word.word}: {word.near}"
    return metrics, notes


def assemble(
    name: str,
    entry: Format,
    fields: Fields,
    facts: Facts,
    *,
    metrics: Mapping[str, float],
    notes: Mapping[str, str],
    totals: Totals,
    judged: Judged | None = None,
    missing: Mapping[str, str] | None = None,
    checks: Sequence[Check] = (),
    remarks: Sequence[str | None] = (),
) -> Reading:
    """Everything known about one run as a `Reading`. Raises `RecordError` where nothing completed."""
    facts = counted(facts)
    refuse_empty(facts, fields.where)
    refuse_impossible(facts, totals, entry.facts, fields.where)
    found = {**metrics, **(judged.metrics if judged else {})}
    facts = _filled(facts, found, judged)
    all_checks = _merged(
        [*checks, *(judged.checks if judged else ()), *_agrees(metrics, judged)],
        [*summary_checks(facts, found, totals)],
    )
    found = _usable(found)
    kept = {k: v for k, v in notes.items() if not (judged and k in judged.metrics)}
    gone = {k: _why(k, fields, entry, metrics, found) for k in dictionary().ours if k not in found}
    reading = Reading(
        format=name,
        tool=entry.tool,
        where=fields.where,
        facts=facts,
        metrics={k: found[k] for k in dictionary().ours if k in found},
        missing={**gone, **{k: v for k, v in (missing or {}).items() if k not in found}},
        notes=kept,
        checks=tuple(all_checks),
    )
    return reading.remarked(*remarks, _unwitnessed(all_checks), *_remarks(facts, found, kept))


def _usable(found: Mapping[str, float]) -> dict[str, float]:
    """What may be a number at all, and the restatement of the headline that our metrics carry."""
    usable = {k: v for k, v in found.items() if v > 0}
    if HEADLINE in usable:
        usable["tps_user"] = 1000.0 / usable[HEADLINE]
    return usable


def _unwitnessed(checks: Sequence[Check]) -> str | None:
    """Criteria that every run of ours must meet and of which this file shows nothing."""
    lacking = [name for name in ALWAYS_ASKED if all(c.name != name for c in checks)]
    return f"not shown by the file, so not checked: {', '.join(lacking)}" if lacking else None


def _remarks(facts: Facts, found: Mapping[str, float], notes: Mapping[str, str]) -> tuple[str | None, ...]:
    near = f"{HEADLINE} is near ours: {notes[HEADLINE]}" if HEADLINE in notes else None
    nameless = None if facts.model else "the file names no model"
    return near, nameless, _chunk_remark(facts, found), dispersion(found)


def _filled(facts: Facts, found: Mapping[str, float], judged: Judged | None) -> Facts:
    interval = judged.stream_interval if judged else None
    if interval is None and facts.stream_interval is None:
        interval = whole_ratio(found.get("itl_median_ms", 0.0), found.get("tpot_median_ms", 0.0))
    osl = facts.osl_tokens or (judged.osl_tokens if judged else None)
    return replace(facts, stream_interval=facts.stream_interval or interval, osl_tokens=osl)


def _merged(first: Sequence[Check], second: Sequence[Check]) -> list[Check]:
    """One check a name: per-request evidence before the summary's, a failed one before a passed one."""
    found: dict[str, Check] = {}
    for one in (*first, *second):
        if one.name not in found or (found[one.name].ok and not one.ok):
            found[one.name] = one
    return list(found.values())


def _agrees(metrics: Mapping[str, float], judged: Judged | None) -> list[Check]:
    """A summary that is not the summary of its own requests was edited, or the lists are another run's."""
    if judged is None or not all(c.ok for c in judged.checks):
        return []
    stated, ours = metrics.get("tpot_median_ms"), judged.metrics.get("tpot_median_ms")
    if not stated or not ours:
        return []
    ok = abs(stated / ours - 1) <= MAX_SUMMARY_MISS
    detail = f"the summary says tpot_median_ms {stated:.5g}, its own requests give {ours:.5g}"
    return [check("summary_is_of_its_requests", ok, detail)]


def _why(metric: str, fields: Fields, entry: Format, stated: Mapping[str, float], found: Mapping[str, float]) -> str:
    if metric in stated:
        return f"the file says {stated[metric]:g}: no measured value is zero or negative"
    if metric == "tps_user" and "tpot_median_ms" not in found:
        return "is 1000 / tpot_median_ms, which is null"
    return why_null(metric, fields, entry)


def _chunk_remark(facts: Facts, found: Mapping[str, float]) -> str | None:
    if "itl_median_ms" not in found or (facts.stream_interval or 1) <= 1:
        return None
    return f"itl_median_ms is the gap between chunks of {facts.stream_interval} tokens, not a time per token"


def same_length(lengths: Sequence[float], where: str) -> int | None:
    """The one length of prompts, where all are alike but for the odd token; None where lengths were drawn."""
    if not lengths or min(lengths) <= 0:
        return None
    middle = sorted(lengths)[len(lengths) // 2]
    alike = max(lengths) - min(lengths) <= max(1.0, MAX_ISL_SPREAD * middle)
    if middle > 1e9:
        raise RecordError(f"{middle:g} prompt tokens", where=where, fix="a prompt is not that long")
    return round(middle) if alike else None
