"""Start a campaign or the tests: choose the files, hold the campaign's lock, become Snakemake or pytest.

The process turns into Snakemake, so that killing the head kills exactly one process, and its lock goes with it.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from k3bench.cluster import environment as loopback_cluster
from k3bench.errors import RecipeError, StoreError
from k3bench.fingerprint.gpus import why_no_gpu
from k3bench.recipe import load_recipe
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Allocation
from k3bench.records.plan import Plan
from k3bench.store import CampaignFolder, is_unmade, read_record, write_atomic


def run_campaign(recipe: Path, *, profile: str, dry_run: bool, rest: tuple[str, ...]) -> int:
    """Validate the recipe, make failed allocations due again, and hand over to Snakemake. Does not return."""
    asked = load_recipe(recipe)
    name = asked.name
    profiles = sorted(p.parent.name for p in Path("workflow/profiles").glob("*/config.yaml"))
    if profile not in profiles:
        raise RecipeError(
            f"profile {profile!r} does not exist", where="workflow/profiles", fix=f"choose from: {', '.join(profiles)}"
        )
    if asked.engine.name == "trtllm":
        _need_a_cluster(recipe, name, profile)
    begun = (Path("results") / name / "observations").exists()
    if asked.engine.device == "cuda" and profile != "slurm" and not dry_run and not begun:
        _need_a_gpu(recipe)
    command = [
        *(sys.executable, "-m", "snakemake", "--workflow-profile", f"workflow/profiles/{profile}"),
        *(["--dry-run"] if dry_run else []),
        *rest,
        *("--config", f"recipe={recipe}", f"executor={_executor(profile)}"),
    ]
    if not dry_run:
        _take_lock(name)
        folder = CampaignFolder(Path("results") / name)
        _check_writable(folder)
        _forget_what_is_gone(folder)
        _say_last_word(folder)
    if profile == "slurm":
        os.environ.update(loopback_cluster())
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execv(sys.executable, command)


def _executor(profile: str) -> str:
    return "slurm" if profile == "slurm" else "local"


def _need_a_gpu(recipe: Path) -> None:
    """A recipe that must run on a GPU is refused here rather than after the first job has failed."""
    absent = why_no_gpu()
    if absent:
        raise RecipeError(
            f"the recipe asks for a CUDA device, and this machine shows none ({absent})",
            where=f"{recipe}: engine.device",
            fix="run it on a machine with a GPU or with --profile slurm; recipes/laptop.yaml runs anywhere",
        )


def _need_a_cluster(recipe: Path, name: str, profile: str) -> None:
    """Ranks are steps of a Slurm job, and their launcher takes some folder names apart."""
    from k3bench.serving.trtllm.arm import check_folder

    if profile != "slurm":
        raise RecipeError(
            "engine trtllm starts its ranks with srun",
            where=f"{recipe}: engine.name",
            fix="--profile slurm; `k3bench measure RECIPE --dry-run` shows every command without a cluster",
        )
    check_folder((Path("results") / name).absolute())


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


def _check_writable(folder: CampaignFolder) -> None:
    """One clear error now instead of Snakemake's traceback later."""
    probe = folder.root / ".writable"
    write_atomic(probe, b"")
    probe.unlink()


def _forget_what_is_gone(folder: CampaignFolder) -> None:
    """Make due again what failed, and what rests on files that are no longer there.

    Snakemake asks for the report only: with the report in place it would not miss what lies before it. Summaries and
    reports hold no result of their own; points are never touched.
    """
    for path in folder.root.glob("builds/*/*.json"):
        if is_unmade(path.read_bytes()):
            path.unlink()
    summaries = sorted(folder.root.glob("observations/*/alloc*.json"))
    for path in summaries:
        if not _stands(folder, read_record(path, Allocation)):
            path.unlink()
    planned = read_record(folder.plan, Plan).observations if folder.plan.exists() else ()
    wanted = [folder.allocation(o.id, a.id) for o in planned for a in o.allocations]
    if not all(path.exists() for path in wanted):
        folder.comparison.unlink(missing_ok=True)
    if not folder.comparison.exists():
        for path in (folder.report / "pr.md", folder.report / "index.html", folder.receipt):
            path.unlink(missing_ok=True)


def _stands(folder: CampaignFolder, summary: Allocation) -> bool:
    points = (folder.point(summary.observation, ref.point) for ref in summary.accepted)
    return summary.status == "measured" and all(path.exists() for path in points)


def _say_last_word(folder: CampaignFolder) -> None:
    """With nothing left to do Snakemake says only that; the answer is said here."""
    if folder.comparison.exists():
        head = read_record(folder.comparison, Comparison).headline
        print(f"so far: {head.word.replace('_', ' ')}; {folder.report / 'pr.md'}", file=sys.stderr)


#: Tests that mostly wait for Slurm, Snakemake and jobs: they run beside the others, on the second core.
_WAITING = ("tests/cluster", "tests/workflow")


def run_tests(*, everything: bool, rest: tuple[str, ...]) -> int:
    """Run pytest: the whole suite in two processes, anything narrower or longer in one."""
    command = [sys.executable, "-m", "pytest"]
    if everything or rest:
        marks = ["-m", ""] if everything else []
        return subprocess.run([*command, *marks, *rest], check=False).returncode
    with tempfile.TemporaryFile("w+") as said:
        waiting = subprocess.Popen([*command, *_WAITING], stdout=said, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run([*command, *(f"--ignore={path}" for path in _WAITING)], check=False).returncode
            print(f"\nbeside them: {' '.join(_WAITING)}", flush=True)
            second = waiting.wait()
        finally:
            waiting.terminate()
        said.seek(0)
        print(said.read(), flush=True)
    return first or second
