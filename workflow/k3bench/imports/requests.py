"""Per-request data of a foreign file in; metrics by our own formulas, and the checks of the validity gate, out.

A file shows less of a request than our own client does: only criteria that it can witness are judged. A stream that was
cut off is refused outright, because no number of such a run means anything. Out of scope: reading the lists (readers).
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from k3bench.errors import RecordError
from k3bench.imports.reading import check
from k3bench.metrics import request_metrics
from k3bench.records.measurement import Check
from k3bench.records.recipe import Validity
from k3bench.records.request import Request, RequestError, Usage
from k3bench.validity import CHECK_OF, Criteria, Fault, request_faults

#: The first gap of an empty first chunk holds the whole prefill.
MAX_FIRST_GAP_FACTOR = 5.0
#: Longer than any request: seconds that were milliseconds, or garbage.
MAX_REQUEST_S = 1e6
#: No server holds back more tokens than this.
MAX_CHUNK_TOKENS = 1e6
#: A slot's next request may start a little before the last stamp of the one before it.
SLOT_SHARE = 0.99
#: No foreign file shows how a stream ended; the gate's words about it are not evidence.
ASSUMED_END = ", finish_reason length"
RERUN = "run the benchmark again; find out why streams end early before comparing anything"


@dataclass(frozen=True)
class Shown:
    """One request as a file shows it, times in seconds. None where the file does not say.

    `cut_off` is True where the file shows that the stream ended without its end; `gaps_s` are times between chunks.
    """

    ttft_s: float | None
    latency_s: float | None
    tokens: int | None
    prompt_tokens: int | None = None
    sent_s: float | None = None
    gaps_s: tuple[float, ...] | None = None
    error: str | None = None
    cut_off: bool = False


@dataclass(frozen=True)
class Judged:
    """What the requests of a run give."""

    metrics: dict[str, float]
    checks: tuple[Check, ...]
    stream_interval: int | None
    osl_tokens: int | None


def judge(shown: Sequence[Shown], *, where: str, osl_tokens: int | None, planned: int | None) -> Judged:
    """Metrics over the sound requests, and every check. Raises `RecordError` for an empty run or cut-off streams."""
    if not any(s.error is None for s in shown):
        raise RecordError(f"none of {len(shown)} requests completed", where=where, fix="run the benchmark again")
    _refuse_cut_off(shown, where)
    osl = osl_tokens or max((s.tokens for s in shown if s.tokens), default=None)
    interval = chunk_tokens(shown)
    criteria = Criteria(osl or 1, interval or _mean_chunk(shown), Validity(), prompt_is_ids=False)
    origin = min((s.sent_s for s in shown if s.sent_s is not None), default=0.0)
    requests = [_request(i, s, osl or 1, origin, where) for i, s in enumerate(shown)]
    faults = [_faults(r, s, criteria) for r, s in zip(requests, shown, strict=True)]
    sound = [r for r, found in zip(requests, faults, strict=True) if not found]
    checks = (*_checks(faults, shown, planned or len(shown)), _first_chunk(shown))
    return Judged(_metrics(sound, shown), checks, interval, osl)


def _refuse_cut_off(shown: Sequence[Shown], where: str) -> None:
    counted_otherwise = _counted_otherwise(shown)
    cut = sum(s.cut_off or id(s) in counted_otherwise for s in shown)
    if cut:
        raise RecordError(
            f"{cut} of {len(shown)} streams were cut off: they ended without usage, and their tokens were counted "
            f"another way than the others'",
            where=where,
            fix=RERUN,
        )


def _counted_otherwise(shown: Sequence[Shown]) -> set[int]:
    """Short streams whose prompt was counted another way than that of the whole ones.

    The server's usage comes at the end of a stream and counts the prompt its way; a client without it counts itself.
    """
    sound = [s for s in shown if s.error is None and s.tokens]
    longest = max((s.tokens or 0 for s in sound), default=0)
    prompts = {s.prompt_tokens for s in sound if s.tokens == longest}
    if len(prompts) != 1 or None in prompts:
        return set()
    return {id(s) for s in sound if s.tokens != longest and s.prompt_tokens not in prompts}


def in_flight(shown: Sequence[Shown]) -> tuple[int, float]:
    """Requests open at once: the most, and the mean from the first send to the last. (0, 0.0) without send times."""
    spans = [
        (s.sent_s, s.sent_s + SLOT_SHARE * s.latency_s)
        for s in shown
        if s.sent_s is not None and s.latency_s is not None
    ]
    if not spans or len(spans) != len(shown):
        return 0, 0.0
    edges = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    open_now = most = 0
    for _, step in edges:
        open_now += step
        most = max(most, open_now)
    first, last = min(s for s, _ in spans), max(s for s, _ in spans)
    inside = sum(max(0.0, min(end, last) - start) for start, end in spans)
    return most, inside / (last - first) if last > first else float(most)


def chunk_tokens(shown: Sequence[Shown]) -> int | None:
    """Tokens a chunk, where median chunk gap / median TPOT is near a whole number; None where gaps are not shown.

    The mean gap is no guide: a stream's last chunk is short.
    """
    gaps = [g for s in shown for g in s.gaps_s or () if s.error is None]
    paces = [
        (s.latency_s - s.ttft_s) / (s.tokens - 1)
        for s in shown
        if s.latency_s is not None and s.ttft_s is not None and s.tokens and s.tokens > 1 and s.error is None
    ]
    return whole_ratio(statistics.median(gaps), statistics.median(paces)) if gaps and paces else None


def _mean_chunk(shown: Sequence[Shown]) -> int:
    """Tokens a chunk by counts alone, rounded up, where no fixed interval shows: what the gate must allow for."""
    sizes = [(s.tokens - 1) / len(s.gaps_s) for s in shown if s.tokens and s.gaps_s and s.error is None]
    return max(1, math.ceil(statistics.median(sizes))) if sizes else 1


def whole_ratio(gap: float, pace: float) -> int | None:
    """gap / pace as a whole number of tokens, if it is within 5 % of one."""
    if not (gap > 0 and pace > 0) or gap / pace > MAX_CHUNK_TOKENS:
        return None
    nearest = round(gap / pace)
    return nearest if nearest >= 1 and abs(gap / pace / nearest - 1) <= 0.05 else None


def _request(i: int, s: Shown, osl: int, origin: float, where: str) -> Request:
    """Our own record of the request, so that our own gate can judge it. What a file cannot show is assumed sound."""
    times = (s.ttft_s, s.latency_s, *(s.gaps_s or ()), None if s.sent_s is None else s.sent_s - origin)
    if any(t is not None and abs(t) > MAX_REQUEST_S for t in times):
        worst = max(abs(t) for t in times if t is not None)
        raise RecordError(f"a time of {worst:g} s", where=f"{where}: request {i}", fix="times here are seconds")
    sent = 0 if s.sent_s is None else _ns(s.sent_s - origin)
    chunks = _chunks_ns(s, sent)
    usage = None if s.tokens is None else Usage(prompt_tokens=s.prompt_tokens or 0, completion_tokens=s.tokens)
    return Request(
        worker=0,
        turn=i,
        phase="load",
        prompt=hashlib.sha256(str(i).encode()).hexdigest(),
        prompt_tokens=s.prompt_tokens or 0,
        wanted_tokens=osl,
        sent_ns=sent,
        ended_ns=sent + _ns(s.latency_s or 0.0),
        chunk_ns=chunks,
        chunk_chars=(1,) * len(chunks),
        usage=usage,
        finish_reason="length",
        done=True,
        error=None if s.error is None else RequestError(kind="no_answer", detail=s.error[:200]),
    )


def _chunks_ns(s: Shown, sent: int) -> tuple[int, ...]:
    if s.ttft_s is None or not s.tokens:
        return ()
    at, found = s.ttft_s, [s.ttft_s]
    for gap in s.gaps_s or ():
        at += gap
        found.append(at)
    if s.gaps_s is None and s.latency_s is not None:
        found.append(s.latency_s)
    return tuple(sent + _ns(t) for t in found)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _faults(request: Request, s: Shown, criteria: Criteria) -> tuple[Fault, ...]:
    """Faults that the file can witness: without chunk gaps nothing is known about chunks."""
    found = request_faults(request, criteria)
    single = request.usage is not None and request.usage.completion_tokens == 1 and criteria.osl_tokens > 1
    if s.gaps_s is None or single:
        found = tuple(f for f in found if CHECK_OF[f.kind] not in ("usage_equals_stream", "chunks_even"))
    if any(CHECK_OF[f.kind] == "output_length_exact" for f in found):
        found = tuple(f for f in found if f.kind != "giant_chunk")
    if s.error is None and min(s.gaps_s or (0.0,)) < 0:
        found = (*found, Fault("garbage", f"a chunk {min(s.gaps_s or (0.0,)):g} s after the one before it"))
    if not found and (s.latency_s is None or s.ttft_s is None or s.latency_s <= s.ttft_s):
        return (Fault("ttft_not_positive", f"latency {s.latency_s} s, first token after {s.ttft_s} s"),)
    return found


def _checks(faults: Sequence[tuple[Fault, ...]], shown: Sequence[Shown], planned: int) -> tuple[Check, ...]:
    sound = sum(not found for found in faults)
    names = ["every_request_answered", "output_length_exact", "ttft_positive", "usage_equals_stream"]
    if any(s.gaps_s is not None for s in shown):
        names += ["chunks_even", "streams_well_formed"]
    return (
        check("completed_equals_planned", sound == planned, f"{sound} sound requests of {planned}"),
        *(_fault_check(name, faults) for name in names),
    )


def _fault_check(name: str, faults: Sequence[tuple[Fault, ...]]) -> Check:
    mine = [(i, f) for i, found in enumerate(faults) for f in found if CHECK_OF[f.kind] == name]
    if not mine:
        return check(name, True, "")
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(f.kind for _, f in mine).items()))
    first, fault = mine[0]
    detail = fault.detail.replace(ASSUMED_END, "")
    return check(name, False, f"{kinds}; request {first}: {detail}"[:400])


def _first_chunk(shown: Sequence[Shown]) -> Check:
    """An empty role chunk taken for the first token: TTFT reads too low, and TPOT holds the prefill."""
    factors = [
        s.gaps_s[0] / usual
        for s in shown
        if s.gaps_s and len(s.gaps_s) > 3 and (usual := statistics.median(s.gaps_s[1:])) > 0
    ]
    factor = statistics.median(factors) if factors else 1.0
    return check(
        "first_chunk_is_a_token",
        factor <= MAX_FIRST_GAP_FACTOR,
        f"the first gap of a stream is {factor:.0f} times the others: its first chunk held no token",
    )


def _metrics(sound: Sequence[Request], shown: Sequence[Shown]) -> dict[str, float]:
    """Our formulas over the sound requests; gaps and throughput only where chunks and send times are shown."""
    if not sound or sound[0].wanted_tokens < 2:
        return {}
    times = [r.times() for r in sound]
    paces, firsts = sorted(t.tpot_ms for t in times), [t.ttft_ms for t in times]
    found = request_metrics(times)
    found.pop("itl_mean_ms", None)  # no format reports it
    found["tpot_mean_ms"] = statistics.fmean(paces)
    found["tpot_p99_ms"], found["ttft_p99_ms"] = _p99(paces), _p99(sorted(firsts))
    found["e2el_median_ms"] = statistics.median((r.ended_ns - r.sent_ns) / 1e6 for r in sound)
    if any(s.gaps_s is None for s in shown):
        found.pop("itl_median_ms")
    if any(s.sent_s is None for s in shown):
        found.pop("output_tok_s")
    return found


def _p99(ordered: Sequence[float]) -> float:
    """Linear interpolation between order statistics, as numpy's default."""
    at = 0.99 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
