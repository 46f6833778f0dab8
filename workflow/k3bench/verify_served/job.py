"""Sameness and accuracy of an engine that needs an allocation: jobs in, one `Equivalence` out.

Greedy tokens are one job (three server lives on the observation's rack), accuracy is one job an arm of a build pair,
shared by all observations of the pair. A job that fails is a row that says why. Out of scope: the timed blocks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from k3bench.errors import K3Error
from k3bench.records.base import digest_of
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.ledger import ExecutorName
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.plan import Build, Plan, PlannedObservation
from k3bench.serving.trtllm.accuracy import accuracy_pct
from k3bench.serving.trtllm.arm import trtllm_arm
from k3bench.serving.trtllm.settings import spec_of
from k3bench.store import CampaignFolder, read_record
from k3bench.submit import JobSpec, job_of, run_once
from k3bench.verify_served.asked import not_asked, verify_served

#: A job ends before its time limit does.
SHARE_OF_LIMIT = 0.9


def verify_in_jobs(root: Path, observation: str, *, jobs: Path, executor: ExecutorName) -> Equivalence:
    """Greedy tokens, then the accuracy guard where the recipe has one."""
    plan = read_record(CampaignFolder(root).plan, Plan)
    planned, builds = plan.observation(observation), _builds(root, plan.observation(observation))
    spec = job_of(plan.recipe.resources, planned.rack, executor)
    asked = _asked(plan, root, planned, builds, jobs, spec)
    return asked.model_copy(update={"rows": (*asked.rows, *_guarded(plan, root, planned, builds, jobs, spec))})


def _builds(root: Path, planned: PlannedObservation) -> dict[Arm, Build]:
    folder = CampaignFolder(root)
    return {arm: read_record(folder.build(planned.pair, planned.arm(arm)), Build) for arm in ARMS}


def key_of(plan: Plan, builds: Mapping[Arm, Build], what: list[str]) -> str:
    """What is asked of which builds, with which settings; the arms come with the recipe's measured part."""
    return digest_of([what, plan.recipe.name, plan.recipe.measured, {a: b.identity for a, b in builds.items()}])


def _asked(
    plan: Plan, root: Path, planned: PlannedObservation, builds: dict[Arm, Build], jobs: Path, spec: JobSpec
) -> Equivalence:
    key = key_of(plan, builds, ["greedy", planned.id, planned.rack])
    arguments = {"root": str(root.absolute()), "observation": planned.id}
    try:
        told = run_once(key, ask_job, arguments, jobs=jobs, spec=spec, say=_named(key, f"{planned.id}/greedy")).result
    except K3Error as error:
        return not_asked(plan, builds, planned.id, str(error))
    return Equivalence.model_validate_json(json.dumps(told), strict=True)


def _guarded(
    plan: Plan, root: Path, planned: PlannedObservation, builds: dict[Arm, Build], jobs: Path, spec: JobSpec
) -> list[EquivalenceRow]:
    guard = spec_of(plan.recipe).accuracy
    if guard is None:
        return []
    rows = []
    for arm in ARMS:
        key = key_of(plan, {arm: builds[arm]}, ["accuracy", arm])
        arguments = {"root": str(root.absolute()), "observation": planned.id, "arm": arm}
        reason, ok = _score(key, arguments, jobs, spec, guard.least_pct)
        rows.append(
            EquivalenceRow(
                kind="accuracy",
                status="not_run" if ok is None else "pass" if ok else "fail",
                what=f"{guard.task} of {arm}, at least {guard.least_pct:g} %",
                preset=plan.recipe.engine.preset,
                policy=builds[arm].policy,
                prompts=guard.samples,
                reason=reason,
            )
        )
    return rows


def _score(
    key: str, arguments: Mapping[str, Any], jobs: Path, spec: JobSpec, least_pct: float
) -> tuple[str, bool | None]:
    try:
        say = _named(key, f"{arguments['observation']}/accuracy/{arguments['arm']}")
        score = float(run_once(key, accuracy_job, arguments, jobs=jobs, spec=spec, say=say).result["accuracy_pct"])
    except K3Error as error:
        return error.what, None
    return f"{score:.2f} %", score >= least_pct


def _named(key: str, name: str) -> Callable[[str], None]:
    """What is told of a job under a name that people know."""
    return lambda text: print(text.replace(key[:16], name), file=sys.stderr, flush=True)


# --- in the job
def ask_job(*, root: str, observation: str, attempt: int) -> dict[str, Any]:
    """Three lives of a server, the same prompts to each."""
    folder = Path(root)
    plan = read_record(CampaignFolder(folder).plan, Plan)
    builds = _builds(folder, plan.observation(observation))
    found = verify_served(plan, builds, observation, logs=folder / "logs", say=lambda text: print(text, flush=True))
    told: dict[str, Any] = found.model_dump(mode="json", by_alias=True)
    return told


def accuracy_job(*, root: str, observation: str, arm: Arm, attempt: int) -> dict[str, Any]:
    """One evaluation of one arm."""
    folder = Path(root)
    plan = read_record(CampaignFolder(folder).plan, Plan)
    planned = plan.observation(observation)
    served = trtllm_arm(plan.recipe, planned, _builds(folder, planned), arm, folder)
    limit_s = SHARE_OF_LIMIT * 60 * plan.recipe.resources.minutes
    return {"accuracy_pct": accuracy_pct(served, limit_s)}
