"""One allocation: walk the plan's blocks, measure each whole, put every point on disk before the next begins.

In: a campaign folder with plan and builds. Out: points, raw values, fingerprints, a closing record per block.
Needs torch (for k3model), numpy, pydantic and PyYAML only. Out of scope: submitting and judging.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3bench.errors import MeasureError
from k3bench.fingerprint import capture, difference
from k3bench.measure.engine import Engine, EngineRequest, PointData, RankedEngine, RunContext, ServedEngine, open_engine
from k3bench.metrics import point_metrics
from k3bench.records.base import digest_of
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import ARMS, Allocation, Arm, Block, Check, Measurement, PointName, PointRef
from k3bench.records.plan import VERSIONED, Build, Plan, PlannedBlock, PlannedObservation
from k3bench.records.recipe import IN_PROCESS, Workload
from k3bench.runnable import adopt
from k3bench.store import CampaignFolder, gzip_bytes, read_build, read_record, write_atomic, write_once, write_record
from k3bench.submit import raise_if_over
from k3bench.validity import check_batches

Say = Callable[[str], None]


@dataclass(frozen=True)
class AllocationSpec:
    """Everything that decides what an allocation measures; its digest is the key under which it is done once."""

    folder: CampaignFolder
    plan: Plan
    observation: PlannedObservation
    allocation: str
    builds: dict[Arm, Build]

    @property
    def blocks(self) -> tuple[PlannedBlock, ...]:
        """The blocks of this allocation."""
        return self.observation.blocks_of(self.allocation)

    @property
    def key(self) -> str:
        """Digest of what is measured: changing a title or a margin measures nothing again."""
        return digest_of(
            {
                "recipe": {"name": self.plan.recipe.name, **self.plan.recipe.measured},
                "observation": self.observation.model_dump(mode="json", exclude={"blocks", "allocations"}),
                "blocks": [b.model_dump(mode="json") for b in self.blocks],
                "builds": {arm: build.identity for arm, build in self.builds.items()},
            }
        )


def load_spec(root: Path, observation: str, allocation: str) -> AllocationSpec:
    """Read plan and builds. Raises `MeasureError` for names that are not planned."""
    folder = CampaignFolder(root)
    return spec_of(folder, read_record(folder.plan, Plan), observation, allocation)


def spec_of(folder: CampaignFolder, plan: Plan, observation: str, allocation: str) -> AllocationSpec:
    """The same for a plan that was read before. Raises `BuildError` when its builds could not be made."""
    try:
        planned = plan.observation(observation)
        planned.blocks_of(allocation)
    except KeyError as error:
        raise MeasureError(
            f"{error} is not in the plan",
            where=str(folder.plan),
            fix="choose from: " + ", ".join(f"{o.id}/{a.id}" for o in plan.observations for a in o.allocations),
        ) from None
    builds = {arm: read_build(folder.build(planned.pair, planned.arm(arm))) for arm in ARMS}
    return AllocationSpec(folder, plan, planned, allocation, builds)


def run_allocation(*, root: str, observation: str, allocation: str, attempt: int) -> dict[str, Any]:
    """Measure every block of the allocation that is not whole yet. Returns counts; the files are the result.

    `attempt` counts submissions of the allocation; blocks count their own attempts.
    """
    spec, job, say = load_spec(Path(root), observation, allocation), _job_name(attempt), _progress
    missing = [b for b in spec.blocks if accepted_block(spec, b) is None]
    if missing:
        if spec.plan.recipe.engine.name in IN_PROCESS:
            adopt(spec.builds["before"], spec.folder.root)
        engine = open_engine(EngineRequest(spec.plan.recipe, spec.observation, spec.builds, spec.folder.root))
        try:
            for block in missing:
                measure_block(spec, engine, block, job=job, say=say)
        finally:
            engine.close()
    return {"blocks": len(spec.blocks), "measured_now": len(missing)}


def measure_block(spec: AllocationSpec, engine: Engine, block: PlannedBlock, *, job: str, say: Say = print) -> None:
    """Four runs at every level, then the closing record. A kill anywhere leaves points, and no closing record."""
    attempt = 1 + max((p.name.attempt for p in _points_of(spec, block)), default=0)
    before, started = _fingerprint(spec, engine), _now()
    refs = []
    for name in block.points(attempt):
        raise_if_over()
        say(f"{spec.observation.id} block {block.number} {block.order} run {name.run} {name.arm} c={name.level}")
        refs.append(_measure_point(spec, engine, block, name, fingerprint=before.digest(), job=job))
    after = _fingerprint(spec, engine)
    closing = Block(
        campaign=spec.plan.recipe.name,
        observation=spec.observation.id,
        allocation=spec.allocation,
        key=spec.key,
        job=job,
        block=block.number,
        attempt=attempt,
        order=block.order,
        started=started,
        ended=_now(),
        fingerprint_before=before.digest(),
        fingerprint_after=after.digest(),
        points=tuple(refs),
        checks=_machine_checks(spec, before, after),
    )
    write_once(spec.folder.block(spec.observation.id, _block_name(block.number, attempt)), closing)


def _measure_point(
    spec: AllocationSpec, engine: Engine, block: PlannedBlock, name: PointName, *, fingerprint: str, job: str
) -> PointRef:
    recipe, workload = spec.plan.recipe, spec.plan.recipe.workload
    context = RunContext(spec.observation.id, block.number, name.run, name.arm, name.level)
    started = _now()
    engine.start(context)
    data = engine.point(context) if isinstance(engine, ServedEngine) else _decode_batches(engine, context, workload)
    raw = _raw_bytes(data)
    write_atomic(spec.folder.raw(spec.observation.id, str(name)), raw)
    point = Measurement(
        campaign=recipe.name,
        recipe=recipe.digest(),
        observation=spec.observation.id,
        zero_change=spec.observation.zero_change,
        rack=spec.observation.rack,
        pair=spec.observation.pair,
        build=spec.builds[name.arm].identity,
        allocation=spec.allocation,
        key=spec.key,
        job=job,
        name=name,
        order=block.order,
        engine=recipe.engine.name,
        simulated=engine.simulated,
        device=engine.device,
        restart=engine.restart,
        isl_tokens=workload.isl_tokens,
        osl_tokens=workload.osl_tokens,
        stream_interval=workload.stream_interval,
        started=started,
        ended=_now(),
        metrics=data.metrics,
        batch_tpot_ms=data.tpot_ms,
        raw=f"{name}.jsonl.gz",
        raw_digest=_digest_bytes(raw),
        fingerprint=fingerprint,
        calibration=data.calibration,
        checks=(*data.checks, *engine.checks(context)),
    )
    digest = write_once(spec.folder.point(spec.observation.id, str(name)), point)
    return PointRef(point=str(name), digest=digest)


def _decode_batches(engine: Engine, context: RunContext, workload: Workload) -> PointData:
    """Warm-up, then the planned closed-loop batches of an in-process engine."""
    for _ in range(workload.warmup_batches):
        engine.batch(context)
    batches = [engine.batch(context) for _ in range(workload.batches)]
    return PointData(
        metrics=point_metrics(batches, level=context.level, stream_interval=workload.stream_interval),
        tpot_ms=tuple(b.tpot_ms for b in batches),
        raw=tuple({"batch": n, "step_ns": list(b.step_ns)} for n, b in enumerate(batches)),
        checks=check_batches(batches, planned=workload.batches, osl_tokens=workload.osl_tokens),
    )


def _fingerprint(spec: AllocationSpec, engine: Engine) -> Fingerprint:
    """The machine as it is now, kept under its content's name."""
    ranks = engine.ranks if isinstance(engine, RankedEngine) else ()
    found = capture(device=engine.device, modules=VERSIONED, repo=Path(__file__).parent, ranks=ranks)
    write_record(spec.folder.fingerprint(spec.observation.id, found.digest()), found)
    return found


