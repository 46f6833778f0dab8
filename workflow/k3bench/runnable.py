"""A build record and its campaign's folder in; how a process runs that very build out: paths, caches, proof.

A served arm gets a working folder and variables; a measuring job adopts the build itself, before anything of it is
imported. Out of scope: making builds (`k3bench.build`), starting servers (`k3bench.serving`).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3bench.errors import BuildError
from k3bench.records.builds import GitBuild, ImageBuild, WheelBuild
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build
from k3bench.records.recipe import Recipe
from k3bench.store import CampaignFolder

#: Where compilers keep what they made: every name here points into the build's own folder when a pair is rebuilt.
CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deepgemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "PYTHONPYCACHEPREFIX": "python",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "TRTLLM_DG_CACHE_DIR": "trtllm-deepgemm",
}
PACKAGE = "k3model"
#: Builds that are shared by every pair of a campaign; no pair can have this name.
SHARED = ".made"


@dataclass(frozen=True)
class Runnable:
    """What a process that runs a build is started with: its folder (None: any) and variables to add."""

    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def runnable(build: Build, root: Path) -> Runnable:
    """How an arm's server is started. The arm's own environment is in it and wins; its PYTHONPATH comes second."""
    if build.place is None:
        return Runnable(environment=build.environment)
    folder, given = CampaignFolder(root.absolute()), dict(build.environment)
    tree = folder.tree(build.place)
    caches = {name: str(folder.cache(build.place) / sub) for name, sub in CACHES.items()} if build.rebuild else {}
    if build.python_path is None:
        return Runnable(environment={**caches, **given})
    other = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    paths = [str(tree / build.python_path), *filter(None, [other])]
    return Runnable(tree, {**caches, **given, "PYTHONPATH": os.pathsep.join(paths)})


def place_name(pair: str, content: str, *, rebuild: bool) -> str:
    """Where a build lies under builds/: in a folder of its pair if that is rebuilt, else in one that all share."""
    return f"{pair if rebuild else SHARED}/{content}"


def pretended(recipe: Recipe, pair: str, arm: Arm) -> Build:
    """A build that is not made yet, as a dry run shows it: its folder is named after the recipe's build."""
    side, spec = getattr(recipe.arms, arm), recipe.build_of(arm)
    has_tree = isinstance(spec, GitBuild | WheelBuild)
    rebuild = recipe.rebuilt(pair)
    return Build(
        pair=pair,
        arm=arm,
        kind=spec.kind,
        engine=recipe.engine.name,
        preset=recipe.engine.preset,
        policy=side.policy,
        environment=side.environment,
        source_digest="0" * 64,
        git_commit=None,
        git_dirty=None,
        versions={},
        name=side.build,
        rebuild=rebuild,
        place=place_name(pair, f"DIGEST-OF-{side.build}", rebuild=rebuild) if has_tree or rebuild else None,
        python_path=(spec.python_path if isinstance(spec, GitBuild) else ".") if has_tree else None,
        image=spec.image if isinstance(spec, ImageBuild) else None,
    )


def adopt(build: Build, root: Path) -> None:
    """Make this very process, and those it starts, run the build. Raises `BuildError` if it runs another already."""
    how = runnable(build, root)
    os.environ.update({name: value for name, value in how.environment.items() if name not in build.environment})
    if build.python_path is None or build.place is None:
        return
    home = str(CampaignFolder(root.absolute()).tree(build.place) / build.python_path)
    loaded = getattr(sys.modules.get(PACKAGE), "__file__", None)
    if loaded is not None and not Path(loaded).is_relative_to(home):
        raise BuildError(
            f"this process has loaded {PACKAGE} from elsewhere and cannot run build {build.name!r} of {build.pair} too",
            where=f"{loaded} is not in {home}",
            fix="measure each allocation in a process of its own: --executor local, or one OBS/ALLOCATION with --here",
        )
    if home not in sys.path:
        sys.path.insert(0, home)


def source_digest(package: Path) -> str:
    """sha256 over names and contents of a package's sources: Python, and the JSON that decides how kernels run."""
    total = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".json")):
        total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def same_sources(build: Build, told: str | None) -> str:
    """Why a process does not run what was built, by the digest that it tells of itself; empty when it does."""
    if told is None or told == build.source_digest:
        return ""
    return f"it runs sources {told[:12]}, but {build.pair}/{build.arm} was built from {build.source_digest[:12]}"
