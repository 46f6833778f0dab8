"""One request out, one `Request` record back: every content chunk stamped on arrival, every end named.

Never raises for what a server does; that is what the record is for. Out of scope: how many at a time (the load client).
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from k3bench.records.request import ErrorKind, Phase, Request, RequestError, Usage
from k3bench.serving.arrival import read_stamped
from k3bench.serving.events import DONE, Choice, Chunk, EventLines, GarbageError, UsageCounts, parse_chunk
from k3bench.serving.prompts import Prompt

Api = Literal["completions", "chat"]
#: A response beyond this is not the answer to one request.
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
CONNECT_LIMIT_S = 10.0


class _TooLargeError(ValueError):
    """The answer has no end in sight."""


@dataclass(frozen=True)
class Target:
    """Where requests go and what they all have in common."""

    base_url: str
    model: str
    api: Api = "completions"
    limit_s: float = 600.0

    @property
    def url(self) -> str:
        """The streaming endpoint."""
        return f"{self.base_url}/v1/{'chat/completions' if self.api == 'chat' else 'completions'}"

    def body(self, prompt: Prompt, osl_tokens: int) -> bytes:
        """Greedy, exactly OSL tokens, streamed, with the server's own counts in every chunk where it can."""
        ask: dict[str, Any] = {
            "model": self.model,
            "max_tokens": osl_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.api == "chat":
            ask["messages"] = [{"role": "user", "content": prompt.text}]
        else:
            ask["prompt"] = list(prompt.tokens)
        return json.dumps(ask, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Ask:
    """One request of a load, made ready before the load begins."""

    worker: int
    turn: int
    phase: Phase
    prompt: Prompt
    osl_tokens: int
    body: bytes


@dataclass(slots=True)
class Recording:
    """What is known of a request while it runs. Text and token ids are kept only where somebody will compare them."""

    epoch_ns: int
    keeps_text: bool = False
    sent_ns: int = 0
    ended_ns: int = 0
    status: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_chars: list[int] = field(default_factory=list)
    chunk_total: list[int] = field(default_factory=list)
    server_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    empty_chunks: int = 0
    total: int = 0
    usage: UsageCounts | None = None
    finish_reason: str | None = None
    done: bool = False
    error: RequestError | None = None

    def fail(self, kind: ErrorKind, detail: object = "") -> None:
        """The first failure stays."""
        self.error = self.error or RequestError(kind=kind, detail=str(detail)[:300])

    def take(self, chunk: Chunk, now_ns: int) -> None:
        """One event. A chunk counts as content if it bears text or moves the server's token count on."""
        usage = chunk.usage
        if chunk.error is not None or chunk.object == "error":
            self.fail("error_event", chunk.failure)
        if usage is not None:
            self.usage = usage
        for choice in chunk.choices or ():
            text = choice.text if choice.delta is None else choice.content
            if choice.finish_reason is not None:
                self.finish_reason = choice.finish_reason
            before = self.total
            self.total = usage.completion_tokens if usage is not None else before + len(choice.token_ids or ())
            if text or self.total > before:
                self._keep(chunk, choice, text or "", now_ns)
            else:
                self.empty_chunks += 1

    def _keep(self, chunk: Chunk, choice: Choice, text: str, now_ns: int) -> None:
        self.chunk_ns.append(now_ns)
        self.chunk_chars.append(len(text))
        self.chunk_total.append(self.total)
        if chunk.sent_ns is not None:
            self.server_ns.append(chunk.sent_ns)
        if self.keeps_text:
            self.texts.append(text)
            self.token_ids.extend(choice.token_ids or ())

    def chunk_tokens(self) -> tuple[int, ...] | None:
        """Tokens a chunk, where every chunk told; None where at least one did not."""
        steps = [b - a for a, b in zip([0, *self.chunk_total], self.chunk_total, strict=False)]
        return tuple(steps) if steps and min(steps) > 0 else None


async def stream_request(session: aiohttp.ClientSession, target: Target, ask: Ask, epoch_ns: int) -> Recording:
    """Send, read to the end, record. Ends at `target.limit_s` at the latest."""
    recording = Recording(epoch_ns)
    recording.sent_ns = time.perf_counter_ns() - epoch_ns
    await read_answer(session, target, ask.body, recording)
    recording.ended_ns = time.perf_counter_ns() - epoch_ns
    return recording


async def read_answer(session: aiohttp.ClientSession, target: Target, body: bytes, recording: Recording) -> None:
    """Fill the recording from one answer. Every way in which it can go wrong has its name here."""
    # One timer around the whole request: aiohttp's own would be entered and left once a chunk.
    connect = aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_LIMIT_S, target.limit_s))
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(target.limit_s),
            session.post(target.url, data=body, headers=headers, timeout=connect, allow_redirects=False) as response,
        ):
            recording.status = response.status
            if response.status != 200:
                recording.fail("http_status", f"{response.status} {(await response.content.read(300))!r}")
                response.close()
                return
            await _read_events(response, recording)
            if recording.error is not None:
                response.close()
    except aiohttp.ClientConnectorError as error:
        recording.fail("refused", error)
    except TimeoutError:
        where = f"after {len(recording.chunk_ns)} chunks" if recording.status else "before any answer"
        recording.fail("timeout", f"no end within {target.limit_s:g} s, {where}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        recording.fail("no_answer" if recording.status is None else "closed_early", f"{type(error).__name__}: {error}")


async def _read_events(response: aiohttp.ClientResponse, recording: Recording) -> None:
    """All events that arrive together share one stamp: the client cannot know more."""
    lines, size = EventLines(), 0

    def take(data: bytes, now_ns: int) -> None:
        nonlocal size
        size += len(data)
        if size > MAX_RESPONSE_BYTES:
            raise _TooLargeError(f"more than {MAX_RESPONSE_BYTES} bytes")
        for payload in lines.feed(data):
            if payload == DONE:
                recording.done = True
            else:
                recording.take(parse_chunk(payload), now_ns)

    try:
        await read_stamped(response, take)
    except _TooLargeError as error:
        recording.fail("too_large", error)
        return
    except GarbageError as error:
        recording.fail("garbage", error)
        return
    if lines.rest:
        recording.fail("closed_early", f"the stream ends inside an event: {lines.rest[:80]!r}")


def record(ask: Ask, recording: Recording) -> Request:
    """The frozen record. Made after a load and not in it: others' stamps would wait for it."""
    usage = _usage(recording)
    return Request(
        worker=ask.worker,
        turn=ask.turn,
        phase=ask.phase,
        prompt=ask.prompt.digest,
        prompt_tokens=len(ask.prompt.tokens),
        wanted_tokens=ask.osl_tokens,
        sent_ns=recording.sent_ns,
        ended_ns=recording.ended_ns,
        status=recording.status,
        chunk_ns=tuple(ns - recording.epoch_ns for ns in recording.chunk_ns),
        chunk_tokens=recording.chunk_tokens(),
        chunk_chars=tuple(recording.chunk_chars),
        empty_chunks=recording.empty_chunks,
        usage=usage,
        finish_reason=recording.finish_reason,
        done=recording.done,
        error=recording.error,
        server_ns=tuple(ns - recording.epoch_ns for ns in recording.server_ns),
    )


def _usage(recording: Recording) -> Usage | None:
    """The last counts the server sent. Negative or absurd ones are garbage, not counts."""
    counts = recording.usage
    if counts is None:
        return None
    cached = counts.prompt_tokens_details.cached_tokens if counts.prompt_tokens_details else None
    if not all(0 <= n < 1 << 40 for n in (counts.prompt_tokens, counts.completion_tokens, cached or 0)):
        recording.fail("garbage", f"impossible usage {counts}")
        return None
    return Usage(prompt_tokens=counts.prompt_tokens, completion_tokens=counts.completion_tokens, cached_tokens=cached)


def not_sent(now_ns: int, reason: str) -> Recording:
    """A planned request that was given up before it was sent."""
    recording = Recording(0, sent_ns=now_ns, ended_ns=now_ns)
    recording.fail("not_sent", reason)
    return recording
