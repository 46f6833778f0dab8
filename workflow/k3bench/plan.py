"""Recipe in, plan out: who is measured where, in which order, for how long.

Pure: the same recipe gives the same plan. Out of scope: running it. No torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from k3bench.records.base import digest_of
from k3bench.records.builds import INSTALLED
from k3bench.records.measurement import Arm, Order
from k3bench.records.plan import Plan, PlannedAllocation, PlannedBlock, PlannedObservation, PlannedProfile
from k3bench.records.recipe import SERVED, ObservationSpec, Recipe

#: Engines whose outputs can be compared: bits in process, greedy tokens through a server.
VERIFIABLE = ("k3model", *SERVED)


def make_plan(recipe: Recipe) -> Plan:
    """Draw block orders and level orders by the recipe's seed and lay the observations out in submission order."""
    half = (recipe.zero_change + 1) // 2
    racks = recipe.observations
    zeros = [_zero(racks[(n - 1) % len(racks)], n) for n in range(1, recipe.zero_change + 1)]
    order = [*zeros[:half], *((o, recipe.arms.equal) for o in recipe.observations), *zeros[half:]]
    observations = tuple(_plan_observation(recipe, spec, zero) for spec, zero in order)
    return Plan(recipe=recipe, observations=observations, profiles=tuple(_profiles(recipe)))


def _zero(twin: ObservationSpec, number: int) -> tuple[ObservationSpec, bool]:
    """The zero-change observation on a planned rack; they go round the racks, so that each shows its own noise."""
    return ObservationSpec(id=f"zero{number}", rack=twin.rack, pair=twin.pair), True


def _plan_observation(recipe: Recipe, spec: ObservationSpec, zero: bool) -> PlannedObservation:
    draw = random.Random(f"{recipe.seed}/{spec.id}")
    levels = recipe.workload.levels
    orders: tuple[Order, Order] = ("ABBA", "BAAB")
    blocks = tuple(
        PlannedBlock(number=n, order=draw.choice(orders), levels=tuple(draw.sample(levels, len(levels))))
        for n in range(recipe.blocks)
    )
    step = recipe.blocks_per_allocation
    groups = [tuple(range(i, min(i + step, recipe.blocks))) for i in range(0, recipe.blocks, step)]
    allocations = tuple(PlannedAllocation(id=f"alloc{n}", blocks=g) for n, g in enumerate(groups, 1))
    return PlannedObservation(
        id=spec.id, rack=spec.rack, pair=spec.pair, zero_change=zero, blocks=blocks, allocations=allocations
    )


def _profiles(recipe: Recipe) -> Iterable[PlannedProfile]:
    if recipe.trace.tool == "none":
        return
    level = recipe.trace.level or recipe.primary_level
    arms: tuple[Arm, Arm] = ("before", "after")
    for spec in recipe.observations:
        for arm in arms:
            yield PlannedProfile(observation=spec.id, arm=arm, level=level, tool=recipe.trace.tool)


def points_planned(plan: Plan) -> int:
    """How many points the campaign has."""
    return sum(4 * len(b.levels) for o in plan.observations for b in o.blocks)


def rows(plan: Plan) -> list[dict[str, str]]:
    """The plan as table rows in submission order: one per allocation, then one per profiled run."""
    recipe = plan.recipe
    table = [
        {
            "observation": o.id,
            "rack": o.rack,
            "builds": o.pair
            + (" rebuilt" if recipe.rebuilt(o.pair) else "")
            + (" (before twice)" if o.zero_change else ""),
            "allocation": a.id,
            "blocks": " ".join(f"{b.number}:{b.order}" for b in o.blocks_of(a.id)),
            "levels": " | ".join(",".join(map(str, b.levels)) for b in o.blocks_of(a.id)),
            "points": str(sum(4 * len(b.levels) for b in o.blocks_of(a.id))),
            "limit": f"{recipe.resources.minutes} min",
        }
        for o in plan.observations
        for a in o.allocations
    ]
    table += [
        {
            "observation": p.observation,
            "rack": plan.observation(p.observation).rack,
            "builds": p.arm,
            "allocation": f"profiled by {p.tool}",
            "blocks": "-",
            "levels": str(p.level),
            "points": "0",
            "limit": "never timed",
        }
        for p in plan.profiles
    ]
    return table


def spec_digests(plan: Plan) -> dict[tuple[str, str], str]:
    """(observation, allocation) -> digest of what is planned there, in submission order.

    Snakemake reruns an allocation only when its own digest changes, whatever else changed in the recipe.
    """
    shared = plan.recipe.measured
    return {
        (o.id, a.id): digest_of([shared, o.rack, o.pair, [b.model_dump(mode="json") for b in o.blocks_of(a.id)]])
        for o in plan.observations
        for a in o.allocations
    }


