"""Sameness of a model over several ranks as a job: on the nodes, the GPUs and the rack that it is measured on.

In: a campaign's folder, an observation. Out: an `Equivalence`; a job that fails is a row that says why. Elsewhere than
on Slurm this very process asks the ranks (`verify.py`), which needs no submitit. No torch until the job runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3bench.errors import K3Error
from k3bench.records.base import digest_of
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.plan import Build, Plan
from k3bench.runnable import adopt
from k3bench.store import CampaignFolder, read_record
from k3bench.submit import JOBS, job_of, run_once


def verify_in_job(root: Path, observation: str, **asked: Any) -> Equivalence:
    """Submit or adopt the probing, wait for it. `asked`: device, presets, budget_s."""
    plan, builds = _read(root, observation)
    engine = plan.recipe.engine
    job = job_of(plan.recipe.resources, plan.observation(observation).rack, "slurm", ranks=engine.ranks)
    identities = {arm: build.identity for arm, build in builds.items()}
    key = digest_of(["verify", plan.recipe.name, plan.recipe.measured, observation, identities, asked])
    arguments = {"root": str(root.absolute()), "observation": observation, "asked": asked}
    try:
        told = run_once(key, run_verify, arguments, jobs=JOBS, spec=job, say=_say).result
    except K3Error as error:
        return _not_run(plan, observation, identities, str(error))
    return Equivalence.model_validate_json(json.dumps(told), strict=True)


def run_verify(*, root: str, observation: str, asked: dict[str, Any], attempt: int) -> dict[str, Any]:
    """The job."""
    folder = Path(root)
    plan, builds = _read(folder, observation)
    adopt(builds["after"], folder)
    from k3bench.verify import verify

    presets = tuple(asked["presets"])
    given = {"device": asked["device"], "presets": presets, "budget_s": asked["budget_s"], "root": folder, "say": _say}
    return verify(plan, builds, observation, **given).model_dump(mode="json", by_alias=True)


def _read(root: Path, observation: str) -> tuple[Plan, dict[Arm, Build]]:
    folder = CampaignFolder(root)
    plan = read_record(folder.plan, Plan)
    planned = plan.observation(observation)
    return plan, {arm: read_record(folder.build(planned.pair, arm), Build) for arm in ARMS}


def _not_run(plan: Plan, observation: str, builds: Mapping[Arm, str], reason: str) -> Equivalence:
    what, preset = f"sameness over {plan.recipe.engine.ranks} ranks", plan.recipe.engine.preset
    row = EquivalenceRow(kind="fork", status="not_run", what=what, preset=preset, policy="every policy", reason=reason)
    return Equivalence(
        campaign=plan.recipe.name,
        observation=observation,
        builds={str(arm): digest for arm, digest in builds.items()},
        device="none",
        versions={},
        settings={},
        measured=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        rows=(row,),
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
