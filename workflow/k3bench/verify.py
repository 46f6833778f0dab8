"""Plan and builds in, the evidence of sameness out: one row per probe, controls included.

Asks `k3model.equivalence` whether overlapping changes a bit of what an observation's arms compute on this machine.
Needs torch, numpy, pydantic and PyYAML only. Out of scope: time, and what to conclude.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from k3bench.errors import BuildError, RankError, RecordError
from k3bench.ranks import Crew, Wanted, in_slurm_job
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, Plan, PlannedObservation
from k3bench.records.recipe import K3MODEL
from k3bench.runnable import runnable
from k3model.equivalence import Row, Subject, probe_rows
from k3model.errors import K3ModelError

BATCHES = (1, 2, 4, 8)
#: cuBLAS keeps a workspace per stream; its size takes part in the choice of an algorithm, so it is fixed and recorded.
WORKSPACE = ":4096:8"
#: What can decide whether bits are equal.
SETTINGS = (
    "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
)  # fmt: skip
PACKAGES = ("torch", "triton", "numpy", "nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
#: Real head dims in a model so small that every probe is quick; asked beside the recipe's own preset on a GPU.
QUICK = "small"
#: Options that mean the same in every preset.
SWITCHES = (
    "variant", "kernels", "pdl", "side_programs", "fused_inputs", "leg_order", "stream_priority", "state_pool",
    "staging_repack", "kda_weights", "kv_cache", "expert_weights", "latent_rms_eps", "page_tokens",
)  # fmt: skip
#: Presets too deep to probe fork by fork, and the shorter one with the same shapes.
STANDS_FOR = {"rank-93": "block-12", "share-93": "share-12"}
#: The same for a distributed model: heads enough for sixteen ranks, and what makes it distributed.
QUICK_RANKED = "small-16"
RANKED = ("tp_size", "collectives")
#: The longest that all probes of a subject may take where no budget is given.
LONGEST_S = 3600.0
Say = Callable[[str], None]


def verify(
    plan: Plan,
    builds: Mapping[Arm, Build],
    observation: str,
    *,
    device: str = "auto",
    presets: tuple[str, ...] = (),
    batches: tuple[int, ...] = BATCHES,
    budget_s: float | None = None,
    root: Path = Path("results"),
    say: Say = lambda text: None,
) -> Equivalence:
    """Probe the policies of one observation's arms, on all its ranks. `presets` replaces those that the recipe gives.

    `budget_s` bounds the time per preset: probes that come too late are rows that say so.
    Raises `RecordError` for an observation that is not planned, `BuildError` for a build or a device that is missing.
    """
    planned, chosen = _planned(plan, builds, observation), _device(device)
    name = torch.cuda.get_device_name() if chosen == "cuda" else f"cpu {platform.machine()}"
    rows: list[EquivalenceRow] = []
    try:
        subjects = _subjects(plan, builds, planned, chosen, presets)
        if plan.recipe.engine.ranks > 1:
            rows += _over_ranks(plan, chosen, root, builds["after"], subjects, batches, budget_s, say)
        for subject in () if rows else subjects:
            probes = probe_rows(subject, device=chosen, batches=batches, budget_s=budget_s, say=say)
            rows += [_checked(row) for row in probes]
        rows += _between_builds(plan, builds)
    except K3ModelError as error:
        raise BuildError(error.what, where=error.where, fix=error.fix) from None
    return Equivalence(
        campaign=plan.recipe.name,
        observation=observation,
        builds={arm: build.identity for arm, build in builds.items()},
        device=name,
        versions=_versions(),
        settings={name: os.environ.get(name) for name in SETTINGS} | {"allow_tf32": _tf32()},
        measured=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        rows=tuple(rows) or (_nothing_decoded(plan),),
    )


def _over_ranks(
    plan: Plan,
    device: str,
    root: Path,
    build: Build,
    subjects: list[Subject],
    batches: tuple[int, ...],
    budget_s: float | None,
    say: Say,
) -> list[EquivalenceRow]:
    """Every rank probes its own bits; a row passes if it passes on all. Ranks that end are a row that says why."""
    rows: list[EquivalenceRow] = []
    try:
        with Crew(_wanted(plan, device, root, build)) as crew:
            say(crew.present()[1])
            for subject in subjects:
                limit_s = (LONGEST_S if budget_s is None else budget_s) + crew.limits.open_s
                asked = {"subject": asdict(subject), "batches": list(batches), "budget_s": budget_s}
                told = [answer["rows"] for answer in crew.ask("probe", limit_s=limit_s, **asked)]
                rows += [_merged([Row(**row) for row in of_ranks]) for of_ranks in zip(*told, strict=True)]
    except RankError as error:
        what = f"sameness over {plan.recipe.engine.ranks} ranks"
        preset = subjects[min(len({row.preset for row in rows}), len(subjects) - 1)].preset
        rows.append(_checked(Row("fork", "not_run", what, preset, None, "every policy", str(error))))
    return rows


def _wanted(plan: Plan, device: str, root: Path, build: Build) -> Wanted:
    """The recipe's ranks; outside a Slurm job all of them on this machine."""
    recipe, home = plan.recipe, runnable(build, root).folder
    nodes = recipe.resources.nodes if in_slurm_job() else 1
    logs = root.absolute() / "logs" / "ranks" / f"verify-{os.getpid()}"
    return Wanted(recipe.engine.ranks, nodes, "k3bench.verify_rank:VerifyingRank", {"device": device}, logs, home)


