"""`k3bench measure --dry-run`: a campaign in, every job, file and command of it in order out, without a cluster.

A line that does not begin with `#` is a command as it would be started. Builds that are not made yet are pretended:
their folders are named after the recipe's builds. Out of scope: doing any of it.
"""

from __future__ import annotations

import importlib
import importlib.util
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from k3bench.measure.engine import EngineRequest
from k3bench.records.measurement import ARMS, ARMS_OF, Arm
from k3bench.records.plan import Build, Plan, PlannedBlock, PlannedObservation
from k3bench.records.recipe import SERVED
from k3bench.runnable import pretended
from k3bench.serving.arms import served_arm
from k3bench.store import CampaignFolder, read_record
from k3bench.submit import job_of


def dry_run(plan: Plan, root: Path, chosen: tuple[str, str] | None = None) -> Iterator[str]:
    """All lines, or those of one allocation."""
    yield f"# {plan.recipe.name}: {plan.recipe.title}"
    for observation in plan.observations:
        request = _request(plan, root, observation)
        for allocation in observation.allocations:
            if chosen in (None, (observation.id, allocation.id)):
                yield from _allocation(request, allocation.id)
    if chosen is None:
        yield from _beside(plan, root)


def _request(plan: Plan, root: Path, observation: PlannedObservation) -> EngineRequest:
    builds = {arm: _build(plan, root, observation.pair, observation.arm(arm)) for arm in ARMS}
    return EngineRequest(plan.recipe, observation, builds, root.absolute())


def _build(plan: Plan, root: Path, pair: str, arm: Arm) -> Build:
    path = CampaignFolder(root).build(pair, arm)
    return read_record(path, Build) if path.exists() else pretended(plan.recipe, pair, arm)


def _allocation(request: EngineRequest, allocation: str) -> Iterator[str]:
    observation = request.observation
    yield ""
    yield f"## {observation.id}/{allocation} on rack {observation.rack}"
    job = job_of(request.recipe.resources, observation.rack, "slurm", ranks=request.recipe.engine.ranks)
    yield job.sbatch_line(f"measure:{observation.id}/{allocation}")
    yield from _files(request)
    for block in observation.blocks_of(allocation):
        yield f"# block {block.number}: {block.order}, levels {', '.join(map(str, block.levels))}"
        yield from _block(request, block)


def _files(request: EngineRequest) -> Iterator[str]:
    module = _dry_module(request)
    for path, text in module.dry_files(request) if module else ():
        yield f"# file {path}"
        yield from (f"#   {line}" for line in text.splitlines())


def _block(request: EngineRequest, block: PlannedBlock) -> Iterator[str]:
    module, recipe = _dry_module(request), request.recipe
    if module:
        yield from module.dry_block(request, block)
        return
    for run, arm in enumerate(ARMS_OF[block.order]):
        ranks, nodes = recipe.engine.ranks, recipe.resources.nodes
        where = f"{ranks} ranks on {nodes} nodes, led by the worker" if ranks > 1 else "the worker's own process"
        yield f"# run {run}: {arm}, by engine {recipe.engine.name} in {where}"
        if recipe.engine.name in SERVED:
            served = served_arm(recipe, request.observation, request.builds, arm, request.folder)
            yield shlex.join(served.command) if served.command else f"# attached to {served.endpoint}"


def _dry_module(request: EngineRequest) -> Any:
    """What an engine can tell beforehand, where it can."""
    name = f"k3bench.measure.engines.{request.recipe.engine.name.replace('-', '_')}"
    package = importlib.util.find_spec(name)
    has_one = package is not None and package.submodule_search_locations is not None
    return importlib.import_module(f"{name}.dry") if has_one else None


def _beside(plan: Plan, root: Path) -> Iterator[str]:
    """What an engine runs in jobs of its own after the timed blocks: sameness and accuracy, then profiled runs."""
    for name in _verified_in_jobs(plan):
        request = _request(plan, root, plan.observation(name))
        module = _dry_module(request)
        yield ""
        yield from module.dry_guards(request) if module else ()
    for run in plan.profiles:
        request = _request(plan, root, plan.observation(run.observation))
        module, rack = _dry_module(request), request.observation.rack
        yield ""
        yield f"## {run.observation}/{run.arm} profiled by {run.tool} on rack {rack}"
        job = job_of(plan.recipe.resources, rack, "slurm", ranks=plan.recipe.engine.ranks)
        yield job.sbatch_line(f"profile:{run.observation}/{run.arm}")
        out = CampaignFolder(root.absolute()).traces(run.observation)
        yield from module.dry_profile(request, run, out) if module else ()


def _verified_in_jobs(plan: Plan) -> list[str]:
    """Observations whose sameness needs an allocation."""
    return [o.id for o in plan.observations if not o.zero_change] if plan.recipe.engine.name == "trtllm" else []
