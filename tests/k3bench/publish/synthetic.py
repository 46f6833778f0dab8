"""Synthetic campaigns for the publish tests: points with a planted effect, judged by the real compare room.

Always `simulated`; no number in here was measured. Time stamps and machines are made up and fixed, so that the same
spec gives the same bytes everywhere.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from k3bench.compare.campaign import campaign
from k3bench.plan import make_plan
from k3bench.records import comparison as c
from k3bench.records.fingerprint import Fingerprint, Host, Moving, Stable
from k3bench.records.measurement import ARMS_OF, Allocation, Arm, Block, Check, Measurement, PointName, PointRef
from k3bench.records.plan import Build, Plan, PlannedBlock, PlannedObservation
from k3bench.records.recipe import Arms, ArmSpec, EngineSpec, ObservationSpec, Recipe, Truth, Workload
from k3bench.store import CampaignFolder, gzip_bytes, write_atomic, write_record


@dataclass(frozen=True)
class Spec:
    """What to plant. `shifts_pct` moves an observation's effect; `missing` and `failed` take data away."""

    name: str = "planted"
    title: str = "K3 attention decode overlap, a planted effect"
    effects_pct: dict[int, float] = field(default_factory=lambda: {1: -4.0, 2: -0.3, 4: -4.1, 8: -3.6})
    racks: tuple[str, ...] = ("d157", "d127", "d131")
    shifts_pct: dict[str, float] = field(default_factory=dict)
    blocks: int = 4
    zero_change: int = 2
    run_sd_pct: float = 0.9
    missing: tuple[str, ...] = ()
    failed: tuple[tuple[str, int, int], ...] = ()
    superseded: int = 0
    evidence: bool = True
    seed: int = 17103


def plan_of(spec: Spec) -> Plan:
    """The plan that the real planner draws for the spec."""
    return make_plan(
        Recipe(
            name=spec.name,
            title=spec.title,
            engine=EngineSpec(name="simulated", truth=Truth(tpot_ms=13.2)),
            arms=Arms(before=ArmSpec(policy="before"), after=ArmSpec(policy="after")),
            workload=Workload(isl_tokens=8192, osl_tokens=1024, levels=tuple(spec.effects_pct), stream_interval=10),
            observations=tuple(
                ObservationSpec(id=f"obs{i}", rack=rack, pair=f"p{i}") for i, rack in enumerate(spec.racks, 1)
            ),
            blocks=spec.blocks,
            blocks_per_allocation=spec.blocks,
            zero_change=spec.zero_change,
            primary_level=min(spec.effects_pct),
            seed=spec.seed,
        )
    )


@dataclass(frozen=True)
class Made:
    """A campaign's records and what compare makes of them."""

    plan: Plan
    points: tuple[Measurement, ...]
    fragments: tuple[Measurement, ...]
    blocks: tuple[Block, ...]
    allocations: tuple[Allocation, ...]
    builds: tuple[Build, ...]
    raw: dict[str, bytes]
    comparison: c.Comparison


def make(spec: Spec) -> Made:
    """All records of a planted campaign, in memory."""
    plan = plan_of(spec)
    builds = tuple(_build(pair, arm) for pair in sorted({o.pair for o in plan.observations}) for arm in ARMS)
    measured = [o for o in plan.observations if o.id not in spec.missing]
    drawn = [_draw(spec, plan, o) for o in measured]
    points = tuple(p for found in drawn for p, _ in found)
    raw = {p.id: data for found in drawn for p, data in found}
    fragments = tuple(_fragment(p) for p in points[: spec.superseded])
    raw.update({f.id: raw[p.id] for f, p in zip(fragments, points, strict=False)})
    allocations = tuple(_allocation(spec, o, points, fragments) for o in plan.observations)
    blocks = tuple(_block(spec, o, block, points) for o in measured for block in o.blocks)
    found = campaign(plan, points, blocks=blocks, allocations=allocations, builds=builds, fingerprints=(FINGERPRINT,))
    if spec.evidence:
        found = _with_evidence(found)
    return Made(plan, points, fragments, blocks, allocations, builds, raw, found)


ARMS: tuple[Arm, Arm] = ("before", "after")
FINGERPRINT = Fingerprint(
    taken="2026-05-04T08:00:00Z",
    stable=Stable(
        host=Host(
            name="made-up", system="Linux", kernel="6.1", machine="x86_64", cpu_model=None, cpu_count=1, cpus_usable=1,
            governors=None, memory_mb=None,
        ),
        device="simulated", gpus=(), driver=None, cuda_driver=None, python="3.12", packages={}, repository=None,
        environment={}, slurm={},
    ),
    moving=Moving(gpus=(), cpu_mhz_low=None, cpu_mhz_high=None, load_1min=None, memory_available_mb=None),
    absent={},
)  # fmt: skip


