"""A working copy for tests: the clone's Snakefile, rules and recipes in another folder, results and jobs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKED = ("Snakefile", "environment.yml", "workflow", "k3model")


def make_clone(folder: Path, **recipes: str) -> Path:
    """Link what Snakemake reads, write the given recipes (name -> text)."""
    folder.mkdir(parents=True)
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    (folder / "recipes").mkdir()
    (folder / "results/recorded").mkdir(parents=True)
    for name, text in recipes.items():
        (folder / f"recipes/{name}.yaml").write_text(text)
    return folder


def environment(**extra: str) -> dict[str, str]:
    """This process's environment with the package's commands first on the path."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | extra


def start(clone: Path, recipe: str, *rest: str) -> subprocess.Popen[str]:
    """Start a head in the clone."""
    return subprocess.Popen(
        [sys.executable, "-m", "k3bench", "run", f"recipes/{recipe}.yaml", *rest],
        cwd=clone,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(clone: Path, recipe: str, *rest: str) -> str:
    """Run a head to its end; fails the test with its output when it does not succeed."""
    head = start(clone, recipe, *rest)
    output, _ = head.communicate(timeout=500)
    assert head.returncode == 0, output[-4000:]
    return output
