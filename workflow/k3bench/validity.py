"""Is a point a point? Criteria written before the data, evaluated before any number is used.

In: what a run produced. Out: named checks; for served runs also the faults of every request, as data.
Out of scope: dropping pairs (`compare/`), reading streams (`serving/`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from k3bench.metrics import BatchTimes
from k3bench.records.measurement import Check
from k3bench.records.recipe import Validity
from k3bench.records.request import Request

#: A mean TPOT may read this much too low because first chunks hold more than one token.
MAX_FIRST_CHUNK_BIAS_PCT = 0.1
#: Without counts in the stream: chunks may be fewer by this factor (merged under load, text held back at a character).
MAX_MERGED_CHUNKS = 1.5
#: Mean requests in flight over the counted window, as a share of the concurrency asked for.
MIN_LOAD_HELD = 0.95


def check_batches(batches: Sequence[BatchTimes], *, planned: int, osl_tokens: int) -> tuple[Check, ...]:
    """Completed = planned, every output exactly OSL tokens, every step took time."""
    lengths = sorted({len(b.step_ns) for b in batches})
    shortest = min((min(b.step_ns) for b in batches if b.step_ns), default=0)
    return (
        Check(
            name="completed_equals_planned",
            ok=len(batches) == planned,
            detail="" if len(batches) == planned else f"{len(batches)} of {planned} batches",
        ),
        Check(
            name="output_length_exact",
            ok=lengths == [osl_tokens],
            detail="" if lengths == [osl_tokens] else f"lengths {lengths}, planned {osl_tokens}",
        ),
        Check(
            name="times_positive",
            ok=shortest > 0,
            detail="" if shortest > 0 else f"a step took {shortest} ns",
        ),
    )


FaultKind = Literal[
    "failed", "http_status", "error_event", "garbage", "truncated", "no_output", "early_end", "too_long",
    "usage_missing", "usage_differs", "giant_chunk", "ttft_not_positive", "prompt_length",
]  # fmt: skip

#: Which run check a request fault breaks. Every fault breaks exactly one.
CHECK_OF: dict[FaultKind, str] = {
    "failed": "every_request_answered",
    "http_status": "every_request_answered",
    "error_event": "no_error_event",
    "garbage": "streams_well_formed",
    "truncated": "streams_ended",
    "no_output": "output_length_exact",
    "early_end": "output_length_exact",
    "too_long": "output_length_exact",
    "usage_missing": "usage_equals_stream",
    "usage_differs": "usage_equals_stream",
    "giant_chunk": "chunks_even",
    "ttft_not_positive": "ttft_positive",
    "prompt_length": "prompt_length_exact",
}
_FAULT_OF_ERROR: dict[str, FaultKind] = {
    "http_status": "http_status",
    "error_event": "error_event",
    "garbage": "garbage",
    "too_large": "garbage",
    "closed_early": "truncated",
}


@dataclass(frozen=True)
class Fault:
    """One thing wrong with one request."""

    kind: FaultKind
    detail: str


@dataclass(frozen=True)
class Criteria:
    """What every request of a run must have been."""

    osl_tokens: int
    stream_interval: int
    validity: Validity
    prompt_is_ids: bool = True

    @property
    def largest_chunk_tokens(self) -> float:
        """More tokens than this at once were held back by somebody."""
        return self.validity.max_chunk_intervals * self.stream_interval


def request_faults(request: Request, criteria: Criteria) -> tuple[Fault, ...]:
    """Everything wrong with one request, the cause first. Empty for one whose stamps may be used."""
    if request.error is not None:
        kind = _FAULT_OF_ERROR.get(request.error.kind, "failed")
        return (Fault(kind, f"{request.error.kind}: {request.error.detail}"),)
    return (*_end_faults(request), *_count_faults(request, criteria), *_time_faults(request, criteria))


def _end_faults(request: Request) -> Iterator[Fault]:
    """A stream that simply stops looks like a short answer to everyone who does not ask for its end."""
    if request.finish_reason is None or not request.done:
        missing = [w for w, there in (("finish_reason", request.finish_reason), ("[DONE]", request.done)) if not there]
        yield Fault("truncated", f"the stream ended without {' and '.join(missing)}")


def _count_faults(request: Request, criteria: Criteria) -> Iterator[Fault]:
    osl, usage, streamed = criteria.osl_tokens, request.usage, request.chunk_tokens
    if not request.chunk_ns:
        yield Fault("no_output", f"no content; {request.empty_chunks} empty chunks")
    if usage is None:
        yield Fault("usage_missing", "the server sent no usage: the number of tokens is unknown")
        return
    if usage.completion_tokens != osl or (request.finish_reason or "length") != "length":
        kind: FaultKind = "too_long" if usage.completion_tokens > osl else "early_end"
        yield Fault(kind, f"{usage.completion_tokens} of {osl} tokens, finish_reason {request.finish_reason}")
    if streamed is not None and sum(streamed) != usage.completion_tokens:
        yield Fault("usage_differs", f"usage says {usage.completion_tokens} tokens, the chunks {sum(streamed)}")
    if streamed is None and request.chunk_ns:
        yield from _chunks_fit(len(request.chunk_ns), usage.completion_tokens, criteria.stream_interval)
    if criteria.prompt_is_ids and usage.prompt_tokens != request.prompt_tokens:
        yield Fault("prompt_length", f"the server read {usage.prompt_tokens} of {request.prompt_tokens} prompt tokens")


def _chunks_fit(chunks: int, tokens: int, stream_interval: int) -> Iterator[Fault]:
    """All that can be asked of a server that counts at the end only: as many chunks as its tokens would make."""
    fewest = (1 + -(-(tokens - 1) // stream_interval)) / MAX_MERGED_CHUNKS
    if not fewest <= chunks <= tokens:
        problem = f"{chunks} chunks for {tokens} tokens at stream_interval {stream_interval}"
        yield Fault("usage_differs", f"{problem}; ask the server for usage in every chunk to tell why")


def _time_faults(request: Request, criteria: Criteria) -> Iterator[Fault]:
    if not request.chunk_ns:
        return
    if request.chunk_ns[0] <= request.sent_ns:
        yield Fault("ttft_not_positive", f"first content {request.chunk_ns[0] - request.sent_ns} ns after the request")
    if len(request.chunk_ns) < 2 or request.chunk_ns[-1] <= request.chunk_ns[0]:
        yield Fault("giant_chunk", f"{len(request.chunk_ns)} chunks that arrived at one instant: no time per token")
        return
    largest = _largest_chunk_tokens(request)
    if largest > criteria.largest_chunk_tokens:
        yield Fault(
            "giant_chunk",
            f"a chunk of {largest:.0f} tokens, stream_interval {criteria.stream_interval} allows "
            f"{criteria.largest_chunk_tokens:g}",
        )


def _largest_chunk_tokens(request: Request) -> float:
    """By the server's counts. Where it does not count: the mean, or a chunk with more than half of all characters."""
    if request.chunk_tokens is not None:
        return max(request.chunk_tokens)
    share = max(request.chunk_chars) / max(1, sum(request.chunk_chars))
    return request.wanted_tokens * (share if share > 0.5 else 1 / len(request.chunk_ns))


