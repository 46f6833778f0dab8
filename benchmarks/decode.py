"""How close a decode step of one rank is to its bytes, and what every fork and policy gains at every batch.

    python benchmarks/decode.py --out decode.json                     on a GPU, recipe h200-rank93, under 8 minutes
    python benchmarks/decode.py --sections peers --out peers.json     torch.compile and fla beside it, a run of its own
    python benchmarks/decode.py --device cpu --preset nano --quick    the same path without a GPU: its times say nothing

In: a recipe (its engine, levels and context), or a preset in its place. Out: tables on the screen, and JSON with
provenance. Out of scope: single kernels (`kernels.py`), which policy to take (`policy_table.py`), verdicts (campaigns).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import decode_parts as parts
from decode_asked import SECTIONS, compile_ahead, parse, recipe_of
from decode_peers import peers

from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.measure.engines.k3model import InProcessK3, snapshots
from k3model.capture import Decode
from k3model.footprint import READ_TB_S, bytes_per_step
from k3model.policy import FORKS, POLICIES, OverlapPolicy, policies, with_forks

ROOT = Path(__file__).parents[1]
#: The harness may cost this much of a step.
HARNESS_PCT = 0.3


@dataclass
class Bench:
    """One model with the engine's own sessions, further sessions made when first asked for, and what was found."""

    engine: InProcessK3
    request: EngineRequest
    rounds: int
    steps: int
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model, self.levels = self.engine.model, self.request.recipe.workload.levels
        self.context = self.request.recipe.workload.isl_tokens
        self.snapshots = snapshots(self.model, self.request)
        self._sessions: dict[tuple[tuple[str, ...], int], Decode] = {}

    def session(self, policy: OverlapPolicy, level: int) -> Decode:
        """The captured session of these forks."""
        key = policy.forks, level
        if key not in self._sessions:
            session = Decode(self.model, policy, level)
            session.restore(self.snapshots[level])
            session.capture()
            self._sessions[key] = session
        return self._sessions[key]

    def compared(self, before: OverlapPolicy, after: OverlapPolicy, level: int) -> parts.Delta:
        """Both policies in turn at one batch."""
        pair = self.session(before, level), self.session(after, level)
        return parts.compared(*pair, self.snapshots[level], self.rounds, self.steps)


def steps(bench: Bench) -> None:
    """Step times of both arms, against the floor of the bytes that must be read."""
    print(f"\nstep, {bench.context} tokens of context; floor at {READ_TB_S} TB/s")
    print("batch  GB      floor ms  before ms  / floor  after ms  after - before")
    rows = bench.found["steps"] = {}
    for level in bench.levels:
        moved = bytes_per_step(bench.model.config, level, bench.context)
        floor_ms = sum(moved.values()) / READ_TB_S / 1e9
        delta = bench.compared(POLICIES["before"], POLICIES["after"], level)
        rows[level] = {"bytes": moved, "floor_ms": floor_ms, **parts.plain(delta)}
        print(
            f"{level:<6} {sum(moved.values()) / 1e9:<7.2f} {floor_ms:<9.3f} {delta.before_ms:<10.3f} "
            f"{delta.before_ms / floor_ms:<8.2f} {delta.after_ms:<9.3f} {_pct(delta)}"
        )


def harness(bench: Bench) -> None:
    """The engine's batch, as a campaign calls it, beside a bare loop of replays of the same graph."""
    level = bench.levels[0]
    session, osl = bench.engine._sessions["before", level], bench.engine.osl_tokens
    context = RunContext("obs1", 0, 0, "before", level)

    def pipeline() -> float:
        return statistics.mean(bench.engine.batch(context).step_ns) / 1e6

    def bare() -> float:
        session.restore(bench.snapshots[level])
        return _bare_ms(session, osl)

    delta = parts.paired(bare, pipeline, bench.rounds)
    bench.found["harness"] = {"level": level, "steps": osl, "limit_pct": HARNESS_PCT, **parts.plain(delta)}
    print(f"\nharness, batch {level}: bare {delta.before_ms:.4f} ms, pipeline {delta.after_ms:.4f} ms: {_pct(delta)}")


def _bare_ms(session: Decode, steps_: int) -> float:
    replay: Callable[[], Any] = session._graph.replay if session._graph is not None else session.step
    if session.model.device.type != "cuda":
        started = time.perf_counter_ns()
        for _ in range(steps_):
            replay()
        return (time.perf_counter_ns() - started) / steps_ / 1e6
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(steps_):
        replay()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / steps_


def ideal(bench: Bench) -> None:
    """One profiled serial step a batch: busy time by family and kernel, and what every fork could hide."""
    if bench.model.device.type != "cuda":
        print("\nop budget and ideal gains need a GPU's trace: not run")
        return
    rows = bench.found["ideal"] = {}
    for level in bench.levels:

        def watched(recorder: Any, level: int = level) -> Decode:
            return Decode(bench.model, POLICIES["serial"], level, ranges=recorder)

        trace = parts.profiled(watched, bench.snapshots[level])
        rows[level] = {"families": parts.families(trace), "ideal_ms": parts.ideal_gains(trace)}
        if level == bench.levels[0]:
            _print_budget(bench, level, rows[level]["families"])