def build(spec: Spec) -> c.Comparison:
    """Only the comparison."""
    return make(spec).comparison


def write(spec: Spec, root: Path) -> Path:
    """Write a planted campaign as the file contract says; returns the comparison's path."""
    made, folder = make(spec), CampaignFolder(root)
    write_record(folder.plan, made.plan)
    for b in made.builds:
        write_record(folder.build(b.pair, b.arm), b)
    for p in (*made.points, *made.fragments):
        write_record(folder.point(p.observation, str(p.name)), p)
        write_atomic(folder.raw(p.observation, str(p.name)), made.raw[p.id])
    for block in made.blocks:
        write_record(folder.block(block.observation, f"b{block.block:03d}-a{block.attempt}"), block)
        write_record(folder.fingerprint(block.observation, FINGERPRINT.digest()), FINGERPRINT)
    for a in made.allocations:
        write_record(folder.allocation(a.observation, a.allocation), a)
    write_record(folder.comparison, made.comparison)
    return folder.comparison


def _build(pair: str, arm: Arm) -> Build:
    return Build(
        pair=pair, arm=arm, kind="installed", engine="simulated", preset="nano", policy=arm, environment={},
        source_digest="cd" * 32, git_commit=("1a2b3c4d" if arm == "before" else "5d6e7f80") * 5, git_dirty=False,
        versions={"k3bench": "0.1.0"},
    )  # fmt: skip


def _draw(spec: Spec, plan: Plan, observation: PlannedObservation) -> list[tuple[Measurement, bytes]]:
    rng = np.random.default_rng([spec.seed, *observation.id.encode()])
    base = math.exp(rng.normal(0, 0.01))
    found = []
    for block in observation.blocks:
        for run, arm in enumerate(ARMS_OF[block.order]):
            for level in block.levels:
                tpot = 13.2 * base * (1 + 0.09 * (level - 1)) * math.exp(rng.normal(0, spec.run_sd_pct / 100))
                if arm == "after" and not observation.zero_change:
                    tpot *= 1 + (spec.effects_pct[level] + spec.shifts_pct.get(observation.id, 0.0)) / 100
                found.append(_point(spec, plan, observation, block, run, arm, level, round(tpot, 6), rng))
    return found


def _point(
    spec: Spec,
    plan: Plan,
    observation: PlannedObservation,
    block: PlannedBlock,
    run: int,
    arm: Arm,
    level: int,
    tpot: float,
    rng: np.random.Generator,
) -> tuple[Measurement, bytes]:
    name = PointName(block=block.number, attempt=1, run=run, arm=arm, level=level)
    raw = gzip_bytes(f'{{"step_ns":[{int(1e6 * tpot)}]}}\n'.encode())
    failed = (observation.id, block.number, run) in spec.failed
    hour = 8 + [o.id for o in plan.observations].index(observation.id)
    stamp = f"2026-05-04T{hour:02d}:{block.number * 4 + run:02d}:{level % 60:02d}Z"
    point = Measurement(
        campaign=spec.name,
        recipe=plan.recipe.digest(),
        observation=observation.id,
        zero_change=observation.zero_change,
        rack=observation.rack,
        pair=observation.pair,
        build=_build(observation.pair, observation.arm(arm)).identity,
        allocation="alloc1",
        key="ef" * 32,
        job=f"27200{hour:02d}",
        name=name,
        order=block.order,
        engine="simulated",
        simulated=True,
        device="simulated",
        restart="none",
        isl_tokens=8192,
        osl_tokens=1024,
        stream_interval=10,
        started=stamp,
        ended=stamp.replace("Z", ".5Z"),
        metrics={
            "tpot_median_ms": tpot,
            "ttft_median_ms": round((180 + 20 * level) * math.exp(rng.normal(0, 0.01)), 6),
            "itl_median_ms": 10 * tpot,
            "step_p99_ms": round(tpot * 1.08 * math.exp(rng.normal(0, 0.01)), 6),
            "tps_user": 1000 / tpot,
            "output_tok_s": 1000 * level / tpot * 0.97,
        },
        batch_tpot_ms=(tpot,) * 5,
        raw=f"{name}.jsonl.gz",
        raw_digest=hashlib.sha256(raw).hexdigest(),
        fingerprint=FINGERPRINT.digest(),
        checks=(Check(name="requests_succeeded", ok=not failed, detail="2 requests failed" if failed else ""),),
    )
    return point, raw


def _fragment(point: Measurement) -> Measurement:
    """The same point of an attempt that was broken off: other values, superseded by attempt 1."""
    metrics = {name: round(value * 1.01, 6) for name, value in point.metrics.items()}
    return point.model_copy(update={"name": point.name.model_copy(update={"attempt": 0}), "metrics": metrics})


