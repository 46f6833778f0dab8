"""A loopback server with a known pace: OpenAI streams out, each chunk bearing the server's own send stamp (`sent_ns`).

The load client is calibrated against it, on the host and before the campaign it measures. Nothing is decoded.
Any base path `/pace/<ms>` sets the time per token; 0 sends as fast as the two processes can.
Out of scope: faults (the tests' servers), models.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

#: Without a pace, how many chunks a stream sends at once before the others have their turn.
TURN_TOKENS = 16


@dataclass(frozen=True)
class Ask:
    """What a request wants, as far as a server without a model can give it."""

    chat: bool
    prompt_tokens: int
    osl_tokens: int
    include_usage: bool
    continuous_usage: bool
    pace_ms: float


@dataclass(frozen=True)
class Manner:
    """How the server streams."""

    pace_ms: float = 10.0
    ttft_ms: float = 20.0
    stream_interval: int = 1


class ReferenceServer:
    """One answer per request: `ttft_ms`, then a token every pace. Subclasses misbehave for tests."""

    def __init__(self, manner: Manner) -> None:
        self.manner = manner

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        for base in ("", "/pace/{pace_ms}"):
            app.router.add_get(f"{base}/health", self.health)
            app.router.add_get(f"{base}/v1/models", self.models)
            app.router.add_post(f"{base}/v1/completions", self.answer)
            app.router.add_post(f"{base}/v1/chat/completions", self.answer)
        return app

    async def health(self, request: web.Request) -> web.Response:
        """Alive."""
        return web.Response(text="ok")

    async def models(self, request: web.Request) -> web.Response:
        """One model."""
        return web.json_response({"object": "list", "data": [{"id": "reference", "object": "model"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Stream one answer."""
        ask = await self.read(request)
        response = await self.open_stream(request)
        await self.stream(response, ask)
        return response

    async def read(self, request: web.Request) -> Ask:
        """The request's body, trusted no further than this needs."""
        body: dict[str, Any] = json.loads(await request.read())
        options = body.get("stream_options") or {}
        return Ask(
            chat="messages" in body,
            prompt_tokens=_prompt_tokens(body),
            osl_tokens=int(body.get("max_tokens") or body.get("max_completion_tokens") or 16),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
            pace_ms=float(request.match_info.get("pace_ms", self.manner.pace_ms)),
        )

    async def open_stream(self, request: web.Request) -> web.StreamResponse:
        """Headers of an event stream."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        return response

    async def stream(self, response: web.StreamResponse, ask: Ask) -> None:
        """All chunks at their times, usage, the end mark."""
        await self.chunks(response, ask, ask.osl_tokens)
        if ask.include_usage:
            await response.write(usage_event(ask, ask.osl_tokens))
        await response.write(b"data: [DONE]\n\n")

    async def chunks(self, response: web.StreamResponse, ask: Ask, tokens: int) -> None:
        """`tokens` tokens: the first alone, then `stream_interval` a chunk, on an absolute schedule without drift."""
        start, interval = time.perf_counter(), self.manner.stream_interval
        counts = [*range(1, tokens, interval), tokens] if tokens else []
        if not ask.pace_ms:
            await _at_full_rate(response, ask, counts)
            return
        for before, done in zip([0, *counts], counts, strict=False):
            due = start + (self.manner.ttft_ms + (done - 1) * ask.pace_ms) / 1e3
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            await response.write(chunk_event(ask, done, done - before, last=done == ask.osl_tokens))


async def _at_full_rate(response: web.StreamResponse, ask: Ask, counts: list[int]) -> None:
    """Several events a write, as a busy server does; then the other streams have their turn."""
    steps = list(zip([0, *counts], counts, strict=False))
    for i in range(0, len(steps), TURN_TOKENS):
        turn = steps[i : i + TURN_TOKENS]
        await response.write(b"".join(chunk_event(ask, b, b - a, last=b == ask.osl_tokens) for a, b in turn))
        await asyncio.sleep(0)


#: Object name, and what stands before and after the text.
_CHAT = (b"chat.completion.chunk", b'"delta":{"content":"', b'"}')
_COMPLETION = (b"text_completion", b'"text":"', b'"')


def chunk_event(ask: Ask, done: int, tokens: int, *, last: bool) -> bytes:
    """One content chunk after which `done` tokens are out; stamped as it is made, directly before it is written."""
    reason = b'"length"' if last else b"null"
    kind, head, tail = _CHAT if ask.chat else _COMPLETION
    usage = b""
    if ask.continuous_usage:
        usage = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d}' % (ask.prompt_tokens, done)
    shape = b'data: {"id":"r","object":"%b","choices":[{"index":0,%b%b%b,"finish_reason":%b}]%b,"sent_ns":%d}\n\n'
    return shape % (kind, head, b" tok" * tokens, tail, reason, usage, time.perf_counter_ns())


def usage_event(ask: Ask, completion_tokens: int) -> bytes:
    """The final counts."""
    total = ask.prompt_tokens + completion_tokens
    usage = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
    kind = (_CHAT if ask.chat else _COMPLETION)[0].decode()
    return event({"id": "r", "object": kind, "choices": [], "usage": usage})


def event(data: Any) -> bytes:
    """Any value as one event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _prompt_tokens(body: dict[str, Any]) -> int:
    """Ids as given; of text, the words."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    texts = [prompt] if isinstance(prompt, str) else [str(m.get("content", "")) for m in body.get("messages", [])]
    return sum(len(text.split()) for text in texts)


def main() -> None:
    """`python -m k3bench.measure.reference_server --port N [--pace-ms 10 --ttft-ms 20 --stream-interval 1]`"""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--ttft-ms", type=float, default=20.0)
    parser.add_argument("--stream-interval", type=int, default=1)
    args = parser.parse_args()
    manner = Manner(args.pace_ms, args.ttft_ms, args.stream_interval)
    web.run_app(ReferenceServer(manner).app(), host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
