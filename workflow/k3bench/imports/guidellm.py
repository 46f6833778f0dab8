"""Reader of guidellm reports, from the 0.3 era to version 2: one benchmark of the report in, a `Reading` out.

Its summary is weighted by tokens and its TPOT contains TTFT, so TPOT is computed from the per-request records. Chunks
are not recorded: there is no chunk gap. Out of scope: reports whose records were left out give counts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from k3bench.errors import RecordError
from k3bench.imports.dictionary import Format
from k3bench.imports.foreign import CURE, Fields
from k3bench.imports.gate import Totals
from k3bench.imports.readers import assemble, same_length
from k3bench.imports.reading import Facts, Reading
from k3bench.imports.requests import Judged, Shown, judge

TIMES = "info/timings/{0}|scheduler_info/request_timings/{0}"
START = TIMES.format("request_start") + "|request_start_time|start_time"
FIRST = f"{TIMES.format('first_token_iteration')}|{TIMES.format('first_iteration')}|first_token_time"
LAST = f"{TIMES.format('last_token_iteration')}|{TIMES.format('last_iteration')}|last_token_time"
TOKENS = "output_metrics/total_tokens|output_tokens"
PROMPT = "input_metrics/total_tokens|prompt_tokens"
STRATEGY = "config/strategy/{0}|args/strategy/{0}"
LEVEL = f"{STRATEGY.format('streams')}|{STRATEGY.format('max_concurrency')}"
MODEL = "config/backend/model|worker/backend_model|config/backend_model"
TOTALS = "metrics/request_totals/{0}|scheduler_metrics/requests_made/{0}|request_totals/{0}|run_stats/requests_made/{0}"
SUCCESSES = "requests/successful"


def benchmarks(fields: Fields) -> Iterator[Fields]:
    """The benchmarks of a report, each a run of its own. Raises `RecordError` where there is none."""
    found = fields.items("benchmarks") or []
    if not found:
        raise RecordError("no benchmark in the report", where=f"{fields.where}: benchmarks", fix=CURE)
    for i in range(len(found)):
        one = fields.sub(f"benchmarks/{i}")
        if one is None:
            raise RecordError("a benchmark that is no object", where=f"{fields.where}: benchmarks/{i}", fix=CURE)
        yield one


def read_benchmark(name: str, entry: Format, report: Fields, fields: Fields) -> Reading:
    """One benchmark of a report."""
    facts = _facts(report, fields, entry)
    judged, sampled = _requests(fields, facts)
    remarks = [sampled, _rate(fields)]
    if judged is None:
        remarks.append("per-request records were left out of the report: the summary has no TPOT of ours")
    return assemble(
        name, entry, fields, facts, metrics={}, notes={}, totals=Totals(), judged=judged, remarks=tuple(remarks)
    )


def _facts(report: Fields, fields: Fields, entry: Format) -> Facts:
    completed = fields.count(TOTALS.format("successful"))
    failed = (fields.count(TOTALS.format("errored")) or 0) + (fields.count(TOTALS.format("incomplete")) or 0)
    kind = fields.text(STRATEGY.format("type_")) or ""
    level = fields.count(LEVEL) if kind in ("concurrent", "throughput") else None
    own_count = fields.get("config/prefer_response_metrics") is False
    return replace(
        Facts(),
        model=fields.text(MODEL) or report.text("config/spec/backend/model"),
        level=1 if kind == "synchronous" else level or None,
        isl_tokens=_planned(report, fields, "prompt_tokens") or _counted(fields),
        osl_tokens=_planned(report, fields, "output_tokens"),
        token_source="client_tokenizer" if own_count else entry.token_source,
        started_s=fields.number("start_time|scheduler_metrics/start_time|run_stats/start_time"),
        planned=fields.count(TOTALS.format("total")),
        completed=completed,
        failed=failed,
    )


def _planned(report: Fields, fields: Fields, what: str) -> int | None:
    """The length asked for: a number in the new configuration, `prompt_tokens=128,output_tokens=64` in the old."""
    value = report.get(f"config/spec/data/0/{what}")
    if value is None:
        text = str(fields.get("request_loader/data") or report.get("args/data/0") or "")[:500]
        found = re.search(rf"{what}\W{{1,4}}(\d{{1,9}})\b", text)
        return int(found[1]) if found else None
    number = report.number(f"config/spec/data/0/{what}")
    return int(number) if number is not None and 1 <= number < 1e9 and number == int(number) else None


def _counted(fields: Fields) -> int | None:
    prompts = [_at(fields, i).number(PROMPT) for i in range(len(fields.items(SUCCESSES) or []))]
    return same_length([p for p in prompts if p is not None], fields.where)


def _rate(fields: Fields) -> str | None:
    kind = fields.text(STRATEGY.format("type_")) or ""
    return f"open loop: strategy {kind}, so no level was held" if kind in ("constant", "poisson", "async") else None


def _at(fields: Fields, i: int, group: str = "successful") -> Fields:
    found = fields.sub(f"requests/{group}/{i}")
    if found is None:
        raise RecordError("a request that is no object", where=f"{fields.where}: requests/{group}/{i}", fix=CURE)
    return found


def _requests(fields: Fields, facts: Facts) -> tuple[Judged | None, str | None]:
    """All requests of the report, and a remark where it holds a sample only."""
    sound = [_shown(_at(fields, i)) for i in range(len(fields.items(SUCCESSES) or []))]
    if not sound:
        return None, None
    bad = [
        _failed(_at(fields, i, group), group)
        for group in ("errored", "incomplete")
        for i in range(len(fields.items(f"requests/{group}") or []))
    ]
    sampled = facts.completed is not None and len(sound) < facts.completed
    planned = len(sound) + len(bad) if sampled else facts.planned
    remark = f"a sample: {len(sound)} of {facts.completed} requests are in the report" if sampled else None
    return judge([*sound, *bad], where=fields.where, osl_tokens=facts.osl_tokens, planned=planned), remark


def _failed(request: Fields, group: str) -> Shown:
    text = request.text("info/error|error") or group
    return Shown(ttft_s=None, latency_s=None, tokens=None, error=text)


def _shown(request: Fields) -> Shown:
    start, first, last = (request.number(path) for path in (START, FIRST, LAST))
    known = start is not None
    return Shown(
        ttft_s=first - start if first is not None and known else None,  # type: ignore[operator]
        latency_s=last - start if last is not None and known else None,  # type: ignore[operator]
        tokens=request.count(TOKENS),
        prompt_tokens=request.count(PROMPT),
        sent_s=start,
        error=request.text("info/error"),
    )
