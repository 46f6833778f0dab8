"""What it takes to find an effect: blocks, GPU-hours, node-hours and wall time of every design, and the cheapest one.

In: a recipe, the effect, the noise, how long a run takes. Out: `Detection`. Out of scope: where noise and run length
come from when nobody measured them yet (the caller says, and the result repeats it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from k3bench.compare.planning import Design, blocks_for
from k3bench.compare.pooled import DEFAULT_FLOOR
from k3bench.errors import StatisticsError
from k3bench.records.noise import Noise
from k3bench.records.recipe import IN_PROCESS, Recipe

POWERS = (0.8, 0.9)
OBSERVATIONS = (1, 2, 3, 4)
#: Run sd where no zero-change observation has been measured: what the published bands of GB300 racks correspond to.
ASSUMED_RUN_SD = 0.015
#: A served 16-GPU engine from submission to the first request; in-process engines load once an allocation.
ASSUMED_START_S = 900.0


@dataclass(frozen=True)
class RunLength:
    """Seconds of one run over all levels, and who waits for it."""

    start_s: float
    warmup_s: float
    load_s: float
    #: True where the start is paid once an allocation, not once a run
    shares_start: bool
    nodes: int
    gpus_per_node: int

    def observation_s(self, blocks: int, blocks_per_allocation: int) -> float:
        """Seconds of one observation, its allocations one after the other."""
        runs = 4 * blocks
        starts = math.ceil(blocks / blocks_per_allocation) if self.shares_start else runs
        return starts * self.start_s + runs * (self.warmup_s + self.load_s)


@dataclass(frozen=True)
class Row:
    """One design: blocks an observation; None where no number of blocks reaches the power."""

    observations: int
    power: float
    blocks: int | None
    runs: int | None
    wall_h_side_by_side: float | None
    wall_h_one_rack: float | None
    node_h: float | None
    gpu_h: float | None


@dataclass(frozen=True)
class Detection:
    """Every design, and the cheapest at the higher power: of all, and of those that another rack replicates."""

    effect_pct: float
    run_sd_pct: float
    run_sd_source: str
    tau0_pct: float
    alpha: float
    length: RunLength
    rows: tuple[Row, ...]
    cheapest: Row | None
    cheapest_replicated: Row | None


def run_length(
    recipe: Recipe, *, tpot_ms: Mapping[int, float] | float | None = None, start_s: float | None = None
) -> RunLength:
    """From the recipe's workload. `tpot_ms` by level or for all; the simulated engine knows its own."""
    if start_s is not None and not 0 <= start_s < math.inf:
        raise StatisticsError(f"a start of {start_s:g} s", where=recipe.name, fix="give --start-s of 0 or more")
    shares = recipe.engine.name in IN_PROCESS
    tpot = _tpot_by_level(recipe, tpot_ms)
    work = recipe.workload
    # prefill is not known beforehand: the first token is taken to cost as much as a few decode steps
    batch_s = sum(work.osl_tokens * tpot[level] / 1000.0 for level in work.levels)
    start = start_s if start_s is not None else (0.0 if shares else ASSUMED_START_S)
    return RunLength(
        start_s=start,
        warmup_s=work.warmup_batches * batch_s,
        load_s=work.batches * batch_s,
        shares_start=shares,
        nodes=recipe.resources.nodes,
        gpus_per_node=recipe.resources.gpus_per_node,
    )


def _tpot_by_level(recipe: Recipe, tpot_ms: Mapping[int, float] | float | None) -> dict[int, float]:
    levels = recipe.workload.levels
    if tpot_ms is None and recipe.engine.truth is not None:
        tpot_ms = recipe.engine.truth.tpot_ms
    if tpot_ms is None:
        raise StatisticsError(
            "how long a run takes is not known: no point of this recipe has been measured",
            where=recipe.name,
            fix="give --tpot-ms, or run the recipe once",
        )
    shown = (tpot_ms,) if isinstance(tpot_ms, (int, float)) else tuple(tpot_ms.values())
    for value in shown:
        if not 0 < value < math.inf:
            raise StatisticsError(f"a token of {value:g} ms", where=recipe.name, fix="--tpot-ms 13.2, or any above 0")
    if isinstance(tpot_ms, (int, float)):
        return dict.fromkeys(levels, float(tpot_ms))
    known = {int(level): float(value) for level, value in tpot_ms.items()}
    largest = max(known.values(), default=math.nan)
    return {level: known.get(level, largest) for level in levels}


