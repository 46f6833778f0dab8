"""The product's reference server, which here also remembers when it sent what: the common ground of both clients.

In: a port. Out: streams, and `/spans`. Out of scope: the clients (`client.py`).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from aiohttp import web

from k3bench.measure.reference_server import Manner, ReferenceServer


class StampedResponse(web.StreamResponse):
    """Remembers its content writes."""

    stamps: list[int]

    async def write(self, data: Any) -> None:
        if b"finish_reason" in data:
            self.stamps.append(time.perf_counter_ns())
        await super().write(data)


class StampingServer(ReferenceServer):
    """`/spans` hands out (first, last) content stamp of every stream since it was last asked."""

    def __init__(self, manner: Manner) -> None:
        super().__init__(manner)
        self.spans: list[tuple[int, int, int]] = []

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/spans", self.hand_out)
        return app

    async def hand_out(self, request: web.Request) -> web.Response:
        spans, self.spans = self.spans, []
        return web.json_response(spans)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        ask = await self.read(request)
        response = StampedResponse(headers={"Content-Type": "text/event-stream"})
        response.stamps = []
        await response.prepare(request)
        await self.stream(response, ask)
        self.spans.append((response.stamps[0], response.stamps[-1], ask.osl_tokens))
        return response


def serve(port: int) -> None:
    """Until stopped."""
    web.run_app(StampingServer(Manner()).app(), host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
