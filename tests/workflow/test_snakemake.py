"""Snakemake's own view: rules lint clean, are formatted, and a dry run names every job of the recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .clone import ROOT, environment, make_clone, run

LAPTOP = (ROOT / "recipes/laptop.yaml").read_text()


def snakemake(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Snakemake in a folder, output captured."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_rules_are_lint_clean() -> None:
    """Snakemake's linter has no complaint."""
    found = snakemake(ROOT, "--lint")
    assert "Congratulations" in found.stdout + found.stderr, found.stdout + found.stderr


def test_rules_are_formatted() -> None:
    """snakefmt would change nothing."""
    command = [str(Path(sys.executable).parent / "snakefmt"), "--check", "Snakefile", "workflow/rules"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", ["clone", "a clone with spaces"])
def test_a_dry_run_names_every_job_from_any_path(tmp_path: Path, name: str) -> None:
    """Two build pairs, one job that submits all allocations, one comparison, one report."""
    clone = make_clone(tmp_path / name, laptop=LAPTOP)
    found = snakemake(
        clone, "-n", "--workflow-profile", "workflow/profiles/laptop", "--config", "recipe=recipes/laptop.yaml"
    )
    assert found.returncode == 0, found.stderr[-2000:]
    lines = {tuple(line.split()) for line in found.stdout.splitlines() if len(line.split()) == 2}
    assert {
        ("plan", "1"),
        ("build", "2"),
        ("measure", "1"),
        ("compare", "1"),
        ("publish", "1"),
        ("track", "1"),
    } <= lines


def test_a_recipe_error_is_the_first_and_only_thing_said(tmp_path: Path) -> None:
    """No traceback between a person and the line that is wrong."""
    clone = make_clone(tmp_path / "clone", laptop=LAPTOP.replace("primary_level: 1", "primary_level: 3"))
    command = [sys.executable, "-m", "k3bench", "run", "recipes/laptop.yaml"]
    found = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("error: primary_level 3")
    assert "Traceback" not in found.stderr


def test_an_unknown_profile_lists_the_profiles(tmp_path: Path) -> None:
    """`--profile laptob` is answered with what exists."""
    clone = make_clone(tmp_path / "clone", laptop=LAPTOP)
    command = [sys.executable, "-m", "k3bench", "run", "recipes/laptop.yaml", "--profile", "laptob"]
    found = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "gpu, laptop, slurm" in found.stderr


def test_what_follows_two_dashes_goes_to_snakemake_wherever_the_options_stand(tmp_path: Path) -> None:
    """`--until plan` stops after the plan, and a campaign without a comparison has nothing to show."""
    clone = make_clone(tmp_path / "clone", laptop=LAPTOP)
    run(clone, "laptop", "--profile", "gpu", "--", "--until", "plan")
    assert (clone / "results/laptop/plan.json").exists()
    assert not (clone / "results/laptop/builds").exists()
