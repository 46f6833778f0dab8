"""`k3bench build`: make a pair here, or as a job of its own where the recipe says so, and write its records.

A refusal comes before anything is submitted wherever the inputs alone can tell. Out of scope: what is made (`pair.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from k3bench.build.pair import Site, build_pair, inputs_of
from k3bench.errors import MeasureError
from k3bench.records.base import canonical_json, digest_of
from k3bench.records.builds import GitBuild, Unmade
from k3bench.records.ledger import ExecutorName
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.plan import Build, Plan
from k3bench.store import CampaignFolder, read_record, write_record
from k3bench.submit import JOBS, JobSpec, job_of, run_once


def build(plan_path: Path, pair: str, *, executor: ExecutorName, arms: Iterable[Arm] = ARMS) -> dict[Arm, Build]:
    """Make a pair and write the records of `arms`. Raises `BuildError`.

    A job that got no nodes leaves `Unmade` and returns nothing: the campaign goes on with the other pairs.
    """
    plan, folder = read_record(plan_path, Plan), CampaignFolder(plan_path.parent)
    as_job = plan.recipe.build_where == "job" and executor != "here"
    try:
        made = _as_job(plan, folder, pair, executor) if as_job else build_pair(plan, pair, root=folder.root)
    except MeasureError as error:
        for arm in arms:
            write_record(folder.build(pair, arm), Unmade(pair=pair, arm=arm, reason=str(error)))
        return {}
    for arm in arms:
        write_record(folder.build(pair, arm), made[arm])
    return made


def _as_job(plan: Plan, folder: CampaignFolder, pair: str, executor: ExecutorName) -> dict[Arm, Build]:
    inputs = inputs_of(Site(plan, folder, Path()))
    recipe = plan.recipe
    made_of = [inputs[arm].digest for arm in ARMS] + [recipe.arms.model_dump(mode="json"), recipe.rebuilt(pair)]
    outcome = run_once(
        digest_of(["build", recipe.name, recipe.engine.model_dump(mode="json"), pair, made_of]),
        build_job,
        {"root": str(folder.root.absolute()), "pair": pair, "base": str(Path.cwd())},
        jobs=JOBS,
        spec=job_spec(plan, pair, executor),
        keep=lambda result: all(_is_there(folder, build) for build in _builds(result).values()),
    )
    return _builds(outcome.result)


def build_job(*, root: str, pair: str, base: str, attempt: int) -> dict[str, Any]:
    """What the job calls; the records come back as plain data and are written by the head."""
    folder = CampaignFolder(Path(root))
    made = build_pair(read_record(folder.plan, Plan), pair, root=folder.root, base=Path(base))
    return {arm: build.model_dump(mode="json", by_alias=True) for arm, build in made.items()}


def _builds(result: dict[str, Any]) -> dict[Arm, Build]:
    return {arm: Build.from_bytes(canonical_json(result[arm])) for arm in ARMS}


def _is_there(folder: CampaignFolder, build: Build) -> bool:
    return build.place is None or (folder.place(build.place) / "made.json").exists()


def job_spec(plan: Plan, pair: str, executor: ExecutorName) -> JobSpec:
    """One node of the pair's own rack: what is compiled there fits the processors it will run on."""
    recipe = plan.recipe
    minutes = [spec.minutes for spec in recipe.builds.values() if isinstance(spec, GitBuild)]
    rack = next(o.rack for o in plan.observations if o.pair == pair)
    one_node = {"nodes": 1, "segment": None, "minutes": max([recipe.resources.minutes, *minutes])}
    return job_of(recipe.resources.model_copy(update=one_node), rack, executor)


def in_words(build: Build) -> str:
    """One line about one arm."""
    where = f" in builds/{build.place}" if build.place else ""
    return (
        f"{build.pair}/{build.arm}: {build.engine} {build.preset}, policy {build.policy}, {build.origin}{where}, "
        f"identity {build.identity[:12]}"
    )
