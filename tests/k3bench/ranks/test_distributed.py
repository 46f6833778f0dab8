"""A distributed recipe through the front door on this machine, two processes over gloo, and what is refused before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k3bench.cli import main
from k3bench.compare.provenance import setting_of
from k3bench.errors import RecipeError
from k3bench.measure.allocation import load_spec
from k3bench.measure.command import measure_once
from k3bench.recipe import parse_recipe
from k3bench.records.equivalence import Equivalence
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Measurement
from k3bench.records.plan import Plan
from k3bench.store import CampaignFolder, read_record

ROOT = Path(__file__).parents[3]
RECIPE = """
schema: k3bench.recipe/1
name: tp2
title: nano on two ranks
engine: {name: k3model, preset: nano, device: cpu, options: {tp_size: 2, collectives: distributed}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 4, osl_tokens: 3, levels: [1], batches: 5, warmup_batches: 0}
observations: [{id: obs1, rack: local, pair: p1}]
blocks: 1
primary_level: 1
resources: {minutes: 10}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignFolder:
    """An empty clone with the recipe; ranks find the sources as this process does."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'workflow'}:{ROOT}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    return CampaignFolder(tmp_path / "results" / "tp2")


def planned(folder: CampaignFolder, recipe: str = RECIPE) -> None:
    """plan.json and both builds."""
    Path("tp2.yaml").write_text(recipe)
    assert main(["plan", "tp2.yaml", "--out", str(folder.plan)]) == 0
    for arm in ("before", "after"):
        assert main(["build", str(folder.plan), f"p1/{arm}"]) == 0


def test_two_ranks_are_measured_and_verified_by_the_same_commands(folder: CampaignFolder) -> None:
    """Every point says that both ranks were there and chose the same tokens; the fingerprint says where they ran."""
    planned(folder)
    assert main(["measure", str(folder.plan), "obs1/alloc1", "--here"]) == 0
    points = list(folder.records("obs1", "points", Measurement))
    assert len(points) == 4
    for point in points:
        checks = {check.name: check for check in point.checks}
        assert all(check.ok for check in point.checks)
        assert {"ranks_present", "ranks_agree", "tokens_repeat"} <= checks.keys()
        assert re.fullmatch(r"2 ranks on 1 node: 0 \S+ cpu, 1 \S+ cpu; gloo x2", checks["ranks_present"].detail)
    assert setting_of(read_record(folder.plan, Plan), points).preset == "nano on 2 ranks"
    for found in folder.records("obs1", "fingerprints", Fingerprint):
        assert [place.index for place in found.stable.ranks] == [0, 1]
    assert main(["verify", str(folder.plan), "obs1", "--budget", "0"]) == 0
    rows = read_record(folder.equivalence("obs1"), Equivalence).rows
    late = [row for row in rows if "the time for probes, 0 s, was over" in row.reason]
    assert {row.status for row in late} == {"not_run"}
    assert next(row.what for row in late) == "2 ranks against one, float32"


def test_ranks_on_several_nodes_of_one_machine_are_a_row_that_says_why(folder: CampaignFolder) -> None:
    """Refused before anything is started; the campaign goes on with the others."""
    planned(folder, RECIPE.replace("resources: {minutes: 10}", "resources: {minutes: 10, nodes: 2}"))
    summary = measure_once(load_spec(folder.root, "obs1", "alloc1"), executor="local")
    assert summary.status == "failed"
    assert "2 ranks on 2 nodes cannot run on this machine alone" in summary.reason
    assert "--profile slurm" in summary.reason


@pytest.mark.parametrize(
    ("options", "resources", "said"),
    [
        ("tp_size: 2", "minutes: 10", "add `collectives: distributed`"),
        ("tp_size: 3, collectives: distributed", "minutes: 10", r"kda_heads = 4 does not divide by tp_size = 3"),
        ("tp_size: 4, collectives: distributed", "nodes: 3", "cannot be spread evenly over 3 nodes"),
        ("tp_size: 4, collectives: distributed", "nodes: 2, gpus_per_node: 4", "4 ranks on 2 x 4 GPUs"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_the_recipe(options: str, resources: str, said: str) -> None:
    """Before anything is submitted."""
    text = RECIPE.replace("tp_size: 2, collectives: distributed", options).replace("minutes: 10", resources)
    with pytest.raises(RecipeError, match=said):
        parse_recipe(text, where="tp2.yaml", name="tp2")


def test_a_gpu_a_rank(tmp_path: Path) -> None:
    """A recipe for CUDA says how many GPUs a node gives; a served engine has one rank."""
    cuda = RECIPE.replace("device: cpu", "device: cuda")
    with pytest.raises(RecipeError, match="a rank needs a GPU, and none is asked for"):
        parse_recipe(cuda, where="tp2.yaml", name="tp2")
    text = cuda.replace("minutes: 10", "minutes: 10, gpus_per_node: 2")
    assert parse_recipe(text, where="tp2.yaml", name="tp2").engine.ranks == 2
    with pytest.raises(RecipeError, match="engine k3model-served runs on one rank, not on 2"):
        parse_recipe(text.replace("name: k3model,", "name: k3model-served,"), where="tp2.yaml", name="tp2")
