"""One load as a value that can be sent from this process, or from a process of its own on another step of the job.

In: where, which prompts, how many at a time. Out: `LoadResult`. As a program: `python -m k3bench.measure.load ...`.
Out of scope: the client itself (`client.py`), judging.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.errors import MeasureError
from k3bench.measure.client import LoadResult, Told, plan_load, run_load, turns
from k3bench.measure.engine import RunContext
from k3bench.records.recipe import Recipe
from k3bench.records.request import Request
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Target
from k3bench.store import write_atomic

#: A process that sends needs this long to begin and to end.
START_S = 60.0


@dataclass(frozen=True)
class Load:
    """A closed loop of `count` prompts, drawn by `seed`, `concurrency` at a time."""

    target: Target
    vocab: int
    count: int
    isl_tokens: int
    osl_tokens: int
    concurrency: int
    seed: str

    def send(self, told: Told | None = None) -> LoadResult:
        """Send it from this process."""
        prompts = random_prompts(self.count, isl_tokens=self.isl_tokens, vocab=self.vocab, seed=self.seed)
        plan = plan_load(self.target, prompts, concurrency=self.concurrency, osl_tokens=self.osl_tokens)
        return run_load(self.target, plan, told=told)

    @property
    def limit_s(self) -> float:
        """The longest it can last: every turn up to its own limit."""
        return self.target.limit_s * -(-self.count // self.concurrency) + START_S

    def words(self, out: Path) -> tuple[str, ...]:
        """The arguments with which the program sends the same."""
        target = self.target
        return (
            *("--base-url", target.base_url, "--model", target.model, "--api", target.api),
            *("--limit-s", f"{target.limit_s:g}", "--vocab", str(self.vocab), "--count", str(self.count)),
            *("--isl", str(self.isl_tokens), "--osl", str(self.osl_tokens)),
            *("--concurrency", str(self.concurrency), "--seed", self.seed, "--out", str(out)),
        )


def load_of(recipe: Recipe, context: RunContext, target: Target, vocab: int, *, warm_up: bool) -> Load | None:
    """What a run sends at a level. Both runs of a pair send the same; another pair, level or purpose sends others."""
    work, level = recipe.workload, context.level
    what = f"warm-up/{context.run}" if warm_up else "load"
    count = level * (work.warmup_batches if warm_up else turns(level, work.batches))
    place = f"{context.observation}/{context.block}/{context.run // 2}/{level}"
    seed = f"{recipe.seed}/{place}/{what}"
    return Load(target, vocab, count, work.isl_tokens, work.osl_tokens, level, seed) if count else None


def read_result(path: Path) -> LoadResult:
    """What the program left. Raises `MeasureError` where it left nothing."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise MeasureError(f"the load client left no result: {error}", where=str(path)) from None
    requests = tuple(Request.model_validate_json(json.dumps(r), strict=True) for r in told["requests"])
    return LoadResult(requests, told["wall_s"], told["client_cpu_s"])


def _as_data(result: LoadResult) -> dict[str, Any]:
    requests = [r.model_dump(mode="json", by_alias=True) for r in result.requests]
    return {"requests": requests, "wall_s": result.wall_s, "client_cpu_s": result.client_cpu_s}


def main(argv: Sequence[str] | None = None) -> int:
    """Send a load and write what became of it."""
    parser = argparse.ArgumentParser(prog="python -m k3bench.measure.load", description=__doc__)
    for name in ("base-url", "model", "api", "seed"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("vocab", "count", "isl", "osl", "concurrency"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args(argv)
    target = Target(asked.base_url, asked.model, asked.api, asked.limit_s)
    load = Load(target, asked.vocab, asked.count, asked.isl, asked.osl, asked.concurrency, asked.seed)
    write_atomic(asked.out, json.dumps(_as_data(load.send())).encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
