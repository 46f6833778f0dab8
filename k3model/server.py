"""`python -m k3model.server`: K3 decode behind the OpenAI streaming API, on loopback unless told otherwise.

In: /v1/completions (token ids or text) and /v1/chat/completions. Out: greedy tokens, streamed every `stream_interval`,
with token ids and counts; /health, /metrics, /v1/models. Weights are seeded, so a text is only names of tokens: " t17".
Out of scope: sampling, tools, authentication, TLS. Rows and steps are the scheduler's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from k3model.asked import Ask, RequestRefusedError, read_ask, token_text
from k3model.config import PRESETS, K3Config, preset
from k3model.decode import build
from k3model.errors import CapacityError, ConfigError, K3ModelError
from k3model.policy import POLICIES, policy
from k3model.scheduler import Emitted, Job, Scheduler
from k3model.sources import source_digest

MAX_BODY_BYTES = 32 * 1024 * 1024
#: SIGTERM: streams under way may end within this time.
GRACE_S = 20.0
EXAMPLES = """examples:
  python -m k3model.server nano --port 8000
  python -m k3model.server nano --port 8000 --policy after --batches 1,2,4 --context 256 --stream-interval 10
"""


class Served:
    """The HTTP side: one scheduler, one model name."""

    def __init__(self, scheduler: Scheduler, name: str, *, stream_interval: int = 1, eos: int | None = None) -> None:
        self.scheduler, self.name, self.eos = scheduler, name, eos
        self.stream_interval = stream_interval
        self.sources = source_digest()
        self._draining = False

    def app(self) -> web.Application:
        """Routes, and the scheduler's life inside the server's."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._drain)
        app.on_cleanup.append(self._stop)
        return app

    async def _start(self, app: web.Application) -> None:
        self.scheduler.start()

    async def _drain(self, app: web.Application) -> None:
        self._draining = True

    async def _stop(self, app: web.Application) -> None:
        await asyncio.to_thread(self.scheduler.stop)

    async def health(self, request: web.Request) -> web.Response:
        """200 while it decodes; 503 when it cannot, with the reason."""
        if self.scheduler.failure or self._draining:
            return _refusal(503, self.scheduler.failure or "the server is stopping")
        return web.Response(text="ok")

    async def models(self, request: web.Request) -> web.Response:
        """The one model, with what a load client wants to know."""
        config = self.scheduler.model.config
        card = {"id": self.name, "object": "model", "owned_by": "k3model", "vocab_size": config.vocab}
        card["source_digest"] = self.sources
        card |= {"max_model_len": self.scheduler.model.caches.context, "device": self.scheduler.model.device.type}
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, request: web.Request) -> web.Response:
        """Counters in Prometheus' text form. There is no prefix cache, and it says so."""
        counters = self.scheduler.counters
        values = {
            "requests_running": self.scheduler.running,
            "requests_waiting": self.scheduler.waiting,
            "requests_finished_total": counters.finished,
            "requests_cancelled_total": counters.cancelled,
            "prompt_tokens_total": counters.prompt_tokens,
            "generation_tokens_total": counters.generated_tokens,
            "decode_steps_total": counters.steps,
            "prefix_cache_hits_total": 0,
        }
        return web.Response(text="".join(f"k3model_{name} {value}\n" for name, value in values.items()))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """/v1/completions"""
        return await self._answer(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """/v1/chat/completions"""
        return await self._answer(request, chat=True)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if self.scheduler.failure or self._draining:
            return _refusal(503, self.scheduler.failure or "the server is stopping")
        try:
            ask = read_ask(json.loads(await request.read()), chat=chat, vocab=self.scheduler.model.config.vocab)
            answer = Answer(self, ask)
            self.scheduler.submit(answer.job)
        except (RequestRefusedError, CapacityError) as error:
            return _refusal(400, getattr(error, "what", str(error)))
        except ValueError as error:
            return _refusal(400, f"the body is no JSON: {error}")
        try:
            return await (answer.stream(request) if ask.stream else answer.whole())
        except ConnectionError:
            return web.Response()  # nobody is there to read it
        finally:
            answer.job.cancelled = True


class Answer:
    """One request under way: tokens cross from the scheduler's thread into the event loop here."""

    def __init__(self, served: Served, ask: Ask) -> None:
        self.ask, self.name = ask, served.name
        self._queue: asyncio.Queue[Emitted] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self.job = Job(
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            emit=lambda emitted: _hand_over(loop, self._queue, emitted),
            stream_interval=served.stream_interval,
            stop_token=None if ask.ignore_eos else served.eos,
        )

    async def _emissions(self) -> AsyncIterator[Emitted]:
        while True:
            emitted = await self._queue.get()
            yield emitted
            if emitted.finish_reason or emitted.error:
                return

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Events as tokens come. A failure inside a stream is an error event: the status is sent already."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        done = 0
        async for emitted in self._emissions():
            if emitted.error:
                await response.write(_event({"error": {"message": emitted.error, "type": "server_error"}}))
                break
            done += len(emitted.tokens)
            await response.write(_event(self._chunk(emitted, done)))
        if self.ask.include_usage and not emitted.error:
            await response.write(_event({**self._head(), "choices": [], "usage": self._usage(done)}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def whole(self) -> web.Response:
        """Everything at once."""
        tokens: list[int] = []
        async for emitted in self._emissions():
            tokens += emitted.tokens
        if emitted.error:
            return _refusal(500, emitted.error)
        choice = self._choice(tuple(tokens), emitted.finish_reason, key="message")
        return web.json_response({**self._head(), "choices": [choice], "usage": self._usage(len(tokens))})

    def _head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.ask.chat else "text_completion"
        return {"id": f"k3-{id(self)}", "object": kind, "model": self.name}

    def _chunk(self, emitted: Emitted, done: int) -> dict[str, Any]:
        chunk = {**self._head(), "choices": [self._choice(emitted.tokens, emitted.finish_reason, key="delta")]}
        return {**chunk, "usage": self._usage(done)} if self.ask.continuous_usage else chunk

    def _choice(self, tokens: tuple[int, ...], reason: str | None, *, key: str) -> dict[str, Any]:
        text = token_text(tokens)
        said: dict[str, Any] = {key: {"role": "assistant", "content": text}} if self.ask.chat else {"text": text}
        return {"index": 0, **said, "token_ids": list(tokens), "finish_reason": reason}

    def _usage(self, done: int) -> dict[str, Any]:
        prompt = len(self.ask.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": done,
            "total_tokens": prompt + done,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


def _hand_over(loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Emitted], emitted: Emitted) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, emitted)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _refusal(status: int, what: str) -> web.Response:
    return web.json_response({"error": {"message": what, "code": status}}, status=status)


def parser() -> argparse.ArgumentParser:
    """All options, each with its default."""
    out = argparse.ArgumentParser(
        prog="python -m k3model.server",
        description="Serve the Kimi K3 text decoder with seeded weights behind the OpenAI API.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("preset", help=f"one of: {', '.join(PRESETS)}")
    out.add_argument("--port", type=int, required=True)
    out.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback only)")
    out.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<index> (default: cpu)")
    out.add_argument("--policy", default="before", help=f"one of: {', '.join(POLICIES)} (default: before)")
    out.add_argument("--batches", default="1,2,4", help="batch sizes to capture (default: 1,2,4)")
    out.add_argument("--context", type=int, default=1024, help="tokens a row can hold (default: 1024)")
    out.add_argument("--stream-interval", type=int, default=1, help="tokens a chunk after the first (default: 1)")
    out.add_argument("--eos", type=int, help="token that ends an answer unless ignore_eos (default: none)")
    out.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    out.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="change a preset's option")
    return out


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM. Exit status 0, or 2 with one clear error."""
    from k3model.__main__ import options

    arguments = parser().parse_args(argv)
    try:
        config = preset(arguments.preset, **options(arguments.set))
        served = _served(config, arguments)
    except K3ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"k3model: {config.name} on {served.scheduler.model.device}, port {arguments.port}", file=sys.stderr)
    web.run_app(
        served.app(), host=arguments.host, port=arguments.port, print=None, access_log=None, shutdown_timeout=GRACE_S
    )
    return 0


def _served(config: K3Config, arguments: argparse.Namespace) -> Served:
    if arguments.stream_interval < 1:
        raise ConfigError("stream_interval is at least 1", where="--stream-interval")
    try:
        batches = sorted({int(word) for word in arguments.batches.split(",")})
    except ValueError:
        raise ConfigError(f"{arguments.batches!r} is no list of sizes", where="--batches", fix="e.g. 1,2,4") from None
    chosen = policy(arguments.policy)
    model = build(
        config, device=arguments.device, seed=arguments.seed, max_batch=max(batches), context=arguments.context
    )
    scheduler = Scheduler(model, chosen, batches)
    return Served(scheduler, config.name, stream_interval=arguments.stream_interval, eos=arguments.eos)


if __name__ == "__main__":
    raise SystemExit(main())