def _machine_checks(spec: AllocationSpec, before: Fingerprint, after: Fingerprint) -> tuple[Check, ...]:
    """The machine must end the block as it began it; the differing field is named."""
    rules = spec.plan.recipe.validity
    found = difference(
        before,
        after,
        max_clock_change_pct=rules.max_clock_change_pct,
        same_throttle_reasons=rules.same_throttle_reasons,
    )
    detail = "; ".join(f"{d.field}: {d.before} -> {d.after}" for d in found)
    return (Check(name="machine_unchanged", ok=not found, detail=detail),)


def accepted_block(spec: AllocationSpec, block: PlannedBlock) -> Block | None:
    """The first attempt at a block that was closed under this key with every planned point on disk, if there is one."""
    files = (spec.folder.observation(spec.observation.id) / "blocks").glob(f"b{block.number:03d}-*.json")
    closed = [read_record(path, Block) for path in sorted(files)]
    whole = [b for b in closed if b.block == block.number and b.key == spec.key and _is_whole(spec, block, b)]
    return min(whole, key=lambda b: b.attempt, default=None)


def _is_whole(spec: AllocationSpec, planned: PlannedBlock, closed: Block) -> bool:
    wanted = {str(name) for name in planned.points(closed.attempt)}
    paths = {ref.point: spec.folder.point(closed.observation, ref.point) for ref in closed.points}
    return set(paths) == wanted and all(
        path.exists() and _digest_bytes(path.read_bytes()) == ref.digest
        for ref, path in zip(closed.points, paths.values(), strict=True)
    )


