"""Plan in, one record per arm of a build pair out: what runs, from which sources, under which versions.

The pair is the unit: both arms are made, related to each other by their history, and compared, before either counts.
Out of scope: how each kind is made (`place.py`), where and when (`command.py`).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.build.inputs import Inputs, gather, package_folder
from k3bench.build.place import image_digest, make, versions
from k3bench.build.repository import relation
from k3bench.change import mismatch
from k3bench.errors import BuildError
from k3bench.records.builds import GitBuild, ImageBuild, Made
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.plan import Build, Plan
from k3bench.runnable import place_name
from k3bench.store import CampaignFolder


@dataclass(frozen=True)
class Site:
    """A plan, where its campaign lies, and the folder that relative paths of the recipe begin at."""

    plan: Plan
    folder: CampaignFolder
    base: Path

    def at(self, arm: Arm) -> str:
        """Where a message points."""
        recipe = self.plan.recipe
        return f"{recipe.name}: builds.{getattr(recipe.arms, arm).build} (arm {arm})"


def build_arm(plan: Plan, pair: str, arm: Arm, *, root: Path | None = None) -> Build:
    """One arm of `build_pair`."""
    return build_pair(plan, pair, root=root)[arm]


def build_pair(plan: Plan, pair: str, *, root: Path | None = None, base: Path | None = None) -> dict[Arm, Build]:
    """Make both arms runnable, or find them made. Raises `BuildError`, also if they differ in what nobody declared.

    `root` is the campaign's folder (default: under results/), `base` where relative paths of the recipe begin.
    """
    pairs = sorted({o.pair for o in plan.observations})
    if pair not in pairs:
        raise BuildError(f"build pair {pair!r} is not in the plan", fix=f"choose from: {', '.join(pairs)}")
    site = Site(plan, CampaignFolder(root or Path("results") / plan.recipe.name), base or Path())
    inputs = inputs_of(site)
    history = _history(inputs)
    builds = {arm: _build(site, pair, arm, inputs[arm], history) for arm in ARMS}
    found = mismatch(plan.recipe, builds["before"], builds["after"])
    if found:
        raise BuildError(
            f"the arms of build pair {pair} are not what the recipe declares: {found}",
            where=f"{plan.recipe.name}: declared_change",
            fix="build both arms alike, or write the fields that differ into `declared_change:`",
        )
    return builds


def inputs_of(site: Site) -> dict[Arm, Inputs]:
    """What both arms are made from: refs resolved, files read, nothing made."""
    recipe = site.plan.recipe
    found: dict[str, Inputs] = {}
    for arm in ARMS:
        name = getattr(recipe.arms, arm).build
        if name not in found:  # a branch may move between two looks at it
            spec = recipe.build_of(arm)
            found[name] = gather(recipe, spec, base=site.base, folder=site.folder, where=site.at(arm))
    return {arm: found[getattr(recipe.arms, arm).build] for arm in ARMS}


def _history(inputs: dict[Arm, Inputs]) -> dict[str, Any]:
    """How two commits are related; arms of other kinds have no history."""
    before, after = inputs["before"].source, inputs["after"].source
    if before is None or after is None:
        return {}
    base, words = relation(before, after)
    return {"merge_base": base, "history": words}


def _build(site: Site, pair: str, arm: Arm, inputs: Inputs, history: dict[str, Any]) -> Build:
    recipe = site.plan.recipe
    rebuild, spec, chosen = recipe.rebuilt(pair), inputs.spec, getattr(recipe.arms, arm)
    place = _place(pair, inputs, rebuild=rebuild)
    made = make(site.folder, place, inputs, own_caches=rebuild, where=site.at(arm)) if place else _as_it_is(inputs)
    return Build(
        pair=pair,
        arm=arm,
        kind=spec.kind,
        engine=recipe.engine.name,
        preset=recipe.engine.preset,
        policy=chosen.policy,
        environment=chosen.environment,
        source_digest=made.source_digest,
        versions=made.versions,
        name=chosen.build,
        rebuild=rebuild,
        place=place,
        python_path=inputs.python_path if place and inputs.has_tree else None,
        wheel_digest=inputs.wheel_digest,
        image=spec.image if isinstance(spec, ImageBuild) else None,
        output_digest=made.output_digest,
        **_of_git(inputs, history),
    )


def _place(pair: str, inputs: Inputs, *, rebuild: bool) -> str | None:
    """A rebuilt pair has its own; others share by content; what is installed, or an image, needs none."""
    needed = rebuild or inputs.spec.kind in ("git", "wheel")
    return place_name(pair, inputs.digest[:16], rebuild=rebuild) if needed else None


def _as_it_is(inputs: Inputs) -> Made:
    """Nothing is made of an installed package or an image."""
    if isinstance(inputs.spec, ImageBuild):
        return Made(key=inputs.digest, source_digest=image_digest(inputs.spec), output_digest=None, versions={})
    return Made(key=inputs.digest, source_digest=str(inputs.installed), output_digest=None, versions=versions())


def _of_git(inputs: Inputs, history: dict[str, Any]) -> dict[str, Any]:
    spec, source = inputs.spec, inputs.source
    if not isinstance(spec, GitBuild) or source is None:
        commit, dirty = _git_state() if spec.kind == "installed" else (None, None)
        return {"git_commit": commit, "git_dirty": dirty}
    return history | {
        "git_commit": source.commit,
        "git_dirty": bool(source.changes),
        "repository": spec.repository,
        "ref": spec.ref,
        "patch_digest": inputs.patch_digest,
        "dirty_digest": inputs.dirty_digest,
        "command": spec.command,
    }


def _git_state() -> tuple[str | None, bool | None]:
    """Commit and dirtiness of the checkout that k3model lies in; a copy without one may carry `K3BENCH_COMMIT`."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("K3BENCH_COMMIT"), None


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=package_folder(), capture_output=True, text=True, check=True, timeout=20)
    return run.stdout
