"""Start a campaign or the tests: choose the files, hold the campaign's lock, become Snakemake or pytest.

The process turns into Snakemake, so that killing the head kills exactly one process, and its lock goes with it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from k3bench.cluster import environment as loopback_cluster
from k3bench.errors import RecipeError, StoreError
from k3bench.recipe import load_recipe
from k3bench.records.measurement import Allocation
from k3bench.store import CampaignFolder, read_record


def run_campaign(recipe: Path, *, profile: str, dry_run: bool, rest: tuple[str, ...]) -> int:
    """Validate the recipe, make failed allocations due again, and hand over to Snakemake. Does not return."""
    name = load_recipe(recipe).name
    profiles = sorted(p.parent.name for p in Path("workflow/profiles").glob("*/config.yaml"))
    if profile not in profiles:
        raise RecipeError(
            f"profile {profile!r} does not exist", where="workflow/profiles", fix=f"choose from: {', '.join(profiles)}"
        )
    command = [
        *(sys.executable, "-m", "snakemake", "--workflow-profile", f"workflow/profiles/{profile}"),
        *(["--dry-run"] if dry_run else []),
        *rest,
        *("--config", f"recipe={recipe}", f"executor={_executor(profile)}"),
    ]
    if not dry_run:
        _take_lock(name)
        _forget_failures(CampaignFolder(Path("results") / name))
    if profile == "slurm":
        os.environ.update(loopback_cluster())
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execv(sys.executable, command)


def _executor(profile: str) -> str:
    return "slurm" if profile == "slurm" else "local"


def _take_lock(name: str) -> None:
    """One head per campaign; the lock is inherited by the Snakemake this process becomes and ends with it."""
    path = Path(".k3/heads") / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", where=str(path), fix="make the clone writable") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise StoreError(
            f"campaign {name} is being run by another head", where=str(path), fix="wait for it, or stop it first"
        ) from None
    os.set_inheritable(descriptor, True)


def _forget_failures(folder: CampaignFolder) -> None:
    """A failed allocation's summary holds no result; without it the allocation is due again."""
    for path in sorted(folder.root.glob("observations/*/alloc*.json")):
        if read_record(path, Allocation).status == "failed":
            path.unlink()


def run_tests(*, everything: bool, rest: tuple[str, ...]) -> int:
    """Run pytest on the project's tests."""
    marks = ["-m", ""] if everything else []
    return subprocess.run([sys.executable, "-m", "pytest", *marks, *rest], check=False).returncode