def _merged(of_ranks: list[Row]) -> EquivalenceRow:
    """Rank 0's row, or the first that did not pass, with its rank."""
    worst = next((rank for rank, row in enumerate(of_ranks) if row.status != "pass"), 0)
    row = of_ranks[worst]
    where = f"rank {worst} of {len(of_ranks)}: " if worst else ""
    return _checked(replace(row, reason=where + row.reason))


def _planned(plan: Plan, builds: Mapping[Arm, Build], observation: str) -> PlannedObservation:
    if observation not in {o.id for o in plan.observations}:
        choices = ", ".join(o.id for o in plan.observations)
        raise RecordError(f"observation {observation!r} is not in the plan", fix=f"choose from: {choices}")
    planned = plan.observation(observation)
    for arm in ("before", "after"):
        build = builds.get(arm)  # type: ignore[call-overload]
        if build is None or (build.pair, build.arm) != (planned.pair, arm):
            raise BuildError(
                f"the build of {planned.pair}/{arm} is missing",
                where=f"{plan.recipe.name}/{observation}",
                fix=f"run: k3bench build <plan.json> {planned.pair}/{arm} --out <build.json>",
            )
    return planned


def _device(wanted: str) -> str:
    """cuda or cpu. Before CUDA starts, its workspaces get one fixed size."""
    if not torch.cuda.is_initialized():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BuildError("CUDA was asked for, but this machine has no CUDA device", fix="use --device auto")
    return wanted


def _subjects(
    plan: Plan, builds: Mapping[Arm, Build], planned: PlannedObservation, device: str, presets: tuple[str, ...]
) -> list[Subject]:
    """The recipe's preset, beside a quick one on a GPU, with the policies that this observation runs."""
    engine = plan.recipe.engine
    if engine.name not in K3MODEL:
        return []
    policies = tuple(dict.fromkeys(builds[planned.arm(arm)].policy for arm in builds))
    quick, kept = (QUICK_RANKED, (*SWITCHES, *RANKED)) if engine.ranks > 1 else (QUICK, SWITCHES)
    names = presets or ((quick,) if device == "cuda" else ()) + (STANDS_FOR.get(engine.preset, engine.preset),)
    switches = {name: value for name, value in engine.options.items() if name in kept}
    return [
        Subject(name, dict(engine.options) if name == engine.preset else switches, policies)
        for name in dict.fromkeys(names)
    ]


def _checked(row: Row) -> EquivalenceRow:
    return EquivalenceRow(**asdict(row))


def _between_builds(plan: Plan, builds: Mapping[Arm, Build]) -> list[EquivalenceRow]:
    """Arms of other sources share no process, so that their bits cannot be compared; the probes ran in `after`."""
    if plan.recipe.engine.name not in K3MODEL or len({b.source_digest for b in builds.values()}) < 2:
        return []
    reason = "the arms are builds of different sources; forks were probed in after, tokens are compared by server"
    policies = f"{builds['before'].policy} | {builds['after'].policy}"
    shared = {"kind": "fork", "status": "not_run", "what": "bits, build before | build after", "reason": reason}
    return [EquivalenceRow.model_validate(shared | {"preset": plan.recipe.engine.preset, "policy": policies})]


def _nothing_decoded(plan: Plan) -> EquivalenceRow:
    engine = plan.recipe.engine
    reason = f"engine {engine.name} gives no outputs that could be compared"
    return EquivalenceRow(
        kind="fork", status="not_run", what="sameness", preset=engine.preset, policy="every policy", reason=reason
    )


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in PACKAGES}
    found |= {"python": platform.python_version(), "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        found["cudnn"] = str(torch.backends.cudnn.version())
    return {name: version for name, version in found.items() if version}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _tf32() -> str:
    return str(torch.backends.cuda.matmul.allow_tf32).lower()
