"""Plan in, one record per arm of a build pair out: what runs, from which sources, under which versions.

Arms of kind `installed` run the k3model of this very environment; they differ by policy and environment only.
Out of scope: measuring, and comparing the two sides.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
from importlib import metadata
from pathlib import Path

from k3bench.errors import BuildError
from k3bench.records.measurement import Arm
from k3bench.records.plan import VERSIONED, Build, Plan


def build_arm(plan: Plan, pair: str, arm: Arm) -> Build:
    """Make one arm of one pair runnable. Raises `BuildError` for a pair or a build that does not exist."""
    recipe = plan.recipe
    pairs = sorted({o.pair for o in plan.observations})
    if pair not in pairs:
        raise BuildError(f"build pair {pair!r} is not in the plan", fix=f"choose from: {', '.join(pairs)}")
    spec = getattr(recipe.arms, arm)
    if spec.build != "installed":
        raise BuildError(
            f"build {spec.build!r} of arm {arm} is not known",
            where=f"{recipe.name}: arms.{arm}.build",
            fix="write `build: installed`; builds from a git ref are not available yet",
        )
    commit, dirty = _git_state()
    return Build(
        pair=pair,
        arm=arm,
        kind="installed",
        engine=recipe.engine.name,
        preset=recipe.engine.preset,
        policy=spec.policy,
        environment=spec.environment,
        source_digest=_source_digest(),
        git_commit=commit,
        git_dirty=dirty,
        versions={name: _version(name) for name in VERSIONED},
    )


def _package_folder() -> Path:
    found = importlib.util.find_spec("k3model")
    if found is None or found.origin is None:
        raise BuildError("package k3model is not installed", fix="run ./k3 setup")
    return Path(found.origin).parent


def _source_digest() -> str:
    """sha256 over names and contents of k3model's sources."""
    folder, total = _package_folder(), hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _git_state() -> tuple[str | None, bool | None]:
    """Commit and dirtiness of the checkout that k3model lies in; a copy without one may carry `K3BENCH_COMMIT`."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("K3BENCH_COMMIT"), None


def _git(*words: str) -> str:
    run = subprocess.run(["git", *words], cwd=_package_folder(), capture_output=True, text=True, check=True, timeout=20)
    return run.stdout
