"""The body of a streamed answer in, its pieces with the stamps of their arrival out, at no task switch a piece.

aiohttp wakes the reading task for every piece, which costs more than reading it. While a body comes, a protocol of our
own stands before aiohttp's: it stamps, keeps a few pieces, and then gives them to aiohttp's parser one by one.
Out of scope: what the bytes mean (`events.py`), requests and connections (aiohttp).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import aiohttp

Take = Callable[[bytes, int], None]
#: Pieces that may wait to be read. More would save little and hold up the stamps of other streams while they are read.
WAITING_PIECES = 32
#: Nor does any piece wait longer than this, so that what is wrong with it is soon known.
WAITING_S = 0.5
#: A larger piece is read at once: what waits stays small.
WAITING_BYTES = 4096
#: Only a piece that ends an event and an HTTP chunk at once may wait. The end of a body never looks like this.
MAY_WAIT = (b"\n\n\r\n", b"\r\n\r\n\r\n")

#: Streams that begin together would otherwise read what they kept together.
_turns = itertools.count()


async def read_stamped(response: aiohttp.ClientResponse, take: Take) -> None:
    """Call `take(bytes, arrival in ns)` for every piece of the body, in order, until the body ends.

    Raises what aiohttp does for a body that breaks off, or what `take` does; nothing is read after that.
    """
    content, connection = response.content, response.connection
    if early := content.read_nowait():
        take(early, time.perf_counter_ns())
    if content.is_eof():
        return
    if connection is None or connection.transport is None or connection.protocol is None:
        raise aiohttp.ClientPayloadError("the connection was closed inside the answer")
    arrivals = _Arrivals(connection.transport, connection.protocol, content, take)
    try:
        await arrivals.ended
    finally:
        arrivals.detach()


class _Arrivals(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol until the body ends."""

    def __init__(
        self, transport: asyncio.Transport, behind: asyncio.Protocol, content: aiohttp.StreamReader, take: Take
    ) -> None:
        self._transport, self._behind, self._content, self._take = transport, behind, content, take
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, bytes]] = []
        self._allowed = 1 + next(_turns) % WAITING_PIECES
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._attached = True
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        """Stamp first. Runs once a piece: what can be put off is."""
        waiting = self._waiting
        waiting.append((time.perf_counter_ns(), data))
        if len(waiting) >= self._allowed or len(data) > WAITING_BYTES or not data.endswith(MAY_WAIT):
            self._loop.call_soon(self._read)  # after what arrived on other connections at the same time is stamped
        elif self._timer is None:
            self._timer = self._loop.call_later(WAITING_S * self._allowed / WAITING_PIECES, self._read)

    def _read(self) -> None:
        """Everything that waits, through aiohttp's parser and out again with its stamp."""
        waiting, self._waiting, self._allowed = self._waiting, [], WAITING_PIECES
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            for now_ns, data in waiting:
                self._behind.data_received(data)
                if body := self._content.read_nowait():
                    self._take(body, now_ns)
        except Exception as error:
            self._end(error)
        if self._content.is_eof():
            self._end()

    def _end(self, error: Exception | None = None) -> None:
        """Once, and before anything else can happen to the connection, which aiohttp may have given away by now."""
        if self._attached:
            self._attached = False
            self._transport.set_protocol(self._behind)
        if not self.ended.done():
            self.ended.set_result(None) if error is None else self.ended.set_exception(error)

    def detach(self) -> None:
        """The reader is gone, its time is up say: what arrived is read all the same."""
        if self._waiting:
            self._read()
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        """What had arrived counts; then aiohttp says whether this was the end of the body or a cut."""
        self._read()
        self._behind.connection_lost(error)
        if self._content.is_eof():
            self._end()
        else:
            cut = self._content.exception() or error or aiohttp.ClientPayloadError("connection lost")
            self._end(cut if isinstance(cut, Exception) else aiohttp.ClientPayloadError(str(cut)))

    def eof_received(self) -> bool | None:
        """aiohttp's own answer."""
        return self._behind.eof_received()

    def pause_writing(self) -> None:
        """aiohttp's own answer."""
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        """aiohttp's own answer."""
        self._behind.resume_writing()
