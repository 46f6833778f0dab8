"""A server whose answers depend on the prompt: the same for ever, other from some token on, or never twice the same."""

from __future__ import annotations

import json
import zlib

from aiohttp import web

from k3bench.measure.reference_server import Manner, ReferenceServer, event


class AnsweringServer(ReferenceServer):
    """`changed_from`: tokens from there on differ from a server's without it. `forgetful`: every visit differs."""

    def __init__(self, changed_from: int | None = None, *, forgetful: bool = False, ids: bool = True) -> None:
        super().__init__(Manner())
        self.changed_from, self.forgetful, self.ids, self.visits = changed_from, forgetful, ids, 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.visits += 1
        response = await self.open_stream(request)
        for i in range(body["max_tokens"]):
            token = self.token(body["prompt"], i)
            choice = {"text": f" t{token}", "finish_reason": "length" if i + 1 == body["max_tokens"] else None}
            await response.write(event({"choices": [choice | ({"token_ids": [token]} if self.ids else {})]}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def token(self, prompt: list[int], place: int) -> int:
        changed = self.changed_from is not None and place >= self.changed_from
        salt = self.visits if self.forgetful and place >= 3 else int(changed)
        return zlib.crc32(f"{prompt}/{place}/{salt}".encode()) % 1000
