"""Readers of aiperf: the summary (`profile_export_aiperf.json`) and the records (`profile_export.jsonl`).

In: the summary's object, or all record lines. Out: a `Reading`. Metrics are found by name, never by position, because
the input part of the file changes shape from version to version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from k3bench.errors import RecordError
from k3bench.imports.dictionary import Format, convert
from k3bench.imports.foreign import Fields, finite, plain
from k3bench.imports.gate import Totals
from k3bench.imports.readers import assemble, level_from, number, read_facts, same_length, summary
from k3bench.imports.reading import Facts, Reading, check
from k3bench.imports.requests import RERUN, Shown, in_flight, judge
from k3bench.records.measurement import Check

MODEL = "input_config/models/items/0/name|input_config/endpoint/model_names/0|input_config/models/0"
ISL = "input_config/datasets/0/prompts/isl/mean|input_config/input/prompt/input_tokens/mean|input_sequence_length/avg"
OSL = "input_config/datasets/0/prompts/osl/mean|input_config/input/prompt/output_tokens/mean"
LEVEL = "input_config/loadgen/concurrency"


def read_summary(name: str, entry: Format, fields: Fields) -> Reading:
    """The summary of one run. Raises `RecordError` where some streams came without usage."""
    facts = _summary_facts(fields, entry)
    _refuse_missing_usage(fields)
    metrics, notes = summary(fields, entry)
    duration = number(fields, entry.facts, "duration")
    seconds = None if duration is None else _in_ms(duration, fields, "benchmark_duration/unit") / 1e3
    totals = Totals(number(fields, entry.facts, "output_tokens"), seconds, _phase(fields) is not None)
    return assemble(
        name,
        entry,
        fields,
        facts,
        metrics=metrics,
        notes=notes,
        totals=totals,
        checks=tuple(_summary_checks(fields, facts)),
    )


def _summary_facts(fields: Fields, entry: Format) -> Facts:
    facts, phase = read_facts(fields, entry), _phase(fields)
    failed = facts.failed or 0
    completed = facts.completed if facts.completed is not None else facts.planned
    planned = (phase.count("requests") if phase else None) or (None if completed is None else completed + failed)
    isl, osl = fields.number(ISL), fields.number(OSL)
    usage = fields.get("input_config/endpoint/use_server_token_count") is True
    return replace(
        facts,
        model=fields.text(MODEL),
        level=(phase.count("concurrency") if phase else None) or fields.count(LEVEL) or None,
        isl_tokens=None if isl is None else same_length([isl], fields.where),
        osl_tokens=int(osl) if osl is not None and osl == int(osl) and osl >= 1 else None,
        token_source="usage" if usage else entry.token_source,
        planned=planned,
        completed=completed,
        failed=failed,
    )


def _phase(fields: Fields) -> Fields | None:
    """The phase whose requests are the result: the warm-up is in the file beside it."""
    for i, phase in enumerate(fields.items("input_config/phases") or []):
        if isinstance(phase, dict) and "profiling" in (phase.get("kind"), phase.get("name")):
            return fields.sub(f"input_config/phases/{i}")
    return None


def _refuse_missing_usage(fields: Fields) -> None:
    """Usage comes at the end of a stream: where some have it, a stream without it was cut off."""
    have, all_ = fields.number("usage_completion_tokens/count"), fields.number("request_latency/count")
    if have is not None and all_ is not None and have < all_:
        raise RecordError(
            f"{all_ - have:g} of {all_:g} streams were cut off: they ended without usage",
            where=f"{fields.where}: usage_completion_tokens/count",
            fix=RERUN,
        )


def _summary_checks(fields: Fields, facts: Facts) -> Iterator[Check]:
    stopped = fields.get("was_cancelled") is True or fields.get("is_complete") is False
    yield check("run_complete", not stopped, "the run was cancelled or is not complete")
    low, high = fields.number("output_sequence_length/min"), fields.number("output_sequence_length/max")
    if low is not None and high is not None:
        wanted = facts.osl_tokens or high
        differ = fields.number("osl_mismatch_count/avg")
        found = f"output lengths {low:g} to {high:g}, {wanted:g} asked for"
        short = f"{found}; osl_mismatch_count {differ:g}" if differ else found
        yield check("output_length_exact", low == high == wanted and not differ, short)


def _in_ms(value: float, fields: Fields, unit_path: str) -> float:
    return convert(value, fields.text(unit_path) or "(none)", f"{fields.where}: {unit_path}")[1]


def read_records(name: str, entry: Format, lines: Sequence[Fields]) -> Reading:
    """All record lines of one run. Warm-up requests are in the same file and are left out."""
    where = lines[0].where.rpartition(" line ")[0] or lines[0].where
    counted = [line for line in lines if line.text("metadata/benchmark_phase") == "profiling"]
    if not counted:
        place = f"{where}: metadata/benchmark_phase"
        raise RecordError("no request of the profiling phase", where=place, fix="run it again")
    shown = _cut_off([(line, _shown(line)) for line in counted])
    wanted = {w for line in counted if (w := _wanted(line)) is not None}
    judged = judge(shown, where=where, osl_tokens=wanted.pop() if len(wanted) == 1 else None, planned=len(shown))
    most, mean = in_flight(shown)
    level, warm_up = level_from(most, mean), len(lines) - len(counted)
    return assemble(
        name,
        entry,
        Fields(counted[0].value, where),
        _record_facts(entry, counted, shown, level, where),
        metrics={},
        notes={},
        totals=Totals(),
        judged=judged,
        remarks=(
            f"{warm_up} requests of other phases (warm-up) left out" if warm_up else None,
            f"level {level} is read from the requests in flight (mean {mean:.2f})" if level else None,
        ),
    )


def _record_facts(
    entry: Format, counted: Sequence[Fields], shown: Sequence[Shown], level: int | None, where: str
) -> Facts:
    usage = all(line.get("metrics/usage_completion_tokens") is not None for line in counted if not _error(line))
    return Facts(
        level=level,
        isl_tokens=same_length([s.prompt_tokens for s in shown if s.prompt_tokens is not None], where),
        token_source="usage" if usage else entry.token_source,
        started_s=(finite(counted[0].get("metadata/request_start_ns") or 0, where)) / 1e9 or None,
    )


def _error(line: Fields) -> str | None:
    found = line.get("error")
    if found is None and line.get("metadata/was_cancelled") is True:
        return "cancelled"
    return None if found is None else plain(str(found)[:200])


def _cut_off(pairs: Sequence[tuple[Fields, Shown]]) -> list[Shown]:
    """Where some streams have usage, one that ended without it was cut off."""
    told = any(line.get("metrics/usage_completion_tokens") is not None for line, _ in pairs)
    without = [line.get("metrics/usage_completion_tokens") is None for line, _ in pairs]
    return [replace(s, cut_off=told and bare and s.error is None) for (_, s), bare in zip(pairs, without, strict=True)]


def _wanted(line: Fields) -> int | None:
    """The requested length, from the deviation that aiperf records."""
    tokens, off = (
        line.number("metrics/output_sequence_length/value"),
        line.number("metrics/osl_mismatch_diff_pct/value"),
    )
    if tokens is None or off is None or off <= -100 or tokens > 1e9:
        return None
    return round(tokens / (1 + off / 100)) or None


def _shown(line: Fields) -> Shown:
    tokens = line.count("metrics/usage_completion_tokens/value|metrics/output_sequence_length/value")
    gaps = line.get("metrics/inter_chunk_latency/value")
    sent = line.number("metadata/request_start_ns")
    return Shown(
        ttft_s=_seconds(line, "time_to_first_token"),
        latency_s=_latency(line),
        tokens=tokens,
        prompt_tokens=line.count("metrics/usage_prompt_tokens/value|metrics/input_sequence_length/value"),
        sent_s=None if sent is None else sent / 1e9,
        gaps_s=_gaps(line) if isinstance(gaps, list) else None,
        error=_error(line),
    )


def _latency(line: Fields) -> float | None:
    """To the last content chunk, where the gaps show it; the request's own end comes a little later."""
    ttft, gaps = _seconds(line, "time_to_first_token"), line.get("metrics/inter_chunk_latency/value")
    if ttft is not None and isinstance(gaps, list):
        return ttft + sum(_gaps(line))
    return _seconds(line, "request_latency")


def _gaps(line: Fields) -> tuple[float, ...]:
    unit = "metrics/inter_chunk_latency/unit"
    return tuple(_in_ms(g, line, unit) / 1e3 for g in line.numbers("metrics/inter_chunk_latency/value") or [])


def _seconds(line: Fields, metric: str) -> float | None:
    value = line.number(f"metrics/{metric}/value")
    return None if value is None else _in_ms(value, line, f"metrics/{metric}/unit") / 1e3