def detect(recipe: Recipe, effect_pct: float, length: RunLength, *, noise: Noise | None = None) -> Detection:
    """Blocks for 80 and 90 % power at 1 to 4 observations, for the primary level tested at 0.05 over declared looks."""
    effect = effect_pct / 100.0
    if not 0 < effect < 1:
        raise StatisticsError(f"{effect_pct} % is no effect to look for", fix="between 0 and 100, e.g. --detect 2%")
    sd, source = _run_sd(recipe, noise)
    tau0 = noise.tau0_log if noise is not None and noise.tau0_log is not None else DEFAULT_FLOOR
    alpha = 0.05 / recipe.looks
    rows = tuple(
        _row(recipe, length, k, power, blocks_for(Design.of_runs(k, sd, tau0), effect, power, alpha))
        for power in POWERS
        for k in OBSERVATIONS
    )
    reach = [row for row in rows if row.power == max(POWERS) and row.runs is not None]
    cheapest = min(reach, key=_cost, default=None)
    replicated = min((row for row in reach if row.observations >= 2), key=_cost, default=None)
    return Detection(effect_pct, 100.0 * sd, source, 100.0 * tau0, alpha, length, rows, cheapest, replicated)


def _run_sd(recipe: Recipe, noise: Noise | None) -> tuple[float, str]:
    if noise is not None:
        for level in noise.levels:
            if level.concurrency == recipe.primary_level and level.run_sd_log:
                return level.run_sd_log, f"{noise.n_observations} zero-change observations of {noise.campaign}"
    if recipe.engine.truth is not None:
        return recipe.engine.truth.run_sd_pct / 100.0, "the simulated engine's truth"
    return ASSUMED_RUN_SD, "assumed"


def _row(recipe: Recipe, length: RunLength, k: int, power: float, blocks: int | None) -> Row:
    if blocks is None:
        return Row(k, power, None, None, None, None, None, None)
    one = length.observation_s(blocks, recipe.blocks_per_allocation) / 3600.0
    node_h = k * one * length.nodes
    return Row(k, power, blocks, 4 * blocks * k, one, k * one, node_h, node_h * length.gpus_per_node)


def _cost(row: Row) -> tuple[float, int]:
    """GPU-hours, or node-hours where the recipe asks for no GPU; fewer observations first at equal cost."""
    return row.gpu_h or row.node_h or 0.0, row.observations


def describe(found: Detection) -> str:
    """The table as text, the assumptions first."""
    length = found.length
    head = [
        f"to find {found.effect_pct:g} % with run sd {found.run_sd_pct:.2f} % ({found.run_sd_source}), "
        f"floor {found.tau0_pct:.2f} %, alpha {found.alpha:g}",
        f"a run: start {length.start_s:.0f} s{' (once an allocation)' if length.shares_start else ''}, "
        f"warm-up {length.warmup_s:.1f} s, load {length.load_s:.1f} s, on {length.nodes} node(s) of "
        f"{length.gpus_per_node} GPU(s)",
        "",
        "power  observations  blocks each  runs  wall h (racks at once)  wall h (one rack)  node-h   GPU-h",
    ]
    lines = [_line(row) for row in found.rows]
    if found.cheapest is None or found.cheapest_replicated is None:
        tail = [f"no design with at most {max(OBSERVATIONS)} observations reaches 90 % on two racks"]
    else:
        designs = (("cheapest at 90 %", found.cheapest), ("... and replicated", found.cheapest_replicated))
        tail = [f"{name}: {row.observations} observation(s) of {row.blocks} blocks" for name, row in designs]
    return "\n".join([*head, *lines, "", *tail])


def _line(row: Row) -> str:
    if row.blocks is None:
        return f"{row.power:>4.0%}  {row.observations:>12}  {'none reaches it':>11}"
    times = f"{row.wall_h_side_by_side:>22.2f}  {row.wall_h_one_rack:>17.2f}  {row.node_h:>6.2f}  {row.gpu_h:>6.2f}"
    return f"{row.power:>4.0%}  {row.observations:>12}  {row.blocks:>11}  {row.runs:>4}  {times}"
