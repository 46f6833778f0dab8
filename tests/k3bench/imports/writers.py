"""Small writers of foreign result files, from streams whose times are known; each tool's own arithmetic, by numpy."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
DAY = dt.datetime(2026, 11, 29, 20, 0, 0)


@dataclass(frozen=True)
class Stream:
    """One request: first token after `ttft_s`, then a token every `tpot_s`, sent in chunks of `interval` tokens."""

    sent_s: float = 0.0
    ttft_s: float = 0.05
    tpot_s: float = 0.010
    tokens: int = 64
    interval: int = 1
    prompt: int = 128
    error: str = ""

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks: the first token is a chunk of its own, the last chunk may be short."""
        left, gaps = self.tokens - 1, []
        while left > 0:
            gaps.append(min(left, self.interval) * self.tpot_s)
            left -= self.interval
        return gaps

    @property
    def latency_s(self) -> float:
        """Send to last chunk."""
        return self.ttft_s + sum(self.gaps_s)


def streams(
    tpot_ms: float = 10.0, *, level: int = 8, turns: int = 8, interval: int = 1, **changes: Any
) -> list[Stream]:
    """A closed loop: `level` slots, each sending its next request when the last one ends."""
    one = replace(Stream(tpot_s=tpot_ms / 1e3, interval=interval), **changes)
    rounds = [(turn, slot) for turn in range(turns) for slot in range(level)]
    spread = np.random.default_rng([round(tpot_ms * 1e9), level]).normal(0, 1e-4, len(rounds))
    return [
        replace(one, sent_s=turn * one.latency_s * 1.001, tpot_s=one.tpot_s * (1 + s))
        for (turn, _), s in zip(rounds, spread, strict=True)
    ]


def _stats(name: str, values_s: Sequence[float]) -> Json:
    ms = 1e3 * np.array(values_s)
    return {
        f"mean_{name}_ms": float(ms.mean()),
        f"median_{name}_ms": float(np.median(ms)),
        f"std_{name}_ms": float(ms.std()),
        f"p99_{name}_ms": float(np.percentile(ms, 99)),
    }


def _measured(found: Sequence[Stream]) -> Json:
    good = [s for s in found if not s.error]
    paces = [(s.latency_s - s.ttft_s) / (s.tokens - 1) for s in good if s.tokens > 1]
    return {
        **_stats("ttft", [s.ttft_s for s in good]),
        **_stats("tpot", paces or [0.0]),
        **_stats("itl", [g for s in good for g in s.gaps_s] or [0.0]),
        **_stats("e2el", [s.latency_s for s in good]),
    }


def _lists(found: Sequence[Stream]) -> Json:
    return {
        "input_lens": [s.prompt for s in found],
        "output_lens": [0 if s.error else s.tokens for s in found],
        "ttfts": [0.0 if s.error else s.ttft_s for s in found],
        "itls": [[] if s.error else s.gaps_s for s in found],
        "errors": [s.error for s in found],
    }


def _totals(found: Sequence[Stream]) -> Json:
    good = [s for s in found if not s.error]
    duration = max(s.sent_s + s.latency_s for s in found) - min(s.sent_s for s in found)
    return {
        "duration": duration,
        "completed": len(good),
        "total_input_tokens": sum(s.prompt for s in good),
        "total_output_tokens": sum(s.tokens for s in good),
        "output_throughput": sum(s.tokens for s in good) / duration,
    }


def vllm(found: Sequence[Stream], *, level: int = 8, at_s: float = 0.0, detailed: bool = True, **extra: Any) -> Json:
    """`vllm bench serve --save-result [--save-detailed] [--metadata ...]`."""
    return {
        "date": (DAY + dt.timedelta(seconds=at_s)).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "k3",
        "tokenizer_id": "k3",
        "num_prompts": len(found),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": level,
        "failed": sum(bool(s.error) for s in found),
        **_totals(found),
        **(_lists(found) | {"start_times": [s.sent_s for s in found]} if detailed else {}),
        **_measured(found),
        **extra,
    }


def trtllm(found: Sequence[Stream], *, level: int = 8, at_s: float = 0.0, detailed: bool = False, **extra: Any) -> Json:
    """TensorRT-LLM's benchmark_serving: no failed count, a key that ends in a colon, user throughput with TTFT."""
    good = [s for s in found if not s.error]
    return {
        "date": (DAY + dt.timedelta(seconds=at_s)).strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        "model_id": "k3",
        "tokenizer_id": "k3",
        "num_prompts": len(found),
        **_totals(found),
        "request_goodput:": None,
        "user_throughput": float(np.mean([s.tokens / s.latency_s for s in good])) if good else 0.0,
        "avg_decoded_tokens_per_iter": {"mean": 0.0},
        **(_lists(found) if detailed else {}),
        **_measured(found),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": level,
        **extra,
    }


