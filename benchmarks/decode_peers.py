"""Peers of the decode step: the same step under torch.compile, the torch twins, and fla-core's KDA kernel.

In: a recipe's engine. Out: plain data and lines. Four layers (one of them MLA) stand for the step, because compiling 93
unrolled ones takes longer than measuring them; each is captured in one graph. Out of scope: GEMVs (`kernels.py`).
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import decode_parts as parts
import torch

from k3bench.records.recipe import Recipe
from k3model.cache import Snapshot
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import build
from k3model.kernels.kda import kda_stage, kda_step
from k3model.policy import POLICIES
from k3model.ranges import no_ranges
from k3model.streams import multi_stream

LAYERS = 4
#: Calls of one small kernel in a graph, each on a layer's cache of its own.
CALLS = 32


def peers(recipe: Recipe, rounds: int, steps: int) -> dict[str, Any]:
    """Every peer at the recipe's first level, the quickest to be had first, each said when it is there."""
    level = recipe.workload.levels[0]
    ours, snapshot = _ready("kernels", Decode, recipe, level)
    found: dict[str, Any] = {"kda": _kda(ours, level)}
    print(f"\na step of {LAYERS} layers, batch {level}, against our kernels", flush=True)

    def median_ms(session: Decode, start: Snapshot) -> Callable[[], float]:
        return lambda: statistics.median(parts.step_ns(session, start, steps)) / 1e6

    for name, kind in (("twins", Decode), ("compiled", Compiled)):
        theirs = median_ms(*_ready(name, kind, recipe, level))
        delta = parts.paired(median_ms(ours, snapshot), theirs, rounds)
        found[name] = parts.plain(delta)
        print(
            f"{name:<9} {delta.after_ms:.4f} ms, kernels {delta.before_ms:.4f} ms: {delta.delta_pct:+.1f} %", flush=True
        )
    return found


def _ready(name: str, kind: type[Decode], recipe: Recipe, level: int) -> tuple[Decode, Snapshot]:
    """A captured session of few layers, filled to the recipe's context; only "kernels" keeps the recipe's kernels."""
    options = {**recipe.engine.options, "layers": LAYERS}
    if name != "kernels":
        options["kernels"] = "torch"
    wanted, started = recipe.engine.device, time.monotonic()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    context = recipe.workload.isl_tokens + recipe.workload.osl_tokens
    config = preset(recipe.engine.preset, **options)
    model = build(config, device=device, seed=recipe.seed, max_batch=level, context=context)
    session = kind(model, POLICIES["serial"], level)
    session.fill(recipe.workload.isl_tokens, seed=recipe.seed)
    snapshot = session.snapshot()
    session.capture()
    print(f"{name}: ready after {time.monotonic() - started:.1f} s", flush=True)
    return session, snapshot


class Compiled(Decode):
    """A session whose step is compiled, then captured: the graph is ours in every arm, as in mode reduce-overhead.

    Autotuning every product took more than two minutes for four layers.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._compiled = torch.compile(self._plain, dynamic=False)

    def _plain(self) -> None:
        logits = self.model.step(self.tokens, self.rows, self.forks)
        self._choose(logits)

    @torch.no_grad()
    def capture(self) -> None:
        """Compile and warm up on a stream of its own, then capture."""
        before = self.snapshot()
        if self.model.device.type != "cuda":
            self._compiled()
            return self.restore(before)
        side = torch.cuda.Stream(self.model.device)
        with multi_stream(False), torch.cuda.stream(side):
            for _ in range(3):
                self._compiled()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._compiled()
        self.restore(before)

    @torch.no_grad()
    def _eager_step(self, ranges: Any = no_ranges) -> None:
        self._compiled()


def _kda(session: Decode, level: int) -> dict[str, Any] | str:
    """Our step with conv, gates and gated norm, staged and in place, beside fla's recurrence with gates alone."""
    if session.model.device.type != "cuda" or session.model.config.kernels != "triton":
        return "not run: no GPU"
    if importlib.util.find_spec("fla") is None:
        print("fla-core is not importable: its kernel was not run")
        return "not run: fla-core is not importable"
    from fla.ops.kda import fused_recurrent_kda

    config, caches = session.model.config, session.model.caches
    h, D = config.kda_heads_local, config.kda_head_dim
    layer, slots = session.model.layers[0].self_attn, caches.slots[:level]
    x = torch.randn(level, config.hidden, device="cuda", dtype=torch.bfloat16)
    projected = layer.project_in(x, session.forks)  # type: ignore[union-attr]
    q, k, v = (torch.randn(level, 1, h, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    g, beta = torch.randn(level, 1, h, D, device="cuda"), torch.randn(level, 1, h, device="cuda")
    states = [torch.randn(level, h, D, D, device="cuda") for _ in range(CALLS)]

    def ours(call: int, **options: bool) -> Any:
        cache = replace(caches.kda[call % len(caches.kda)], **options)
        return kda_step(projected, kda_stage(cache, slots), layer.constants, cache, slots)  # type: ignore[union-attr]

    def in_place(call: int) -> Any:
        return ours(call, gathered=False, repack=False)

    def theirs(call: int) -> Any:
        return fused_recurrent_kda(
            q, k, v, g, beta, A_log=layer.A_log, dt_bias=layer.dt_bias, initial_state=states[call],  # type: ignore[union-attr]
            output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, lower_bound=config.gate_lower_bound,
        )  # fmt: skip

    told = {"staged_us": _graphed_us(ours), "in_place_us": _graphed_us(in_place), "fla_us": _graphed_us(theirs)}
    print(
        f"KDA, batch {level}: ours with conv, gates and gated norm {told['staged_us']:.2f} us staged, "
        f"{told['in_place_us']:.2f} us in place; fla's recurrence with gates {told['fla_us']:.2f} us"
    )
    return told


def _graphed_us(call: Callable[[int], Any]) -> float:
    """Microseconds a call, of many in one graph."""
    for _ in range(2):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(CALLS):
            call(number)
    times = []
    for _ in range(10):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1000 / CALLS)
    return float(sorted(times)[len(times) // 2])
