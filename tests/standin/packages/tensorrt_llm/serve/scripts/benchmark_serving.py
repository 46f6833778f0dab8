"""benchmark_serving, stood in for: its documented flags in, its result file out, filled from real requests."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from k3bench.measure.client import plan_load, run_load
from k3bench.serving.endpoint import model_card
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Target


def parser() -> argparse.ArgumentParser:
    """The flags that a serving benchmark of random token ids needs."""
    out = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "host", "dataset-name", "result-dir", "result-filename"):
        out.add_argument(f"--{name}", required=name in ("model", "host", "dataset-name"))
    for name in ("port", "random-input-len", "random-output-len", "num-prompts", "max-concurrency", "seed"):
        out.add_argument(f"--{name}", type=int, required=True)
    for name in ("random-ids", "tokenize-on-client", "ignore-eos", "trust-remote-code", "save-result", "save-detailed"):
        out.add_argument(f"--{name}", action="store_true")
    out.add_argument("--metadata", nargs="*", default=[])
    return out


def main() -> int:
    """Send, summarise, write."""
    asked = parser().parse_args()
    base_url = f"http://{asked.host}:{asked.port}"
    card = model_card(base_url)
    target = Target(base_url, card.name)
    prompts = random_prompts(
        asked.num_prompts, isl_tokens=asked.random_input_len, vocab=card.vocab_size or 256, seed=str(asked.seed)
    )
    plan = plan_load(target, prompts, concurrency=asked.max_concurrency, osl_tokens=asked.random_output_len)
    found = run_load(target, plan)
    if asked.save_result:
        path = Path(asked.result_dir) / asked.result_filename
        path.write_text(json.dumps(result(asked, found)))
    return 0


def result(asked: argparse.Namespace, found: object) -> dict[str, object]:
    """One object with the keys of the real client, in seconds and milliseconds where it has them."""
    requests = [r for r in found.requests if r.error is None]  # type: ignore[attr-defined]
    ttfts = [(r.chunk_ns[0] - r.sent_ns) / 1e9 for r in requests]
    itls = [[(b - a) / 1e9 for a, b in zip(r.chunk_ns, r.chunk_ns[1:], strict=False)] for r in requests]
    e2els = [t + sum(gaps) for t, gaps in zip(ttfts, itls, strict=True)]
    lens = [r.usage.completion_tokens for r in requests]
    tpots = [1000 * (e - t) / (n - 1) for e, t, n in zip(e2els, ttfts, lens, strict=True)]
    wall = found.wall_s  # type: ignore[attr-defined]
    base = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": "openai",
        "model_id": asked.model,
        "tokenizer_id": asked.model,
        "num_prompts": asked.num_prompts,
        **dict(pair.split("=", 1) for pair in asked.metadata),
        "duration": wall,
        "completed": len(requests),
        "total_input_tokens": asked.random_input_len * len(requests),
        "total_output_tokens": sum(lens),
        "request_throughput": len(requests) / wall,
        "request_goodput:": None,
        "output_throughput": sum(lens) / wall,
        "total_token_throughput": (asked.random_input_len * len(requests) + sum(lens)) / wall,
        "user_throughput": statistics.mean(n / e for n, e in zip(lens, e2els, strict=True)),
        "input_lens": [asked.random_input_len] * len(requests),
        "output_lens": lens,
        "ttfts": ttfts,
        "itls": itls,
        "e2els": e2els,
        "generated_texts": [""] * len(requests),
        "errors": [""] * len(requests),
    }
    gaps = [1000 * gap for row in itls for gap in row]
    for name, values in (("ttft", [1000 * t for t in ttfts]), ("tpot", tpots), ("itl", gaps)):
        base |= {f"std_{name}_ms": statistics.pstdev(values), f"mean_{name}_ms": statistics.mean(values)}
        base |= {
            f"median_{name}_ms": statistics.median(values),
            f"p99_{name}_ms": sorted(values)[int(0.99 * len(values))],
        }
    return base | {"request_rate": "inf", "burstiness": 1.0, "max_concurrency": asked.max_concurrency}


if __name__ == "__main__":
    raise SystemExit(main())