def sglang(found: Sequence[Stream], *, level: int = 8, came: int | None = None, **extra: Any) -> Json:
    """One line of sglang.bench_serving: claims the requested length; `came` is what its own recount gives."""
    totals, measured = _totals(found), _measured(found)
    renamed = {k.replace("e2el", "e2e_latency"): v for k, v in measured.items()}
    return {
        "tag": None,
        "backend": "sglang-oai",
        "dataset_name": "random-ids",
        "request_rate": float("inf"),
        "max_concurrency": level,
        "random_input_len": found[0].prompt,
        "random_output_len": found[0].tokens,
        "random_range_ratio": 1.0,
        **totals,
        "total_output_tokens_retokenized": totals["total_output_tokens"] if came is None else came,
        **renamed,
        "accept_length": None,
        **extra,
    }


def aiperf_records(found: Sequence[Stream], *, at_s: float = 0.0, warm_up: int = 2) -> list[Json]:
    """aiperf's `profile_export.jsonl`: a line a request, the warm-up in the same file."""
    phases = ["warmup"] * warm_up + ["profiling"] * len(found)
    return [_record(s, phase, at_s) for s, phase in zip([*found[:warm_up], *found], phases, strict=True)]


def _record(s: Stream, phase: str, at_s: float) -> Json:
    sent = round((DAY.timestamp() + at_s + s.sent_s) * 1e9)
    values: Json = {
        "time_to_first_token": (1e3 * s.ttft_s, "ms"),
        "inter_chunk_latency": ([1e3 * g for g in s.gaps_s], "ms"),
        "request_latency": (1e3 * s.latency_s, "ms"),
        "output_sequence_length": (s.tokens, "tokens"),
        "input_sequence_length": (s.prompt, "tokens"),
        "usage_completion_tokens": (s.tokens, "tokens"),
        "usage_prompt_tokens": (s.prompt, "tokens"),
        "osl_mismatch_diff_pct": (0.0, "%"),
    }
    return {
        "metadata": {"benchmark_phase": phase, "request_start_ns": sent, "was_cancelled": False},
        "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()},
        "error": s.error or None,
    }


def guidellm(found: Sequence[Stream], *, old: bool = False) -> Json:
    """A guidellm report, version 2 or of the 0.3 era; its own summary contains TTFT in TPOT."""
    good, bad = [s for s in found if not s.error], [s for s in found if s.error]
    summary = {"successful": {"median": float(np.median([1e3 * s.latency_s / s.tokens for s in good] or [0.0]))}}
    totals = {"successful": len(good), "errored": len(bad), "incomplete": 0, "total": len(found)}
    lists = {"successful": [(_old if old else _new)(s) for s in good], "errored": [{"error": s.error} for s in bad]}
    if old:
        return {
            "benchmarks": [
                {
                    "args": {"strategy": {"type_": "concurrent", "streams": 8}},
                    "worker": {"backend_model": "k3"},
                    "request_loader": {"data": "prompt_tokens=128,output_tokens=64"},
                    "metrics": {"time_per_output_token_ms": summary},
                    "request_totals": totals,
                    "requests": lists,
                }
            ]
        }
    return {
        "metadata": {"version": 2},
        "config": {"spec": {"data": [{"prompt_tokens": 128, "output_tokens": 64}]}},
        "benchmarks": [
            {
                "config": {"strategy": {"type_": "concurrent", "streams": 8}, "backend": {"model": "k3"}},
                "metrics": {"request_totals": totals, "time_per_output_token_ms": summary},
                "requests": lists,
            }
        ],
    }


def _new(s: Stream) -> Json:
    times = {
        "request_start": s.sent_s + 1.0,
        "first_token_iteration": s.sent_s + 1.0 + s.ttft_s,
        "last_token_iteration": s.sent_s + 1.0 + s.latency_s,
    }
    return {
        "info": {"timings": times, "error": None},
        "input_metrics": {"total_tokens": s.prompt},
        "output_metrics": {"total_tokens": s.tokens},
    }


def _old(s: Stream) -> Json:
    return {
        "start_time": s.sent_s + 1.0,
        "first_token_time": s.sent_s + 1.0 + s.ttft_s,
        "last_token_time": s.sent_s + 1.0 + s.latency_s,
        "prompt_tokens": s.prompt,
        "output_tokens": s.tokens,
    }


def write(path: Path, value: Json | list[Json]) -> Path:
    """As JSON; a list as one object a line. Infinity stays bare, as sglang writes it."""
    text = json.dumps(value) if isinstance(value, dict) else "\n".join(json.dumps(line) for line in value) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
