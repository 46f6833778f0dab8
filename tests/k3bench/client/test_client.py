"""The load client on servers of known manner: a closed loop, exact prompts, every chunk once."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from k3bench.errors import ServingError
from k3bench.measure.calibration import client_checks, client_level
from k3bench.measure.client import LoadResult, plan_load, turns
from k3bench.measure.reference_server import Manner, ReferenceServer
from k3bench.metrics import request_metrics
from k3bench.serving.events import EventLines, GarbageError, parse_chunk
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Target


class Counting(ReferenceServer):
    """Remembers bodies and how many requests it held at once."""

    def __init__(self, manner: Manner) -> None:
        super().__init__(manner)
        self.bodies: list[dict[str, object]] = []
        self.held = self.most_held = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.read()))
        self.held += 1
        self.most_held = max(self.most_held, self.held)
        try:
            return await super().answer(request)
        finally:
            self.held -= 1


def test_the_loop_is_closed_at_the_concurrency_asked_for(
    serve: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Never more in flight, every planned request sent, greedy and with exactly the tokens planned."""
    server = Counting(Manner(pace_ms=5.0, ttft_ms=2.0))
    load(serve(server.app()), concurrency=3, counted=4, isl_tokens=17)
    assert server.most_held == 3
    assert len(server.bodies) == turns(3, 4) * 3 == 18
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert {len(p) for p in prompts} == {17}
    assert len(set(prompts)) == 18
    assert all(b["ignore_eos"] is True and b["temperature"] == 0 and b["max_tokens"] == 24 for b in server.bodies)


def test_the_first_and_last_request_of_each_worker_only_hold_the_load() -> None:
    """The same places count in both arms, whatever the clock did; at concurrency 1 there is no ramp."""
    target = Target("http://127.0.0.1:1", "m")
    prompts = random_prompts(20, isl_tokens=4, vocab=512, seed="a")
    phases = [[ask.phase for ask in asks] for asks in plan_load(target, prompts, concurrency=4, osl_tokens=2)]
    assert phases == [["ramp", "load", "load", "load", "ramp"]] * 4
    alone = plan_load(target, prompts[:5], concurrency=1, osl_tokens=2)
    assert [ask.phase for ask in alone[0]] == ["load"] * 5


def test_prompts_repeat_with_their_seed_and_differ_without_it() -> None:
    """Both arms of a pair share a seed; pairs do not."""
    first = random_prompts(8, isl_tokens=16, vocab=512, seed="0/obs1/0/0/4/load")
    again = random_prompts(8, isl_tokens=16, vocab=512, seed="0/obs1/0/0/4/load")
    other = random_prompts(8, isl_tokens=16, vocab=512, seed="0/obs1/0/1/4/load")
    assert first == again
    assert not {p.digest for p in first} & {p.digest for p in other}
    assert all(64 <= token < 512 for p in first for token in p.tokens)


def test_prompts_that_cannot_be_distinct_are_refused() -> None:
    """Two hundred one-token prompts over sixteen ids: refused with the cure."""
    with pytest.raises(ServingError, match="do not exist"):
        random_prompts(200, isl_tokens=1, vocab=16, seed="a")


