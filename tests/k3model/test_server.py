"""K3 served: the tokens of a served request are those of the engine, whoever shares the batch; every refusal is one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

from k3model.asked import text_tokens, token_text
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import K3, build
from k3model.policy import policy
from k3model.scheduler import Emitted, Job, Scheduler
from k3model.server import Served

PROMPTS = ((1, 2, 3, 4), (9, 8, 7, 6, 5), (100, 200, 300, 400), (5, 5, 5))
LENGTHS = (12, 5, 9, 17)


@pytest.fixture(scope="module")
def model() -> K3:
    """Float64: rows of a batch cannot change a choice by rounding."""
    return build(preset("nano"), dtype=torch.float64, max_batch=4, context=64)


def alone(model: K3, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """What the engine chooses for this prompt in a batch of one."""
    session = Decode(model, policy("before"), 1)
    session.clear()
    session.prefill(torch.tensor([prompt]))
    for _ in range(tokens - 1):
        session.step()
    return session.history[0, len(prompt) - 1 : len(prompt) - 1 + tokens].tolist()


def scheduled(scheduler: Scheduler, prompts: Any, lengths: Any, interval: int = 1) -> list[list[Emitted]]:
    """Submit everything at once, wait for the end of each."""
    import threading

    found: list[list[Emitted]] = [[] for _ in prompts]
    ended = [threading.Event() for _ in prompts]

    def emit(index: int) -> Callable[[Emitted], None]:
        def keep(emitted: Emitted) -> None:
            found[index].append(emitted)
            if emitted.finish_reason or emitted.error:
                ended[index].set()

        return keep

    for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        scheduler.submit(Job(prompt, length, emit(i), stream_interval=interval))
    for event in ended:
        assert event.wait(60)
    return found


def test_requests_that_share_a_batch_get_the_tokens_they_get_alone(model: K3) -> None:
    """Six requests on two to four rows, joining and leaving at different steps: each as if alone."""
    prompts, lengths = PROMPTS + PROMPTS[:2], (*LENGTHS, 3, 8)
    expected = [alone(model, p, n) for p, n in zip(prompts, lengths, strict=True)]
    for batches in ((2,), (1, 2, 4)):
        scheduler = Scheduler(model, policy("after"), batches)
        scheduler.start()
        found = scheduled(scheduler, prompts, lengths)
        scheduler.stop()
        assert [[t for e in emissions for t in e.tokens] for emissions in found] == expected
        assert scheduler.counters.finished == 6
        assert scheduler.counters.generated_tokens == sum(lengths)


def test_a_stream_interval_sends_the_first_token_alone_then_so_many_at_once(model: K3) -> None:
    """12 tokens at interval 5: 1, 5, 5 and the last one."""
    scheduler = Scheduler(model, policy("before"), (1,))
    scheduler.start()
    (emissions,) = scheduled(scheduler, PROMPTS[:1], (12,), interval=5)
    scheduler.stop()
    assert [len(e.tokens) for e in emissions] == [1, 5, 5, 1]
    assert [e.finish_reason for e in emissions] == [None, None, None, "length"]


def test_stopping_tells_jobs_that_are_not_finished(model: K3) -> None:
    """A job left behind would be a client that waits for ever."""
    scheduler = Scheduler(model, policy("before"), (1,))
    heard: list[Emitted] = []
    scheduler.submit(Job((1, 2), 8, heard.append))
    scheduler.start()
    scheduler.stop()
    assert heard[-1].finish_reason or heard[-1].error


def serve(model: K3, check: Callable[[TestClient[Any, Any], Served], Awaitable[None]], **options: Any) -> None:
    """A server on a free port of loopback for one check."""

    async def run() -> None:
        served = Served(Scheduler(model, policy("before"), (1, 2, 4)), "nano", **options)
        async with TestClient(TestServer(served.app())) as client:
            await check(client, served)

    asyncio.run(run())


async def events(client: TestClient[Any, Any], path: str, **body: Any) -> list[Any]:
    """The parsed events of a stream; the end mark stays text."""
    answer = await client.post(path, json={"stream": True, **body})
    assert answer.status == 200
    lines = [line[6:] for line in (await answer.text()).splitlines() if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_stream_is_openai_events_with_counts_and_an_end(model: K3) -> None:
    """Content, a finish reason with the last content, usage, [DONE]; token ids equal the engine's."""
    expected = alone(model, PROMPTS[0], 7)

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last, end = await events(
            client, "/v1/completions", prompt=list(PROMPTS[0]), max_tokens=7, stream_options=options
        )
        assert end == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 7
        assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 4, 7]
        assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == expected
        assert "".join(c["choices"][0]["text"] for c in chunks) == token_text(expected)
        assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "length"]

    serve(model, check, stream_interval=3)


def test_chat_and_whole_answers_are_the_same_tokens(model: K3) -> None:
    """Words name tokens, so the same prompt can be asked in three ways."""
    expected = token_text(alone(model, PROMPTS[0], 5))

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        text = token_text(PROMPTS[0])
        chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
        *chunks, _ = await events(client, "/v1/chat/completions", **chat)
        assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == expected
        whole = await (await client.post("/v1/completions", json={"prompt": text, "max_tokens": 5})).json()
        assert whole["choices"][0]["text"] == expected
        assert whole["usage"]["total_tokens"] == 9
        spoken = await (await client.post("/v1/chat/completions", json=chat)).json()
        assert spoken["choices"][0]["message"]["content"] == expected

    serve(model, check)