def _block(spec: Spec, observation: PlannedObservation, block: PlannedBlock, points: tuple[Measurement, ...]) -> Block:
    mine = [p for p in points if (p.observation, p.name.block) == (observation.id, block.number)]
    return Block(
        campaign=spec.name, observation=observation.id, allocation="alloc1", key="ef" * 32, job=mine[0].job,
        block=block.number, attempt=1, order=block.order, started=mine[0].started, ended=mine[-1].ended,
        fingerprint_before=FINGERPRINT.digest(), fingerprint_after=FINGERPRINT.digest(),
        points=tuple(PointRef(point=str(p.name), digest=p.digest()) for p in mine),
        checks=(Check(name="machine_unchanged", ok=True),),
    )  # fmt: skip


def _allocation(
    spec: Spec, observation: PlannedObservation, points: tuple[Measurement, ...], fragments: tuple[Measurement, ...]
) -> Allocation:
    mine = [p for p in points if p.observation == observation.id]
    return Allocation(
        campaign=spec.name,
        observation=observation.id,
        allocation="alloc1",
        key="ef" * 32,
        status="measured" if mine else "failed",
        reason="" if mine else "node failure before the first block",
        planned_points=sum(4 * len(b.levels) for b in observation.blocks),
        accepted=tuple(PointRef(point=str(p.name), digest=p.digest()) for p in mine),
        superseded=tuple(
            PointRef(point=str(p.name), digest=p.digest()) for p in fragments if p.observation == observation.id
        ),
    )


# --- evidence that other rooms would bring --------------------------------------------------------------------------


def _with_evidence(found: c.Comparison) -> c.Comparison:
    """Mechanism and equality rows, so that their parts of the report have something to show."""
    left = tuple(o for o in found.outstanding if o.kind not in ("residency", "equality"))
    return found.model_copy(update={"mechanism": _mechanism(), "equality": _equality(), "outstanding": left})


def _mechanism() -> c.Mechanism:
    rows = (
        ("before", "KDA", 69.0, 4.667, 0.0, 0.0, 0.9), ("before", "MLA", 24.0, 2.161, 0.0, 0.0, 0.34),
        ("before", "MoE", 92.0, 4.9, 1.9, 38.8, None), ("after", "KDA", 69.0, 4.358, 0.7016, 16.1, None),
        ("after", "MLA", 24.0, 1.978, 0.2829, 14.3, None), ("after", "MoE", 92.0, 4.9, 1.9, 38.8, None),
    )  # fmt: skip
    return c.Mechanism(
        families=tuple(
            c.FamilyMechanism(
                arm=a, family=f, segments_per_step=n, busy_ms_per_step=b, two_stream_residency_ms_per_step=r,
                share_of_busy_pct=s, headroom_ms_per_step=h, profiled_over_unprofiled=1.031,
            )
            for a, f, n, b, r, s, h in rows
        ),
        gain_ms_per_step=0.53, explained_ms_per_step=0.49, ceiling_ms_per_step=0.98, ideal_ms_per_step=1.24,
        achieved_share=0.4, beyond_ceiling=False, sources=("obs1",),
    )  # fmt: skip


def _equality() -> tuple[c.EqualityRow, ...]:
    row = c.EqualityRow
    return (
        row(kind="fork", status="pass", what="KDA projection staging", preset="k3-slice", batch=1, policy="after"),
        row(kind="fork", status="pass", what="MLA q and kv", preset="k3-slice", batch=1, policy="after"),
        row(kind="fork", status="not_run", what="absorb and rope", policy="after", reason="no CUDA device"),
        row(kind="greedy", status="pass", what="greedy tokens of 8 prompts", preset="nano", batch=8, policy="after"),
        row(kind="control", status="pass", what="a leg without its wait", policy="broken"),
    )


CASES: dict[str, Spec] = {
    "improvement": Spec(name="improvement"),
    "zero-change": Spec(
        name="zero-change", title="Nothing changed, both arms the same", effects_pct={1: 0.0, 2: 0.0, 4: 0.0},
        evidence=False,
    ),
    "disagreement": Spec(
        name="disagreement", title="One rack out of line", shifts_pct={"obs3": 6.5}, run_sd_pct=0.6,
    ),
    "missing": Spec(
        name="missing", title="A rack lost and a run that failed", missing=("obs2",), failed=(("obs3", 1, 2),),
        superseded=5,
    ),
    "one-rack": Spec(
        name="one-rack", title="One rack only", racks=("d157",), zero_change=0, evidence=False, run_sd_pct=0.5,
    ),
}  # fmt: skip


@functools.cache
def case(name: str) -> c.Comparison:
    """The comparison of a named case, made once."""
    return build(CASES[name])
