"""Readers of `trtllm-bench` (timed inside the engine) and inference-perf (open loop, seconds).

In: one object. Out: a `Reading`. Out of scope: their definitions, which are in the dictionary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from k3bench.imports.dictionary import Format
from k3bench.imports.foreign import Fields
from k3bench.imports.gate import Totals
from k3bench.imports.readers import assemble, number, rate_of, read_facts, same_length, summary
from k3bench.imports.reading import Reading, check

SMALLEST = "streaming_metrics/tpot_percentiles/minimum"
LENGTHS = "successes/output_len"
PARTS = ("latency/request_latency", "latency/time_to_first_token", "output_len", "latency/time_per_output_token")


def read_trtllm_bench(name: str, entry: Format, fields: Fields) -> Reading:
    """A report of `trtllm-bench throughput` or `latency`."""
    facts, in_flight = read_facts(fields, entry), number(fields, entry.facts, "in_flight")
    level = _level(in_flight)
    metrics, notes = summary(fields, entry)
    duration = number(fields, entry.facts, "duration_ms")
    output = number(fields, entry.facts, "osl")
    whole = output is None or output == int(output)
    smallest = fields.number(SMALLEST)
    checks = [check("output_length_exact", whole, f"{output} output tokens a request: outputs differ in length")]
    if smallest is not None:
        text = f"{SMALLEST} is {smallest:g}: requests of one token are in it as 0"
        checks.append(check("times_positive", smallest > 0, text))
    return assemble(
        name,
        entry,
        fields,
        replace(facts, level=level),
        metrics=metrics,
        notes=notes,
        totals=Totals(duration_s=None if duration is None else duration / 1e3),
        checks=checks,
        remarks=(
            None if level is None else f"level {level} is read from avg_num_concurrent_requests {in_flight:.2f}",
            None if fields.get("streaming_metrics") else "run without --streaming: no first token, so no TPOT",
        ),
    )


def _level(in_flight: float | None) -> int | None:
    """The report has no level; its mean of requests in flight is a little below the one that was held."""
    if in_flight is None or not 0 < in_flight < 1e6:
        return None
    level = math.ceil(in_flight - 1e-9)
    return level if in_flight >= 0.95 * level else None


def read_inference_perf(name: str, entry: Format, fields: Fields) -> Reading:
    """One stage of inference-perf."""
    facts, rate = read_facts(fields, entry), rate_of(fields, entry)
    low, high = fields.number(f"{LENGTHS}/min"), fields.number(f"{LENGTHS}/max")
    facts = replace(facts, isl_tokens=_alike(fields, "successes/prompt_len"), osl_tokens=_alike(fields, LENGTHS))
    metrics, notes = summary(fields, entry)
    checks = []
    if low is not None and high is not None:
        checks.append(check("output_length_exact", low == high, f"output lengths {low:g} to {high:g}"))
    return assemble(
        name,
        entry,
        fields,
        facts,
        metrics=metrics,
        notes=notes,
        totals=Totals(closed_loop=False),
        checks=checks,
        remarks=(
            None if rate is None else f"open loop: requests were sent at a rate of {rate:g}/s, so no level was held",
            *_contradiction(fields),
        ),
    )


def _alike(fields: Fields, path: str) -> int | None:
    ends = [fields.number(f"{path}/min"), fields.number(f"{path}/max")]
    return same_length([e for e in ends if e is not None], fields.where) if None not in ends else None


def _contradiction(fields: Fields) -> Iterator[str]:
    """The file's own means, held against its time per token."""
    parts = [fields.number(f"successes/{path}/mean") for path in PARTS]
    if any(p is None for p in parts):
        return
    latency, ttft, length, tpot = (float(p or 0.0) for p in parts)
    if length > 1 and tpot > 0:
        implied = (latency - ttft) / (length - 1)
        yield (
            f"time_per_output_token is {1e3 * tpot:.2f} ms on average; latency, TTFT and length of the same file "
            f"give {1e3 * implied:.2f} ms"
        )
