"""The reference server with a fault in every fourth request: the ways in which real servers end streams wrongly.

python faulty_server.py --port N --kind truncate
"""

from __future__ import annotations

import argparse
import asyncio

from aiohttp import web

from k3bench.measure.reference_server import Ask, Manner, ReferenceServer, chunk_event, event, usage_event

#: Tokens that come before the fault.
EARLY = 5
EVERY = 4


class FaultyServer(ReferenceServer):
    """`kind` names the fault; requests 4, 8, 12, ... have it, all others are answered well."""

    def __init__(self, kind: str, every: int = EVERY, manner: Manner | None = None) -> None:
        super().__init__(manner or Manner(pace_ms=5.0, ttft_ms=5.0))
        self.kind, self.every, self.seen = kind, every, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        ask = await self.read(request)
        self.seen += 1
        if self.seen % self.every:
            response = await self.open_stream(request)
            await self.stream(response, ask)
            return response
        return await getattr(self, self.kind)(request, ask)

    # --- before the stream
    async def http500(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        return web.json_response({"error": {"message": "out of memory"}}, status=500)

    async def redirects(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        """To another host, say: what would be measured is not what was asked for."""
        return web.Response(status=307, headers={"Location": str(request.url)})

    async def tcp_abort(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        request.transport.abort()
        return web.Response()

    async def answers_nothing(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    # --- inside it
    async def truncate(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        return response

    async def abort_in_stream(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        request.transport.abort()
        return response

    async def stalls(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        await asyncio.sleep(3600)
        return response

    async def early_eos(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        stop = {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "stop"}]}
        await response.write(event(stop) + usage_event(ask, EARLY) + b"data: [DONE]\n\n")
        return response

    async def error_event(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        await response.write(event({"error": {"message": "engine died", "code": 500}}) + b"data: [DONE]\n\n")
        return response

    async def role_only(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        """As OpenAI's chat does it: the role at once, content when there is some. Well-formed, and a trap for TTFT."""
        response = await self.open_stream(request)
        await response.write(event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        await self.stream(response, ask)
        return response

    async def role_then_nothing(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        role = {"index": 0, "delta": {"role": "assistant"}, "finish_reason": "length"}
        await response.write(event({"choices": [role]}) + usage_event(ask, 0) + b"data: [DONE]\n\n")
        return response

    async def giant_final(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        await asyncio.sleep((ask.osl_tokens - EARLY) * ask.pace_ms / 1e3)
        await response.write(chunk_event(ask, ask.osl_tokens, ask.osl_tokens - EARLY, last=True))
        await response.write(usage_event(ask, ask.osl_tokens) + b"data: [DONE]\n\n")
        return response

    async def one_chunk(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await response.write(chunk_event(ask, ask.osl_tokens, ask.osl_tokens, last=True))
        await response.write(usage_event(ask, ask.osl_tokens) + b"data: [DONE]\n\n")
        return response

    # --- in the counts
    async def no_usage(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        bare = Ask(ask.chat, ask.prompt_tokens, ask.osl_tokens, False, False, ask.pace_ms)
        await self.stream(response, bare)
        return response

    async def usage_claims_all(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        """Half the tokens streamed, all of them claimed: looks twice as fast."""
        response = await self.open_stream(request)
        half = ask.osl_tokens // 2
        await self.chunks(response, ask, half)
        end = {"choices": [{"index": 0, "text": "", "delta": {}, "finish_reason": "length"}]}
        await response.write(event(end) + usage_event(ask, ask.osl_tokens) + b"data: [DONE]\n\n")
        return response

    async def too_long(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        longer = Ask(
            ask.chat, ask.prompt_tokens, ask.osl_tokens + 7, ask.include_usage, ask.continuous_usage, ask.pace_ms
        )
        await self.stream(response, longer)
        return response

    async def prompt_cut(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, ask.osl_tokens)
        cut = Ask(ask.chat, ask.prompt_tokens // 2, ask.osl_tokens, True, True, ask.pace_ms)
        await response.write(usage_event(cut, ask.osl_tokens) + b"data: [DONE]\n\n")
        return response

    async def cached_prompt(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, ask.osl_tokens)
        usage = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": ask.osl_tokens}
        cached = usage | {"prompt_tokens_details": {"cached_tokens": ask.prompt_tokens - 1}}
        await response.write(event({"choices": [], "usage": cached}) + b"data: [DONE]\n\n")
        return response

    # --- in the bytes
    async def garbage(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        await response.write(b"data: {broken\n\n")
        return response

    async def garbage_then_nothing(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        """A whole event that is none, and then silence: known for what it is long before the time is up."""
        response = await self.open_stream(request)
        await response.write(event({"choices": "none"}))
        await asyncio.sleep(3600)
        return response

    async def html(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        return web.Response(text="<html>\n<h1>It works!</h1>\n</html>\n", content_type="text/html")

    async def cut_event(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        response = await self.open_stream(request)
        await self.chunks(response, ask, EARLY)
        await response.write(b'data: {"choices":[{"text":" t')
        return response

    async def dies(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        """The whole server is gone from one request on."""
        import os

        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--pace-ms", type=float, default=5.0)
    args = parser.parse_args()
    app = FaultyServer(args.kind, args.every, Manner(args.pace_ms, 5.0)).app()
    web.run_app(app, host="127.0.0.1", port=args.port, print=None, access_log=None, shutdown_timeout=0.5)


if __name__ == "__main__":
    main()
