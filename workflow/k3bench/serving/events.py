"""Bytes of a server-sent event stream in, OpenAI stream chunks out; what is neither is garbage and says so.

Out of scope: connections and clocks (`stream.py`). Runs once a token: it decodes into fixed structs and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

#: A single event is a token or a few; more is not a stream.
MAX_EVENT_BYTES = 4 * 1024 * 1024
DONE = b"[DONE]"


class GarbageError(ValueError):
    """The stream is no OpenAI event stream at this point."""


class PromptDetails(msgspec.Struct):
    """Part of usage."""

    cached_tokens: int | None = None


class UsageCounts(msgspec.Struct):
    """Counts so far; in the last chunk, counts in total."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct):
    """A chat chunk's content. Reasoning text is output like any other."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct):
    """One choice of a chunk, completions or chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def content(self) -> str:
        """The text of this chunk, possibly empty."""
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning_content or self.delta.reasoning or ""


class Chunk(msgspec.Struct):
    """One event. `sent_ns` is the reference server's own stamp; `error` is whatever the server put there."""

    choices: list[Choice] | None = None
    usage: UsageCounts | None = None
    error: Any = None
    object: Any = None
    message: Any = None
    sent_ns: int | None = None

    @property
    def failure(self) -> str:
        """What the server says went wrong; empty if nothing did."""
        if self.error is not None:
            return str(self.error)[:300]
        return str(self.message)[:300] if self.object == "error" else ""


_decode = msgspec.json.Decoder(Chunk).decode


def parse_chunk(payload: bytes) -> Chunk:
    """One event's data. Raises `GarbageError` for what is no chunk of the OpenAI API."""
    try:
        chunk = _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise GarbageError(f"{error}: {payload[:80]!r}") from None
    if chunk.choices is None and chunk.usage is None and not chunk.failure:
        raise GarbageError(f"neither choices nor usage nor error: {payload[:80]!r}")
    return chunk


class EventLines:
    """Cuts a byte stream into the data of its events, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of every event line completed by these bytes. Raises `GarbageError` for lines of another kind."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise GarbageError(f"an event longer than {MAX_EVENT_BYTES} bytes")
        for line in lines:
            if line[:5] == b"data:":
                yield line[5:].strip()
            elif line and line.strip() and not line.startswith((b"event:", b"id:", b"retry:", b":")):
                raise GarbageError(f"no event line: {line[:80]!r}")

    @property
    def rest(self) -> bytes:
        """What was left when the stream ended: the start of a line that never came to its end."""
        return self._rest.strip()
