"""A base address in, what the server says about itself out: alive, model name, vocabulary, cache counters.

Short, bounded questions outside any load. Out of scope: streams (`stream.py`).
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from k3bench.errors import ServingError

ASK_LIMIT_S = 5.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
#: Counters of prefix-cache hits, under the names that servers give them.
_CACHE_HITS = re.compile(r"^([\w:]*(?:prefix_cache_hits|cached_tokens)\w*)(?:\{[^}]*\})? ([0-9.eE+-]+)", re.M)


@dataclass(frozen=True)
class ModelCard:
    """What `/v1/models` tells. `vocab_size` and `source_digest` are None for servers that keep it to themselves."""

    name: str
    vocab_size: int | None
    source_digest: str | None = None


def is_healthy(base_url: str) -> bool:
    """Whether `/health` answers 200."""
    try:
        _get(f"{base_url}/health")
    except (OSError, http.client.HTTPException):
        return False
    return True


def model_card(base_url: str) -> ModelCard:
    """The first model served. Raises `ServingError` where nobody answers or the answer is no model list."""
    try:
        first = json.loads(_get(f"{base_url}/v1/models"))["data"][0]
        vocab, digest = first.get("vocab_size"), first.get("source_digest")
        return ModelCard(
            str(first["id"]), vocab if isinstance(vocab, int) else None, digest if isinstance(digest, str) else None
        )
    except (OSError, http.client.HTTPException) as error:
        raise ServingError(
            f"no server answers: {error}", where=base_url, fix="start it, or correct serving.endpoint"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ServingError(
            "/v1/models is no OpenAI model list", where=base_url, fix="name the model in serving.model"
        ) from None


def version(base_url: str) -> str:
    """What `/version` answers; a remark where a server has none."""
    try:
        return _get(f"{base_url}/version").decode(errors="replace").strip()[:200]
    except (OSError, http.client.HTTPException):
        return "the server does not tell its version"


def cache_hits(base_url: str) -> dict[str, float]:
    """Cache-hit counters of `/metrics`; empty where a server has none."""
    try:
        text = _get(f"{base_url}/metrics").decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return {}
    found: dict[str, float] = {}
    for name, value in _CACHE_HITS.findall(text):
        found[name] = found.get(name, 0.0) + _number(value)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _get(url: str) -> bytes:
    """Proxies are for other hosts than the ones benchmarked."""
    opener: Any = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=ASK_LIMIT_S) as answer:
        return bytes(answer.read(MAX_ANSWER_BYTES))