def check_requests(
    requests: Sequence[Request], criteria: Criteria, *, planned: int, concurrency: int
) -> tuple[Check, ...]:
    """Every criterion of a served run, passed ones included. One broken criterion makes the run invalid."""
    faults = [(r, f) for r in requests for f in request_faults(r, criteria)]
    bad = {id(r) for r, _ in faults}
    clean = [r for r in requests if id(r) not in bad]
    return (
        _check("completed_equals_planned", len(clean) == planned, f"{len(clean)} of {planned} requests"),
        *(_fault_check(name, faults) for name in dict.fromkeys(CHECK_OF.values())),
        _one_token_source(requests),
        _prompts_distinct(requests),
        _cache_untouched(requests, criteria.validity),
        _first_chunks_single(clean),
        _load_held(requests, concurrency),
    )


def _check(name: str, ok: bool, detail: str) -> Check:
    return Check(name=name, ok=ok, detail="" if ok else detail)


def _fault_check(name: str, faults: Sequence[tuple[Request, Fault]]) -> Check:
    """How many requests broke the criterion, in what ways, with the first one's words."""
    mine = [(r, f) for r, f in faults if CHECK_OF[f.kind] == name]
    if not mine:
        return Check(name=name, ok=True)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(f.kind for _, f in mine).items()))
    request, first = mine[0]
    detail = f"{kinds}; worker {request.worker} turn {request.turn}: {first.detail}"
    return Check(name=name, ok=False, detail=detail)


def _one_token_source(requests: Sequence[Request]) -> Check:
    sources = sorted({r.token_source for r in requests if r.error is None})
    return _check("one_token_source", len(sources) <= 1, f"token counts come from {', '.join(sources)}")


def _prompts_distinct(requests: Sequence[Request]) -> Check:
    twice = sum(n - 1 for n in Counter(r.prompt for r in requests).values())
    return _check("prompts_distinct", not twice, f"{twice} prompts were sent again: a prefix cache would answer them")


def _cache_untouched(requests: Sequence[Request], validity: Validity) -> Check:
    """Both arms of a pair are alike here because neither may find its random prompts in a cache."""
    told = [r.usage for r in requests if r.usage is not None and r.usage.cached_tokens is not None]
    cached, total = sum(u.cached_tokens or 0 for u in told), sum(u.prompt_tokens for u in told)
    pct = 100.0 * cached / total if total else 0.0
    detail = f"{pct:.1f} % of prompt tokens came from a cache, {validity.max_cached_prompt_pct:g} % may"
    return _check("cache_hits_alike", pct <= validity.max_cached_prompt_pct, detail)


def _first_chunks_single(clean: Sequence[Request]) -> Check:
    """(last - first) / (tokens - 1) reads too low by the extra tokens of the first chunk."""
    known = [r for r in clean if r.chunk_tokens is not None and r.wanted_tokens > 1]
    extra = [(r.chunk_tokens[0] - 1) / (r.wanted_tokens - 1) for r in known if r.chunk_tokens]
    pct = 100.0 * sum(extra) / len(extra) if extra else 0.0
    return _check(
        "first_chunks_single", pct <= MAX_FIRST_CHUNK_BIAS_PCT, f"first chunks hold more: TPOT reads {pct:.2f} % low"
    )


def _load_held(requests: Sequence[Request], concurrency: int) -> Check:
    """Requests in flight, averaged over the time from the first counted send to the last counted end."""
    counted = [r for r in requests if r.phase == "load"]
    if not counted:
        return Check(name="load_held", ok=False, detail="no counted request")
    start, end = min(r.sent_ns for r in counted), max(r.ended_ns for r in counted)
    inside = sum(max(0, min(r.ended_ns, end) - max(r.sent_ns, start)) for r in requests)
    mean = inside / (end - start) if end > start else 0.0
    return _check("load_held", mean >= MIN_LOAD_HELD * concurrency, f"{mean:.2f} of {concurrency} in flight on average")