def build_files(plan: Plan) -> list[Path]:
    """Files whose change makes other builds: k3model's sources where it is installed, patches, wheels.

    A branch that moves is none: what a campaign began with stays until its builds are removed.
    """
    chosen = [plan.recipe.build_of(arm) for arm in ("before", "after")]
    named = [getattr(spec, "patch", None) or getattr(spec, "path", None) for spec in chosen]
    sources = sorted(path for path in Path("k3model").rglob("*") if path.suffix in (".py", ".json"))
    installed = sources if any(spec.kind == INSTALLED for spec in chosen) else []
    return [*installed, *sorted({Path(name) for name in named if name})]


def build_spec(recipe: Recipe, pair: str) -> str:
    """What a pair's builds are made by, as one digest: Snakemake builds again when it changes, and only then."""
    names = {"engine", "arms", "builds", "build_where", "declared_change"}
    return digest_of([recipe.model_dump(mode="json", include=names), recipe.rebuilt(pair)])


def verified(plan: Plan) -> list[str]:
    """The observations whose builds are probed for sameness: a change is claimed there, and its bits can be had."""
    return [o.id for o in plan.observations if plan.recipe.engine.name in VERIFIABLE and not o.zero_change]


def verified_in_jobs(plan: Plan) -> bool:
    """Whether the probing needs an allocation of its own."""
    return plan.recipe.engine.name == "trtllm" or plan.recipe.engine.ranks > 1


def profiled(plan: Plan) -> list[str]:
    """The observations whose arms run once more under a profiler, for their residency."""
    return list(dict.fromkeys(p.observation for p in plan.profiles))


def describe(plan: Plan) -> str:
    """The plan as a table in submission order, with its totals."""
    recipe, table = plan.recipe, rows(plan)
    columns = list(table[0])
    widths = {c: max(len(c), *(len(row[c]) for row in table)) for c in columns}
    lines = ["  ".join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in table]
    header = "  ".join(c.ljust(widths[c]) for c in columns)
    return "\n".join(
        [
            f"{recipe.name}: {recipe.title}{' (simulated)' if recipe.simulated else ''}",
            f"before = {recipe.arms.before.policy}, after = {recipe.arms.after.policy}; "
            f"headline at concurrency {recipe.primary_level}, margin {recipe.margin_pct:g} %, seed {recipe.seed}",
            *_builds(recipe),
            "",
            header.rstrip(),
            "-" * len(header),
            *lines,
            "",
            *cost(plan),
        ]
    )


def _builds(recipe: Recipe) -> list[str]:
    """What the arms are built from, where anything is built."""
    lines = []
    for arm in ("before", "after") if recipe.builds else ():
        spec = recipe.build_of(arm)
        told = spec.model_dump(exclude={"kind"}, exclude_defaults=True)
        lines.append(f"{arm} from {spec.kind} {', '.join(f'{name} {value}' for name, value in told.items())}".rstrip())
    return lines


def cost(plan: Plan) -> list[str]:
    """The most that the campaign's jobs may take by their time limits: machine time, and waiting time by racks."""
    size, racks = plan.recipe.resources, [o.rack for o in plan.observations for _ in o.allocations]
    limit = f"at most {len(racks) * size.minutes} min of machine time one after the other"
    lines = [f"{len(racks)} allocations, {points_planned(plan)} points, {limit}"]
    if size.nodes * size.gpus_per_node <= 1:
        return lines
    beside = _jobs_beside(plan)
    for what, count in (("timed", len(racks)), *beside.items()):
        nodes = count * size.nodes * size.minutes / 60
        hours = f"{_hours(nodes)} node-hours, {_hours(nodes * size.gpus_per_node)} GPU-hours"
        lines.append(f"{what}: {count} jobs, at most {hours}")
    most, names = max(racks.count(rack) for rack in racks), len(set(racks))
    side = f"at most {_hours(most * size.minutes / 60)} h on {names} rack{'s at once' if names > 1 else ''}"
    one = f", {_hours(len(racks) * size.minutes / 60)} h on one" if names > 1 else ""
    return [*lines, f"wall time of the timed jobs, one at a time on a rack: {side}{one}"]


def _hours(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _jobs_beside(plan: Plan) -> dict[str, int]:
    """Jobs of the same size that are not timed: each ends long before its limit, but it is what is asked for."""
    trtllm = plan.recipe.engine.trtllm
    if trtllm is None:
        return {}
    pairs = {o.pair for o in plan.observations}
    found = {
        "greedy tokens": len(verified(plan)),
        "accuracy": 2 * len(pairs) if trtllm.accuracy else 0,
        "profiled": len(plan.profiles),
    }
    return {what: count for what, count in found.items() if count}