#: Where the footprint's bytes are read.
READ_BY = {"KDA": ("kda", "kda_state"), "MLA": ("mla", "latent"), "MoE": ("moe", "experts"), "other": ("other",)}


def _print_budget(bench: Bench, level: int, families: list[dict[str, Any]]) -> None:
    moved = bytes_per_step(bench.model.config, level, bench.context)
    print(f"\nop budget of a serial step under the profiler, batch {level}\nfamily  launches  busy ms  GB     TB/s")
    for row in families:
        gb = sum(moved[name] for name in READ_BY.get(row["family"], ())) / 1e9
        rate = gb / row["busy_ms"] if row["busy_ms"] else 0.0
        print(f"{row['family']:<7} {row['launches']:<9.0f} {row['busy_ms']:<8.3f} {gb:<6.2f} {rate:.2f}")
        for kernel in row["kernels"][:12]:
            each = 1000 * kernel["ms"] / kernel["launches"]
            print(f"          {kernel['ms']:.3f} ms = {kernel['launches']:.0f} x {each:.2f} us  {kernel['name'][:80]}")


def forks(bench: Bench) -> None:
    """Each fork alone against nothing forked."""
    print("\neach fork alone against serial\nfork               batch  gain ms  ideal ms  ratio  delta")
    rows = bench.found["forks"] = {}
    for level in bench.levels:
        known = bench.found.get("ideal", {}).get(level, {}).get("ideal_ms", {})
        for fork in FORKS:
            delta = bench.compared(POLICIES["serial"], POLICIES[fork], level)
            gain, most = delta.before_ms - delta.after_ms, known.get(fork)
            ratio = f"{gain / most:<6.2f}" if most else "-     "
            rows.setdefault(level, {})[fork] = {"ideal_ms": most, "gain_ms": gain, **parts.plain(delta)}
            shown = f"{most:<9.3f}" if most is not None else "-        "
            print(f"{fork:<18} {level:<6} {gain:<8.3f} {shown} {ratio} {_pct(delta)}", flush=True)


def best(bench: Bench) -> None:
    """Against serial: the named policies, today's table, and the forks that gain alone taken together."""
    print("\npolicies against serial\nbatch  policy          delta               forks")
    rows = bench.found["best"] = {}
    for level in bench.levels:
        alone = bench.found.get("forks", {}).get(level, {})
        gaining = [fork for fork, row in alone.items() if row["delta_pct"] + row["half_pct"] < 0]
        hurting = [fork for fork, row in alone.items() if row["delta_pct"] - row["half_pct"] > 0]
        named = [POLICIES["before"], POLICIES["after"], POLICIES["all"], *policies("best-by-batch")]
        if gaining:
            named.append(with_forks("gaining", *gaining))
        if hurting:
            named.append(with_forks("none-that-hurt", *(fork for fork in FORKS if fork not in hurting)))
        distinct = {p.forks: p for p in reversed(named)}.values()  # of equal ones the first name
        rows[level] = {"policies": {}}
        for each in distinct:
            delta = bench.compared(POLICIES["serial"], each, level)
            rows[level]["policies"][each.name] = {"forks": each.forks, **parts.plain(delta)}
            print(f"{level:<6} {each.name:<15} {_pct(delta):<19} {', '.join(each.forks)}", flush=True)
        if alone:
            rows[level]["hurting"] = hurting
            print(f"{level:<6} alone these hurt: {', '.join(hurting) or 'none'}")


def _pct(delta: parts.Delta) -> str:
    return f"{delta.delta_pct:+.2f} ± {delta.half_pct:.2f} %"


def main() -> None:
    """All sections asked for, in their order; each says when it ended."""
    args, started = parse((__doc__ or "").splitlines()[0]), time.monotonic()
    wanted = args.sections.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        raise SystemExit(f"unknown sections {', '.join(sorted(unknown))}; valid: {', '.join(SECTIONS)}")
    recipe = recipe_of(args)
    told = parts.provenance({k: str(v) for k, v in vars(args).items()} | {"options": str(recipe.engine.options)})
    print(f"{recipe.engine.preset} {recipe.engine.options} on {told['device']}, commit {told['commit'][:12]}")
    found: dict[str, Any] = {}
    compile_ahead(recipe)
    if wanted != ["peers"]:
        arms = {arm: SimpleNamespace(policy=arm) for arm in ("before", "after")}
        request = EngineRequest(recipe, SimpleNamespace(id="obs1"), arms, ROOT)  # type: ignore[arg-type]
        bench = Bench(InProcessK3(request), request, args.rounds, args.steps, found)
        print(f"built and captured after {time.monotonic() - started:.0f} s", flush=True)
        for name in (name for name in SECTIONS[:-1] if name in wanted):
            {"steps": steps, "harness": harness, "ideal": ideal, "forks": forks, "best": best}[name](bench)
            print(f"[{name} done after {time.monotonic() - started:.0f} s]", flush=True)
        bench.engine.close()
        del bench
    if "peers" in wanted:
        found["peers"] = peers(recipe, args.rounds, args.steps)
    if args.out:
        args.out.write_text(json.dumps({"provenance": told, **found}, indent=1, default=list) + "\n")
        print(f"written: {args.out}")


if __name__ == "__main__":
    main()
