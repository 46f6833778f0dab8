"""TensorRT-LLM's own client: its arguments, and its result file as a point.

In: a run of the plan. Out: words for `benchmark_serving`; `PointData` from its file, read by `k3bench import` in a
process of its own, because rooms meet in files. Out of scope: starting it (`__init__.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

from k3bench.measure.engine import PointData, RunContext
from k3bench.metrics import METRICS
from k3bench.records.measurement import Check
from k3bench.records.recipe import Recipe
from k3bench.serving.trtllm.settings import spec_of

IMPORT = (sys.executable, "-m", "k3bench", "import")
IMPORT_LIMIT_S = 120.0


def stem_of(context: RunContext) -> str:
    """What the files of a point are called while it is loaded."""
    return f"{context.observation}-b{context.block:03d}-r{context.run}-{context.arm}-c{context.level}"


def step_of(context: RunContext, what: str) -> str:
    """What its step is called."""
    return f"k3-client-b{context.block}-r{context.run}-c{context.level}-{what}"


def benchmark_words(recipe: Recipe, context: RunContext, port: int, out: Path | None) -> tuple[str, ...]:
    """Arguments of `benchmark_serving`. Without `out` they are the warm-up's; empty where the recipe has none.

    Both runs of a pair draw the same prompts by the same seed; another pair or level draws others.
    """
    work, level = recipe.workload, context.level
    count = level * (work.batches if out else work.warmup_batches)
    place = (
        f"{recipe.seed}/{context.observation}/{context.block}/{context.run // 2}/{level}/{'load' if out else 'warm'}"
    )
    kept = (
        ("--save-result", "--save-detailed", "--result-dir", str(out.parent), "--result-filename", out.name)
        if out
        else ()
    )
    words = (
        *("--model", spec_of(recipe).model, "--host", "127.0.0.1", "--port", str(port)),
        *("--dataset-name", "random", "--random-ids", "--tokenize-on-client"),
        *("--random-input-len", str(work.isl_tokens), "--random-output-len", str(work.osl_tokens)),
        *("--ignore-eos", "--trust-remote-code", "--num-prompts", str(count), "--max-concurrency", str(level)),
        *("--seed", str(zlib.crc32(place.encode())), "--metadata", f"stream_interval={work.stream_interval}", *kept),
    )
    return words if count else ()


def imported(recipe: Recipe, context: RunContext, path: Path) -> PointData:
    """The reader's answer about a result file as a point, with its flags as checks."""
    done = subprocess.run(
        [*IMPORT, str(path), "--show"], capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False
    )
    if done.returncode:
        check = Check(name="result_readable", ok=False, detail=done.stderr.strip()[-500:])
        return PointData({}, (), (), (check,))
    shown, work = json.loads(done.stdout), recipe.workload
    wanted = {
        "concurrency": context.level,
        "isl_tokens": work.isl_tokens,
        "osl_tokens": work.osl_tokens,
        "requests_planned": context.level * work.batches,
        "requests_completed": context.level * work.batches,
    }
    unlike = [f"{name} is {shown[name]}, planned {value}" for name, value in wanted.items() if shown[name] != value]
    checks = (
        Check(name="server_ready", ok=True),
        Check(name="result_readable", ok=True),
        Check(name="imported_valid", ok=bool(shown["valid"]), detail="; ".join(shown["flags"])),
        Check(name="as_planned", ok=not unlike, detail="; ".join(unlike)),
    )
    raw: dict[str, Any] = json.loads(path.read_bytes())
    raw.pop("generated_texts", None)
    valid = all(check.ok for check in checks) and shown["tpot_median_ms"]
    metrics = {name: shown[name] for name in METRICS if shown.get(name) is not None}
    return PointData(metrics if valid else {}, _tpots(raw) if valid else (), (raw,), checks)


def _tpots(raw: dict[str, Any]) -> tuple[float, ...]:
    """One value a request, (latency - TTFT) / (tokens - 1), in ms."""
    rows = zip(raw["e2els"], raw["ttfts"], raw["output_lens"], strict=True)
    return tuple(1000.0 * (e2el - ttft) / (n - 1) for e2el, ttft, n in rows if n > 1)
