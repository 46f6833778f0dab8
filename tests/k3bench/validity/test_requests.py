"""The gate on served runs: each criterion by itself, on requests made up to break it alone."""

from __future__ import annotations

from typing import Any

import pytest

from k3bench.records.recipe import Validity
from k3bench.records.request import Request, RequestError, Usage
from k3bench.validity import CHECK_OF, Criteria, check_requests, request_faults

OSL = 21
CRITERIA = Criteria(osl_tokens=OSL, stream_interval=10, validity=Validity())
MS = 1_000_000


def good(worker: int = 0, turn: int = 0, **changed: Any) -> Request:
    """A request of 21 tokens in chunks of 1, 10, 10 at 1 ms a token, one after the other in its worker."""
    start = (turn * 31 + worker) * MS
    at = tuple(start + ms * MS for ms in (5, 15, 25))
    fields: dict[str, Any] = {
        "worker": worker, "turn": turn, "phase": "load", "prompt": f"{worker:032x}{turn:032x}", "prompt_tokens": 8,
        "wanted_tokens": OSL, "sent_ns": start, "ended_ns": start + 30 * MS, "status": 200, "chunk_ns": at,
        "chunk_tokens": (1, 10, 10), "chunk_chars": (4, 40, 40), "finish_reason": "length", "done": True,
        "usage": Usage(prompt_tokens=8, completion_tokens=OSL, cached_tokens=0),
    }  # fmt: skip
    return Request(**(fields | changed))


def run(*requests: Request, concurrency: int = 1) -> dict[str, str]:
    """The broken checks of a run made of these requests."""
    checks = check_requests(requests, CRITERIA, planned=len(requests), concurrency=concurrency)
    return {c.name: c.detail for c in checks if not c.ok}


def usage(**changed: int) -> Usage:
    return Usage(**({"prompt_tokens": 8, "completion_tokens": OSL, "cached_tokens": 0} | changed))


def test_a_clean_run_breaks_nothing_and_lists_every_criterion() -> None:
    """Passed checks are in the record too: a reader sees what was asked."""
    requests = [good(0, turn) for turn in range(5)]
    checks = check_requests(requests, CRITERIA, planned=5, concurrency=1)
    assert all(c.ok and not c.detail for c in checks)
    assert set(CHECK_OF.values()) < {c.name for c in checks}


ALONE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "an error outside the stream": (
        {"error": RequestError(kind="refused")}, {"every_request_answered", "completed_equals_planned"}),
    "an error inside the stream": (
        {"error": RequestError(kind="error_event")}, {"no_error_event", "completed_equals_planned"}),
    "no finish reason": ({"finish_reason": None}, {"streams_ended", "completed_equals_planned"}),
    "no end mark": ({"done": False}, {"streams_ended", "completed_equals_planned"}),
    "too few tokens": (
        {"usage": usage(completion_tokens=20), "chunk_tokens": (1, 10, 9)},
        {"output_length_exact", "completed_equals_planned"}),
    "the right number but stopped": ({"finish_reason": "stop"}, {"output_length_exact", "completed_equals_planned"}),
    "usage above what was streamed": (
        {"chunk_tokens": (1, 10, 5)}, {"usage_equals_stream", "completed_equals_planned"}),
    "no usage": ({"usage": None}, {"usage_equals_stream", "one_token_source", "completed_equals_planned"}),
    "content before the request": (
        {"sent_ns": 5 * MS, "chunk_ns": (5 * MS, 15 * MS, 25 * MS)}, {"ttft_positive", "completed_equals_planned"}),
    "all content at one instant": (
        {"chunk_ns": (5 * MS, 5 * MS, 5 * MS)}, {"chunks_even", "completed_equals_planned"}),
    "another prompt length": (
        {"usage": usage(prompt_tokens=7)}, {"prompt_length_exact", "completed_equals_planned"}),
    "a prompt from a cache": ({"usage": usage(cached_tokens=8)}, {"cache_hits_alike"}),
    "a first chunk of many tokens": ({"chunk_tokens": (11, 5, 5)}, {"first_chunks_single"}),
    "a prompt sent twice": ({"prompt": f"{0:032x}{3:032x}"}, {"prompts_distinct"}),
}  # fmt: skip


@pytest.mark.parametrize("what", ALONE)
def test_one_bad_request_breaks_its_own_criterion(what: str) -> None:
    """And no other, so that the reason in the record is the reason."""
    changed, expected = ALONE[what]
    found = run(good(0, 0, **changed), *(good(0, turn) for turn in range(1, 5)))
    assert set(found) == expected
    assert all(found.values())


def test_a_chunk_beyond_the_allowed_intervals_is_giant() -> None:
    """Four stream intervals may come at once, more may not; the limit is the recipe's."""
    within = Criteria(121, 10, Validity())
    fields = {"wanted_tokens": 121, "usage": usage(completion_tokens=121)}
    assert request_faults(good(chunk_tokens=(1, 40, 80), **fields), within)[0].kind == "giant_chunk"
    wide = Criteria(121, 10, Validity(max_chunk_intervals=8))
    assert request_faults(good(chunk_tokens=(1, 40, 80), **fields), wide) == ()


def test_a_server_that_counts_at_the_end_only_must_send_as_many_chunks_as_its_tokens_make() -> None:
    """Half the chunks and all the tokens claimed is what made one client report a 25 % gain."""
    criteria = Criteria(20, 1, Validity())

    def request(chunks: int) -> Request:
        at = tuple((5 + n) * MS for n in range(chunks))
        return good(chunk_ns=at, chunk_tokens=None, chunk_chars=(4,) * chunks, wanted_tokens=20,
                    usage=usage(completion_tokens=20))  # fmt: skip

    assert request_faults(request(20), criteria) == ()
    assert request_faults(request(15), criteria) == ()
    assert request_faults(request(10), criteria)[0].kind == "usage_differs"
    assert request_faults(request(21), criteria)[0].kind == "usage_differs"


def test_most_of_the_text_in_one_chunk_is_giant_without_counts_too() -> None:
    """Characters are a rough count, enough for a server that buffers."""
    criteria = Criteria(20, 1, Validity())
    at = tuple((5 + n) * MS for n in range(14))
    request = good(chunk_ns=at, chunk_tokens=None, chunk_chars=(4,) * 13 + (200,), wanted_tokens=20,
                   usage=usage(completion_tokens=20))  # fmt: skip
    assert [f.kind for f in request_faults(request, criteria)] == ["giant_chunk"]


def test_a_load_that_was_not_held_is_told() -> None:
    """Half of the workers gone: what is left was measured at another concurrency."""
    requests = [good(0, turn) for turn in range(4)] + [good(1, 0)]
    assert set(run(*requests, concurrency=2)) == {"load_held"}
    assert run(*requests, *(good(1, turn) for turn in range(1, 4)), concurrency=2) == {}


def test_no_request_at_all_is_no_run() -> None:
    """An empty run is invalid, not a division by zero."""
    found = check_requests([], CRITERIA, planned=5, concurrency=1)
    assert {c.name for c in found if not c.ok} == {"completed_equals_planned", "load_held"}