def test_chunks_of_a_stream_interval_make_itl_a_multiple_of_tpot(
    serve: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """One token, then ten a chunk: token counts say so, and ITL restates TPOT by that factor."""
    url = serve(ReferenceServer(Manner(pace_ms=5.0, ttft_ms=4.0, stream_interval=10)).app())
    result = load(url, concurrency=2, osl_tokens=41)
    assert {r.chunk_tokens for r in result.requests} == {(1, 10, 10, 10, 10)}
    values = request_metrics([r.times() for r in result.requests])
    assert 5 < values["itl_median_ms"] / values["tpot_median_ms"] < 20


def test_chunks_are_stamped_when_they_arrive_and_not_when_they_are_read(
    serve: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Chunks wait to be understood together; were they stamped then, a stream would seem to come at one instant."""
    url = serve(ReferenceServer(Manner(pace_ms=10.0, ttft_ms=4.0)).app())
    for request in load(url, concurrency=2).requests:
        assert request.chunk_tokens == (1,) * 24
        assert all(sent <= seen for sent, seen in zip(request.server_ns, request.chunk_ns, strict=True))
        span_ns = request.server_ns[-1] - request.server_ns[0]
        assert request.chunk_ns[-1] - request.chunk_ns[0] > span_ns / 2


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_EVENT = b'data: {"choices":[{"index":0,"text":" tok","finish_reason":"length"}]}\n\n'
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


@pytest.mark.parametrize("ending", [b"", b"0\r\n", b"0\r\n\r", b"5\r\nda"])
def test_an_answer_that_breaks_off_keeps_what_had_arrived(
    ending: bytes, send_raw: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Three chunks and a connection that closes, wherever in the framing: three stamps, and no end."""
    (found,) = load(send_raw([_HEAD + _CHUNK, _CHUNK, _CHUNK + ending]), concurrency=1, counted=1).requests
    assert len(found.chunk_ns) == 3
    assert found.error is not None
    assert found.error.kind == "closed_early"


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_an_answer_is_the_same_however_its_bytes_are_cut(
    size: int, send_raw: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Pieces of any size, three requests on one connection: every chunk once, and no waiting for more."""
    whole = _HEAD + 5 * _CHUNK + _END
    result = load(send_raw([whole[i : i + size] for i in range(0, len(whole), size)]), concurrency=1, counted=3)
    assert [(r.error, r.done, r.chunk_chars) for r in result.requests] == [(None, True, (4,) * 5)] * 3


def test_a_calibration_refuses_the_levels_at_which_the_client_is_the_bottleneck(
    serve: Callable[..., str], load: Callable[..., LoadResult]
) -> None:
    """Too much bias, or a run faster than half of what the client can read: the check names it."""
    url = serve(ReferenceServer(Manner(pace_ms=5.0, ttft_ms=4.0)).app())
    paced = load(url, concurrency=2)
    level = client_level(2, paced, paced)
    assert len(paced.requests[0].server_ns) == 24
    fine = level.model_copy(update={"shift_ms_median": 0.0, "full_rate_chunks_s": 1e9})
    assert all(c.ok for c in client_checks(fine, paced, max_bias_pct=0.5))
    shifted = fine.model_copy(update={"shift_ms_median": 5.0})
    assert [c.name for c in client_checks(shifted, paced, max_bias_pct=0.5) if not c.ok] == ["client_unbiased"]
    slow = fine.model_copy(update={"full_rate_chunks_s": paced.chunks_per_s})
    assert [c.name for c in client_checks(slow, paced, max_bias_pct=0.5) if not c.ok] == ["client_keeps_up"]


EVENTS = b'data: {"choices":[{"text":"a\xc3\xa9"}]}\r\n\r\n: note\nevent: x\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(EVENTS)), max_size=8))
def test_events_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    """Cut anywhere, inside a character too: the same events come out once."""
    lines = EventLines()
    edges = [0, *sorted(cuts), len(EVENTS)]
    found = [e for a, b in pairwise(edges) for e in lines.feed(EVENTS[a:b])]
    assert found == [b'{"choices":[{"text":"a\xc3\xa9"}]}', b'{"choices":[]}', b"[DONE]"]
    assert lines.rest == b""


@given(st.binary(max_size=60))
def test_any_bytes_are_a_chunk_or_garbage(data: bytes) -> None:
    """A server may send anything; the parser has no third answer."""
    try:
        parse_chunk(data)
    except GarbageError:
        return


@pytest.mark.parametrize(
    "payload",
    [b"{}", b"[]", b"null", b'{"choices":3}', b'{"choices":[{"text":7}]}', b'{"usage":{"prompt_tokens":"a"}}'],
)
def test_well_formed_json_that_is_no_chunk_is_garbage(payload: bytes) -> None:
    """JSON alone makes no token."""
    with pytest.raises(GarbageError):
        parse_chunk(payload)