def test_an_end_token_ends_an_answer_unless_it_is_ignored(model: K3) -> None:
    """`ignore_eos` is what makes every output exactly OSL tokens."""
    tokens = alone(model, PROMPTS[0], 12)
    eos = next(t for i, t in enumerate(tokens) if i > 1 and t not in tokens[:i])

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        body = {"prompt": list(PROMPTS[0]), "max_tokens": 12}
        stopped = await (await client.post("/v1/completions", json=body)).json()
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert stopped["usage"]["completion_tokens"] == tokens.index(eos) + 1
        ignored = await (await client.post("/v1/completions", json=body | {"ignore_eos": True})).json()
        assert ignored["usage"]["completion_tokens"] == 12

    serve(model, check, eos=eos)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": [1, 2], "temperature": 0.7}, "greedy"),
        ({"prompt": [1, 2], "n": 2}, "only 1"),
        ({"prompt": [512]}, "0 to 511"),
        ({"prompt": [True]}, "0 to 511"),
        ({"prompt": []}, "at least one prompt token"),
        ({"prompt": [1] * 60, "max_tokens": 10}, "past the cache"),
        ({"prompt": [1], "max_tokens": "many"}, "whole number"),
        ({}, "prompt is a text"),
        ([1], "JSON object"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_words(model: K3, body: Any, words: str) -> None:
    """400 with the reason, and the server goes on."""

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        answer = await client.post("/v1/completions", json=body)
        assert answer.status == 400
        assert words in (await answer.json())["error"]["message"]
        assert (await client.get("/health")).status == 200

    serve(model, check)


def test_a_client_that_leaves_frees_its_row(model: K3) -> None:
    """Its job is cancelled, and others are served."""

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        answer = await client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 60, "stream": True})
        await answer.content.readany()
        answer.close()
        for _ in range(600):
            if not served.scheduler.running:
                break
            await asyncio.sleep(0.05)
        assert served.scheduler.running == 0
        whole = await client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 3})
        assert (await whole.json())["usage"]["completion_tokens"] == 3

    serve(model, check)


def test_metrics_and_models_say_what_is_served(model: K3) -> None:
    """The load client draws prompts from the vocabulary told here; there is no prefix cache to hit."""

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        await client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 4})
        text = await (await client.get("/metrics")).text()
        values = dict(line.split() for line in text.splitlines())
        assert values["k3model_prompt_tokens_total"] == "3"
        assert values["k3model_generation_tokens_total"] == "4"
        assert values["k3model_prefix_cache_hits_total"] == "0"
        (card,) = (await (await client.get("/v1/models")).json())["data"]
        assert (card["id"], card["vocab_size"], card["max_model_len"]) == ("nano", 512, 64)

    serve(model, check)


def test_an_engine_that_fails_says_so_inside_the_stream_and_in_health(model: K3) -> None:
    """A token outside the vocabulary kills the engine: an error event, not an answer that looks short and fast."""

    async def check(client: TestClient[Any, Any], served: Served) -> None:
        heard: asyncio.Queue[Emitted] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        outside = Job((10**6,), 4, lambda e: loop.call_soon_threadsafe(heard.put_nowait, e))
        streamed = asyncio.ensure_future(
            client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 60, "stream": True})
        )
        while not served.scheduler.counters.generated_tokens:
            await asyncio.sleep(0.01)
        served.scheduler.submit(outside)
        assert (await heard.get()).error
        answer = await streamed
        text = await answer.text()
        assert '"error"' in text
        health = await client.get("/health")
        assert health.status == 503

    serve(model, check)


def test_words_that_name_no_token_are_some_fixed_token() -> None:
    """There is no tokenizer to seeded weights; the same word is the same token."""
    assert text_tokens("t17 t511 hello hello", 512)[:2] == (17, 511)
    assert len(set(text_tokens("hello hello", 512))) == 1
    assert all(0 <= t < 512 for t in text_tokens("a b c d t99999", 512))


def test_sigterm_lets_the_streams_under_way_end(tmp_path: Path) -> None:
    """A graceful stop: the answer is whole, nothing new is taken, the exit status is 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--batches", "1", "--context", "512"]
    command = [sys.executable, "-m", "k3model.server", "nano", *options]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        url = f"http://127.0.0.1:{port}"
        await_health(url, process)
        body = json.dumps({"prompt": [1, 2], "max_tokens": 300, "stream": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as answer:
            first = answer.readline()
            process.send_signal(signal.SIGTERM)
            text = first + answer.read()
        assert text.endswith(b"data: [DONE]\n\n")
        assert text.count(b"token_ids") == 300
        assert process.wait(30) == 0
    finally:
        process.kill()


def await_health(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until it answers."""
    for _ in range(600):
        assert process.poll() is None
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("not ready within a minute")
