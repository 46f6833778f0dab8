"""A request's JSON body in, what is asked for out, or a refusal in words. Names of tokens stand in for text.

Greedy, one choice, token ids or words. Out of scope: HTTP (`server.py`), whether a row can hold it (`scheduler.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class RequestRefusedError(ValueError):
    """The request asks for something this server does not do; the text says what."""


@dataclass(frozen=True)
class Ask:
    """A request's body, checked."""

    chat: bool
    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool
    ignore_eos: bool
    include_usage: bool
    continuous_usage: bool


def read_ask(body: Any, *, chat: bool, vocab: int) -> Ask:
    """Check a body. Raises `RequestRefusedError`: greedy only, one choice, ids inside the vocabulary."""
    if not isinstance(body, dict):
        raise RequestRefusedError("the body is a JSON object")
    for key, allowed in (("n", 1), ("best_of", 1), ("temperature", 0)):
        if body.get(key) not in (None, allowed):
            raise RequestRefusedError(f"{key} = {body[key]!r}: only {allowed} is served (greedy, one choice)")
    options = body.get("stream_options") or {}
    max_tokens = body.get("max_tokens") or body.get("max_completion_tokens") or 16
    if not isinstance(max_tokens, int) or not isinstance(options, dict):
        raise RequestRefusedError("max_tokens is a whole number, stream_options an object")
    return Ask(
        chat=chat,
        prompt=_chat_tokens(body.get("messages"), vocab) if chat else _prompt_tokens(body.get("prompt"), vocab),
        max_tokens=max_tokens,
        stream=bool(body.get("stream")),
        ignore_eos=bool(body.get("ignore_eos")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _prompt_tokens(prompt: Any, vocab: int) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return text_tokens(prompt, vocab)
    if not isinstance(prompt, list) or not all(type(token) is int and 0 <= token < vocab for token in prompt):
        raise RequestRefusedError(f"prompt is a text, or a list of token ids from 0 to {vocab - 1}")
    return tuple(prompt)


def _chat_tokens(messages: Any, vocab: int) -> tuple[int, ...]:
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise RequestRefusedError("messages is a list of objects with role and content")
    return text_tokens(" ".join(str(m.get("content") or "") for m in messages), vocab)


def text_tokens(text: str, vocab: int) -> tuple[int, ...]:
    """One token a word: `t17` is token 17, any other word some fixed token. There is no tokenizer to seeded weights."""

    def token(word: str) -> int:
        named = word[1:] if word[:1] == "t" else ""
        return int(named) % vocab if named.isascii() and named.isdigit() else zlib.crc32(word.encode()) % vocab

    return tuple(token(word) for word in text.split())


def token_text(tokens: Sequence[int]) -> str:
    """The names of tokens."""
    return "".join(f" t{token}" for token in tokens)
