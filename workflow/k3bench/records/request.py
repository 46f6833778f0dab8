"""What one streamed request left behind: stamps of the client's clock, counts from the server, the end it came to.

One line of a served point's raw file. Out of scope: judging it (`k3bench.validity`) and the numbers made from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from k3bench.metrics import RequestTimes
from k3bench.records.base import Digest, Model

Count = Annotated[int, Field(ge=0, le=1 << 40)]
#: `ramp` requests hold the load up while the counted ones start and end.
Phase = Literal["load", "ramp"]
ErrorKind = Literal[
    "refused", "no_answer", "timeout", "http_status", "closed_early", "error_event", "garbage", "too_large", "not_sent"
]


class Usage(Model):
    """The server's own token counts. `cached_tokens` is None where it does not tell."""

    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count | None = None


class RequestError(Model):
    """Why a request did not end as planned."""

    kind: ErrorKind
    detail: str = ""


class Request(Model):
    """One request. Stamps in ns since the load began; `chunk_*` hold content chunks only, in order of arrival."""

    worker: Count
    turn: Count
    phase: Phase
    prompt: Digest
    prompt_tokens: Count
    wanted_tokens: Count
    sent_ns: int
    ended_ns: int
    status: int | None = None
    chunk_ns: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] | None = None
    chunk_chars: tuple[int, ...] = ()
    empty_chunks: Count = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    done: bool = False
    error: RequestError | None = None
    server_ns: tuple[int, ...] = ()

    @property
    def token_source(self) -> str:
        """Where the count of output tokens comes from."""
        if self.usage is not None:
            return "usage"
        return "none" if self.chunk_tokens is None else "chunks"

    def times(self) -> RequestTimes:
        """What the metrics need. Call on a request that the gate let through: its usage is known."""
        assert self.usage is not None, "only requests with usage have times"
        return RequestTimes(
            sent_ns=self.sent_ns,
            chunk_ns=self.chunk_ns,
            tokens=self.usage.completion_tokens,
            chunk_tokens=self.chunk_tokens,
            counted=self.phase == "load",
        )
