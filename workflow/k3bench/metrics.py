"""The metric registry: tag, unit, better direction and formula of every number k3bench reports about time.

In: per-step durations of the batches of a point, or stamps of its requests. Out: named values.
Out of scope: comparing them; whether they may be used (`validity.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from k3bench.units import ms_from_ns

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Metric:
    """One measured quantity; `formula` is its definition as the report prints it."""

    tag: str
    unit: str
    better: Better
    formula: str
    section: str


METRICS: Mapping[str, Metric] = {
    m.tag: m
    for m in (
        Metric(
            "tpot_median_ms",
            "ms",
            "lower",
            "median over batches or requests of (last - first token) / (OSL - 1)",
            "latency",
        ),
        Metric("ttft_median_ms", "ms", "lower", "median over batches or requests of first token - start", "latency"),
        Metric(
            "itl_median_ms", "ms", "lower", "median gap between streamed chunks (stream_interval tokens)", "latency"
        ),
        Metric(
            "itl_mean_ms",
            "ms",
            "lower",
            "median over batches or requests of the mean gap between whole streamed chunks",
            "latency",
        ),
        Metric("step_p99_ms", "ms", "lower", "99th percentile of single decode steps; none behind a server", "latency"),
        Metric("tps_user", "tok/s", "higher", "1000 / tpot_median_ms", "throughput"),
        Metric(
            "output_tok_s",
            "tok/s",
            "higher",
            "output tokens / time: all batches, or the window in which every request counts",
            "throughput",
        ),
    )
}
#: The metric that decides: everything else corroborates or restates it.
HEADLINE = "tpot_median_ms"

#: Restatements by definition: (metric, other, how to read it). The witness check confirms them from the data. Stalls
#: move a mean and not a median: on a busy machine the median gap may scatter about what it restates, the mean gap not.
IDENTITIES = (
    ("itl_mean_ms", "tpot_median_ms", "itl = stream_interval x tpot"),
    ("itl_median_ms", "tpot_median_ms", "itl = stream_interval x tpot"),
    ("tps_user", "tpot_median_ms", "tps_user = 1000 / tpot"),
)


def same_steps(*, in_process: bool) -> frozenset[str]:
    """Metrics of the very steps that TPOT is the mean of: no witness for it, however loosely they are tied.

    In process no prompt is run before a batch, so that its first token is a decode step as well.
    """
    same = frozenset({"step_p99_ms", "itl_mean_ms", "itl_median_ms"})
    return same | {"ttft_median_ms"} if in_process else same


@dataclass(frozen=True)
class BatchTimes:
    """One closed-loop batch: all rows start together and emit one token a step.

    `step_ns[0]` ends with the first token, so a batch of OSL tokens has OSL steps.
    """

    step_ns: tuple[int, ...]

    @property
    def ttft_ms(self) -> float:
        """Start to first token."""
        return ms_from_ns(self.step_ns[0])

    @property
    def tpot_ms(self) -> float:
        """(last - first) / (OSL - 1); a batch needs two tokens to have one."""
        return ms_from_ns(sum(self.step_ns[1:])) / (len(self.step_ns) - 1)

    def chunk_gaps_ms(self, stream_interval: int) -> list[float]:
        """Times between chunks; the first token is a chunk of its own, then one every `stream_interval` tokens."""
        tail = self.step_ns[1:]
        whole = range(0, len(tail) - stream_interval + 1, stream_interval)
        return [ms_from_ns(sum(tail[i : i + stream_interval])) for i in whole]


def point_metrics(batches: Sequence[BatchTimes], *, level: int, stream_interval: int) -> dict[str, float]:
    """Every metric of one point from its batches (at least one; OSL at least 2). Units as the names say."""
    tpot = statistics.median(b.tpot_ms for b in batches)
    gaps = [b.chunk_gaps_ms(stream_interval) for b in batches]
    steps = sorted(ms_from_ns(ns) for b in batches for ns in b.step_ns[1:])
    tokens = level * sum(len(b.step_ns) for b in batches)
    seconds = sum(sum(b.step_ns) for b in batches) / 1e9
    values = {
        "tpot_median_ms": tpot,
        "ttft_median_ms": statistics.median(b.ttft_ms for b in batches),
        "step_p99_ms": steps[min(len(steps) - 1, -(-99 * len(steps) // 100) - 1)],
        "tps_user": 1000.0 / tpot,
        "output_tok_s": tokens / seconds,
    }
    if all(gaps):
        values["itl_median_ms"] = statistics.median(gap for those in gaps for gap in those)
        values["itl_mean_ms"] = statistics.median(statistics.fmean(those) for those in gaps)
    return values


@dataclass(frozen=True)
class RequestTimes:
    """One streamed request: stamps in ns on one clock. `chunk_tokens` is None where the stream does not tell."""

    sent_ns: int
    chunk_ns: tuple[int, ...]
    tokens: int
    chunk_tokens: tuple[int, ...] | None
    counted: bool

    @property
    def ttft_ms(self) -> float:
        """Send to first content chunk."""
        return ms_from_ns(self.chunk_ns[0] - self.sent_ns)

    @property
    def tpot_ms(self) -> float:
        """(last - first) / (tokens - 1); a request needs two chunks and two tokens to have one."""
        return ms_from_ns(self.chunk_ns[-1] - self.chunk_ns[0]) / (self.tokens - 1)

    def chunk_gaps_ms(self) -> list[float]:
        """Times between content chunks, as they arrived; a last chunk of fewer tokens is a rest, and left out."""
        sizes, stamps = self.chunk_tokens, self.chunk_ns
        if sizes is not None and len(sizes) > 2 and sizes[-1] < sizes[-2]:
            stamps = stamps[:-1]
        return [ms_from_ns(b - a) for a, b in pairwise(stamps)]

    def tokens_between(self, start_ns: int, end_ns: int) -> float:
        """Output tokens that arrived in (start, end]; spread evenly over the chunks where their counts are unknown."""
        even = self.tokens / len(self.chunk_ns)
        sizes = self.chunk_tokens or (even,) * len(self.chunk_ns)
        return sum(n for n, at in zip(sizes, self.chunk_ns, strict=True) if start_ns < at <= end_ns)


def request_metrics(requests: Sequence[RequestTimes]) -> dict[str, float]:
    """Every metric of one served point. Latencies are those of counted requests; throughput counts all chunks that
    arrived in the counted window, from the first counted send to the last counted end.
    """
    counted = [r for r in requests if r.counted]
    tpot = statistics.median(r.tpot_ms for r in counted)
    start, end = min(r.sent_ns for r in counted), max(r.chunk_ns[-1] for r in counted)
    gaps = [r.chunk_gaps_ms() for r in counted]
    values = {
        "tpot_median_ms": tpot,
        "ttft_median_ms": statistics.median(r.ttft_ms for r in counted),
        "itl_median_ms": statistics.median(gap for those in gaps for gap in those),
        "tps_user": 1000.0 / tpot,
        "output_tok_s": sum(r.tokens_between(start, end) for r in requests) / ((end - start) / 1e9),
    }
    if all(r.chunk_tokens is not None for r in counted):
        values["itl_mean_ms"] = statistics.median(statistics.fmean(those) for those in gaps)
    return values
