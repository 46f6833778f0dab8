"""Disks and databases that fail: one clear error, records intact, and the next start goes on."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3bench.evidence import Evidence, read_evidence
from k3bench.store import recorded_campaigns

from .clone import environment, make_clone, run, start

RECIPE = """
schema: k3bench.recipe/1
name: small
title: A campaign on a bad disk
engine: {name: simulated, truth: {effect_pct: -4.0}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 16, osl_tokens: 8, levels: [1, 2], batches: 5}
observations: [{id: obs1}]
blocks: 2
blocks_per_allocation: 2
primary_level: 1
"""


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    """A small file system of its own; the test skips where mounting is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def logs(clone: Path) -> str:
    """All logs of the campaign."""
    return "\n".join(p.read_text() for p in sorted((clone / "results/small/logs").glob("*.log")))


def test_a_full_disk_gives_one_clear_error_and_room_lets_it_finish(tmp_path: Path) -> None:
    """What was measured before the disk filled up stays valid."""
    clone = make_clone(tmp_path / "clone", small=RECIPE)
    with mounted(clone / "results/small/observations", "size=64k"):
        head = start(clone, "small")
        output, _ = head.communicate(timeout=200)
        assert head.returncode != 0
        assert "No space left on device" in output + logs(clone)
        assert "free space" in output + logs(clone)
        assert "Traceback" not in logs(clone)
        subprocess.run(["mount", "-o", "remount,size=8m", str(clone / "results/small/observations")], check=True)
        run(clone, "small")
        evidence = read_evidence(clone / "results/small")
        assert isinstance(evidence, Evidence)
        assert len(evidence.points) == 16


def test_a_read_only_results_folder_is_named_with_its_cure(tmp_path: Path) -> None:
    """The first thing that cannot be written stops the campaign with one message."""
    clone = make_clone(tmp_path / "clone", small=RECIPE)
    run(clone, "small")
    with mounted(clone / "results/other", "ro,size=64k"):
        command = ["k3bench", "plan", "recipes/small.yaml", "--out", "results/other/plan.json"]
        found = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("error: cannot write: Read-only file system")
    assert "fix:" in found.stderr


def test_an_mlflow_that_cannot_be_written_costs_the_receipt_and_never_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report is written first; the sync fails with one message and is made up for by the next start."""
    clone = make_clone(tmp_path / "clone", small=RECIPE)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/nowhere/mlflow.db")
    head = start(clone, "small")
    head.communicate(timeout=200)
    assert head.returncode != 0
    assert (clone / "results/small/report/pr.md").exists()
    assert not (clone / "results/small/receipt.json").exists()
    log = (clone / "results/small/logs/track.log").read_text()
    assert log.startswith("error: ")
    assert "Traceback" not in log
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    run(clone, "small")
    assert (clone / "results/small/receipt.json").exists()


def test_results_that_were_removed_are_due_again_although_the_report_is_there(tmp_path: Path) -> None:
    """Snakemake asks for the report only; what it rests on is looked for before Snakemake begins."""
    clone = make_clone(tmp_path / "clone", small=RECIPE)
    run(clone, "small")
    shutil.rmtree(clone / "results/small/observations")
    run(clone, "small")
    evidence = read_evidence(clone / "results/small")
    assert isinstance(evidence, Evidence)
    assert len(evidence.points) == 16
    next((clone / "results/small/observations/obs1/points").glob("*-c1.json")).unlink()
    run(clone, "small")
    healed = read_evidence(clone / "results/small")
    assert isinstance(healed, Evidence)
    assert len(healed.points) == 16
    assert "so far: improvement" in run(clone, "small")


def test_a_campaign_measured_here_keeps_its_folder_from_a_recorded_one_of_its_name(tmp_path: Path) -> None:
    """Two campaigns of one name never write over each other."""
    recorded = tmp_path / "results/recorded"
    for name in ("alone", "taken"):
        (recorded / name).mkdir(parents=True)
        (recorded / name / "plan.json").touch()
    (tmp_path / "results/taken").mkdir()
    (tmp_path / "results/taken/plan.json").touch()
    assert list(recorded_campaigns(recorded)) == ["alone"]


def test_a_recipe_that_needs_a_gpu_is_refused_where_none_is_seen(tmp_path: Path) -> None:
    """A laptop says at once what is missing and what to run instead, before any job."""
    recipe = RECIPE.replace("name: simulated, truth: {effect_pct: -4.0}", "name: k3model, preset: nano, device: cuda")
    clone = make_clone(tmp_path / "clone", small=recipe)
    done = subprocess.run(
        [sys.executable, "-m", "k3bench", "run", "recipes/small.yaml"],
        cwd=clone,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the recipe asks for a CUDA device")
    assert "recipes/laptop.yaml runs anywhere" in done.stderr
    assert not (clone / "results/small").exists()