def summarise(spec: AllocationSpec, *, reason: str = "") -> Allocation:
    """What the rule hands on: accepted points, and the fragments they supersede. Fails softly with `reason`."""
    blocks = [accepted_block(spec, planned) for planned in spec.blocks]
    accepted = tuple(ref for block in blocks if block for ref in block.points)
    kept = {ref.point for ref in accepted}
    fragments = tuple(
        PointRef(point=str(p.name), digest=p.digest())
        for planned in spec.blocks
        for p in _points_of(spec, planned)
        if str(p.name) not in kept
    )
    whole = all(blocks)
    return Allocation(
        campaign=spec.plan.recipe.name,
        observation=spec.observation.id,
        allocation=spec.allocation,
        key=spec.key,
        status="measured" if whole else "failed",
        reason="" if whole else reason or "blocks are missing",
        planned_points=sum(4 * len(b.levels) for b in spec.blocks),
        accepted=accepted,
        superseded=fragments,
    )


def not_built(plan: Plan, observation: str, allocation: str, reason: str) -> Allocation:
    """What the rule hands on where there is nothing that could be measured."""
    blocks = plan.observation(observation).blocks_of(allocation)
    return Allocation(
        campaign=plan.recipe.name,
        observation=observation,
        allocation=allocation,
        key=digest_of(["not built", plan.recipe.name, observation, allocation]),
        status="failed",
        reason=reason,
        planned_points=sum(4 * len(b.levels) for b in blocks),
        accepted=(),
        superseded=(),
    )


def _points_of(spec: AllocationSpec, block: PlannedBlock) -> Iterator[Measurement]:
    folder = spec.folder.observation(spec.observation.id) / "points"
    for path in sorted(folder.glob(f"b{block.number:03d}-*.json")):
        yield read_record(path, Measurement)


def _raw_bytes(data: PointData) -> bytes:
    lines = [json.dumps(line) for line in data.raw]
    return gzip_bytes(("\n".join(lines) + "\n").encode())


def _digest_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _job_name(attempt: int) -> str:
    slurm = os.environ.get("SLURM_JOB_ID")
    return f"slurm-{slurm}" if slurm else f"attempt{attempt}-pid{os.getpid()}"


def _progress(text: str) -> None:
    print(text, flush=True)


def _block_name(number: int, attempt: int) -> str:
    return f"b{number:03d}-a{attempt}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
