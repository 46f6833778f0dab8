"""Every way in which a server ends a stream wrongly is caught by a named check, and nothing hangs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_server import FaultyServer

from k3bench.measure.client import LoadResult
from k3bench.records.recipe import Validity
from k3bench.serving.process import free_port, start_server
from k3bench.validity import Criteria, check_requests, request_faults

CRITERIA = Criteria(osl_tokens=24, stream_interval=1, validity=Validity())
PLANNED = 16
#: Kinds that end by the request limit only.
SILENT = ("answers_nothing", "stalls")

#: fault -> (API, the check that must break, the kind of fault each bad request must have)
CAUGHT = {
    "http500": ("completions", "every_request_answered", "http_status"),
    "redirects": ("completions", "every_request_answered", "http_status"),
    "tcp_abort": ("completions", "every_request_answered", "failed"),
    "answers_nothing": ("completions", "every_request_answered", "failed"),
    "stalls": ("completions", "every_request_answered", "failed"),
    "truncate": ("completions", "streams_ended", "truncated"),
    "abort_in_stream": ("completions", "streams_ended", "truncated"),
    "cut_event": ("completions", "streams_ended", "truncated"),
    "early_eos": ("completions", "output_length_exact", "early_end"),
    "too_long": ("completions", "output_length_exact", "too_long"),
    "role_then_nothing": ("chat", "output_length_exact", "no_output"),
    "error_event": ("completions", "no_error_event", "error_event"),
    "garbage": ("completions", "streams_well_formed", "garbage"),
    "garbage_then_nothing": ("completions", "streams_well_formed", "garbage"),
    "html": ("completions", "streams_well_formed", "garbage"),
    "giant_final": ("completions", "chunks_even", "giant_chunk"),
    "one_chunk": ("completions", "chunks_even", "giant_chunk"),
    "no_usage": ("completions", "usage_equals_stream", "usage_missing"),
    "usage_claims_all": ("completions", "usage_equals_stream", "usage_differs"),
    "prompt_cut": ("completions", "prompt_length_exact", "prompt_length"),
}


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, ...]]]:
    """Rows of what was caught, printed when all are."""
    rows: list[tuple[str, ...]] = []
    yield rows
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\nfault               bad/sent  broken check            first words")
        for kind, bad, check, words in rows:
            print(f"{kind:<19} {bad:<9} {check:<23} {words[:75]}")


def broken(result: LoadResult, criteria: Criteria = CRITERIA) -> dict[str, str]:
    """Names and details of the checks that failed."""
    checks = check_requests(result.requests, criteria, planned=PLANNED, concurrency=4)
    return {c.name: c.detail for c in checks if not c.ok}


@pytest.mark.parametrize("kind", CAUGHT)
def test_a_fault_in_every_fourth_request_breaks_its_check(
    kind: str, serve: Callable[..., str], load: Callable[..., LoadResult], table: list[tuple[str, ...]]
) -> None:
    """The run is invalid by the check that names the cause, and the well-answered requests have no fault."""
    api, check, fault = CAUGHT[kind]
    limit_s = 1.5 if kind in SILENT else 30.0
    result = load(serve(FaultyServer(kind).app()), api=api, limit_s=limit_s)
    criteria = Criteria(24, 1, Validity(), prompt_is_ids=api == "completions")
    found = broken(result, criteria)
    bad = [r for r in result.requests if request_faults(r, criteria)]
    table.append((kind, f"{len(bad)}/{len(result.requests)}", check, found.get(check, "NOT CAUGHT")))
    assert check in found
    assert "completed_equals_planned" in found
    first = [request_faults(r, criteria)[0].kind for r in bad if not (r.error and r.error.kind == "not_sent")]
    assert set(first) == {fault}
    assert len(result.requests) == PLANNED


def test_a_good_server_breaks_nothing(serve: Callable[..., str], load: Callable[..., LoadResult]) -> None:
    """Both APIs: every check passes, every request counted, so the faults above are not caught by accident."""
    url = serve(FaultyServer("http500", every=10_000).app())
    for api in ("completions", "chat"):
        result = load(url, api=api)
        criteria = Criteria(24, 1, Validity(), prompt_is_ids=api == "completions")
        assert broken(result, criteria) == {}
        assert [r.chunk_tokens for r in result.requests] == [(1,) * 24] * PLANNED


def test_a_role_only_first_chunk_is_no_first_token(
    serve: Callable[..., str], load: Callable[..., LoadResult], table: list[tuple[str, ...]]
) -> None:
    """The role chunk is well-formed and counted apart; TTFT is that of the first content."""
    result = load(serve(FaultyServer("role_only").app()), api="chat")
    roles = [r for r in result.requests if r.empty_chunks]
    assert len(roles) == PLANNED // 4
    assert all(len(r.chunk_ns) == 24 and r.chunk_ns[0] == min(r.chunk_ns) for r in roles)
    assert broken(result, Criteria(24, 1, Validity(), prompt_is_ids=False)) == {}
    table.append(("role_only", f"{len(roles)}/16", "(recognised)", "role chunk counted apart, TTFT from content"))


def test_a_prompt_found_in_a_cache_is_told(
    serve: Callable[..., str], load: Callable[..., LoadResult], table: list[tuple[str, ...]]
) -> None:
    """Random prompts cannot be in a cache unless somebody sent them before."""
    found = broken(load(serve(FaultyServer("cached_prompt").app())))
    assert set(found) == {"cache_hits_alike"}
    table.append(("cached_prompt", "4/16", "cache_hits_alike", found["cache_hits_alike"]))


def test_an_endpoint_that_refuses_ends_at_once(load: Callable[..., LoadResult], table: list[tuple[str, ...]]) -> None:
    """Nobody listens: one refusal a worker, the rest is given up and recorded as not sent."""
    result = load(f"http://127.0.0.1:{free_port()}")
    kinds = [r.error.kind for r in result.requests if r.error]
    assert kinds.count("refused") == 4
    assert kinds.count("not_sent") == 12
    found = broken(result)
    assert "every_request_answered" in found
    table.append(("refuses", "16/16", "every_request_answered", found["every_request_answered"]))


def test_a_server_that_dies_in_the_middle_ends_the_load(
    tmp_path: Path, load: Callable[..., LoadResult], table: list[tuple[str, ...]]
) -> None:
    """Cut streams and refusals are recorded; the load returns with every planned request."""
    script = Path(__file__).parent / "support" / "faulty_server.py"
    command = [sys.executable, str(script), "--port", "{port}", "--kind", "dies", "--every", "7"]
    server = start_server(command, log=tmp_path / "server.log", ready_limit_s=60)
    try:
        result = load(server.base_url)
    finally:
        server.stop()
    assert len(result.requests) == PLANNED
    found = broken(result)
    assert {"completed_equals_planned", "every_request_answered"} <= set(found)
    bad = sum(bool(request_faults(r, CRITERIA)) for r in result.requests)
    table.append(("dies", f"{bad}/16", "every_request_answered", found["every_request_answered"]))


@pytest.mark.parametrize("kind", SILENT)
def test_a_silent_server_costs_one_limit_and_no_more(
    kind: str, serve: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Every request stuck: each worker gives up after its first, so the load ends with the first limit."""
    start = time.monotonic()
    result = load(serve(FaultyServer(kind, every=1).app()), limit_s=1.0, counted=6)
    assert [r.error.kind for r in result.requests if r.error].count("timeout") == 4
    assert time.monotonic() - start < 6 * 1.0
