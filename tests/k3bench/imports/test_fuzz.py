"""300 mutated files of every format: each ends with a value or with one clear error, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from writers import aiperf_records, guidellm, sglang, streams, trtllm, vllm

from k3bench.errors import K3Error
from k3bench.imports.command import Request, run

SMALL = {"level": 2, "turns": 2}
SEEDS = {
    "vllm": json.dumps(vllm(streams(**SMALL), level=2)),
    "vllm-summary": json.dumps(vllm(streams(**SMALL), level=2, detailed=False)),
    "trtllm": json.dumps(trtllm(streams(**SMALL), level=2, detailed=True)),
    "sglang": "\n".join(json.dumps(sglang(streams(**SMALL), level=c)) for c in (1, 2)),
    "aiperf": "\n".join(json.dumps(line) for line in aiperf_records(streams(**SMALL))),
    "guidellm": json.dumps(guidellm(streams(**SMALL))),
    "guidellm-old": json.dumps(guidellm(streams(**SMALL), old=True)),
    "inference-perf": json.dumps(
        {
            "load_summary": {"count": 4, "requested_rate": 2.0},
            "successes": {
                "count": 4,
                "latency": {"request_latency": {"mean": 1.0, "median": 1.0}, "time_to_first_token": {"median": 0.05}},
                "output_len": {"mean": 64.0, "min": 64.0, "max": 64.0},
            },
            "failures": {"count": 0},
        }
    ),
    "trtllm-bench": json.dumps(
        {
            "engine": {"model": "k3"},
            "request_info": {"num_requests": 4, "avg_num_concurrent_requests": 1.98, "avg_output_length": 64.0},
            "performance": {"total_latency_ms": 900.0, "request_latency_percentiles_ms": {"p50": 690.0}},
            "streaming_metrics": {"avg_tpot_ms": 10.0, "tpot_percentiles": {"p50": 10.0, "minimum": 9.9}},
        }
    ),
    "aggregate": json.dumps({"conc": 2, "isl": 128, "osl": 64, "median_tpot": 0.01, "median_ttft": 0.05}),
    "aiperf-summary": json.dumps(
        {
            "aiperf_version": "0.13.0",
            "request_count": {"unit": "requests", "avg": 4.0},
            "request_latency": {"unit": "ms", "avg": 680.0, "p50": 680.0, "count": 4},
            "time_to_first_token": {"unit": "ms", "avg": 50.0, "p50": 50.0, "p99": 51.0},
            "inter_token_latency": {"unit": "ms", "avg": 10.0, "p50": 10.0, "p99": 10.1},
            "output_sequence_length": {"unit": "tokens", "avg": 64.0, "min": 64.0, "max": 64.0},
            "input_config": {"phases": [{"kind": "profiling", "requests": 4, "concurrency": 2}]},
        }
    ),
}
JUNK: list[Any] = [
    None, True, "", "inf", "x" * 300, 0, -1, 1, 1e308, -1e308, 1e-320, 10**30, 10**400, float("nan"), float("inf"),
    [], [[]], {}, {"a": []}, [None], [1e300] * 4, "<script>", "../../etc", 0.5,
]  # fmt: skip


def mutate(text: str, draw: random.Random) -> bytes:
    """One to three wounds: to the values, to the keys, or to the bytes."""
    for _ in range(draw.randint(1, 3)):
        kind = draw.random()
        text = _wound_value(text, draw) if kind < 0.75 else _wound_text(text, draw)
    data = text.encode()
    if draw.random() < 0.05:
        at = draw.randrange(len(data) or 1)
        data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    return data


def _wound_value(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _wound_text(text, draw)
    spots = list(_spots(value))
    if not spots:
        return _wound_text(text, draw)
    holder, key = draw.choice(spots)
    if draw.random() < 0.25:
        del holder[key]
    else:
        holder[key] = draw.choice(JUNK)
    lines[at] = json.dumps(value)
    return "\n".join(lines)


def _spots(value: Any) -> Any:
    if not isinstance(value, dict | list):
        return
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _spots(inner)


def _wound_text(text: str, draw: random.Random) -> str:
    a, b = sorted(draw.randrange(len(text) + 1) for _ in range(2))
    head, tail = text[:a], text[a:]
    wounds = (head, head + text[b:], head + "NaN" + tail, text[:b] + tail, head + "\x00" + tail)
    return draw.choice(wounds)


def outcome(path: Path, into: Path) -> dict[str, Any] | K3Error:
    """What --show prints, if the file can be shown and imported; else the refusal. NaN in the output is no JSON."""
    try:
        (text,) = run(Request(files=(path,), show=True))
        list(run(Request(files=(path,), place="r.before", into=into, level=2)))
    except K3Error as error:
        return error
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


@pytest.mark.parametrize("part", range(6))
def test_a_mutated_file_gives_a_value_or_one_clear_error(part: int, tmp_path: Path) -> None:
    """Fifty files a part; any other exception, a NaN in the output, or a refusal without a place fails."""
    shown = refused = 0
    for number in range(50 * part, 50 * part + 50):
        path = tmp_path / f"{number}.json"
        path.write_bytes(mutate(SEEDS[sorted(SEEDS)[number % len(SEEDS)]], random.Random(number)))
        found = outcome(path, tmp_path / f"into{number}")
        if isinstance(found, K3Error):
            assert found.what, number
            assert found.where, (number, found.what)
            refused += 1
        else:
            assert found["tpot_median_ms"] is None or found["tpot_median_ms"] > 0
            assert all(k in found["reasons"] for k, v in found.items() if v is None)
            shown += 1
    assert shown >= 5, "the mutations are too wild to test anything"
    assert refused >= 5, "the mutations are too tame to test anything"
