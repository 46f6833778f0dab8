"""A build pair that could not be made is a row with its reason in every later stage."""

from pathlib import Path

import pytest

from k3bench.cli import main
from k3bench.plan import make_plan
from k3bench.recipe import parse_recipe
from k3bench.records.builds import Unmade
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Allocation
from k3bench.store import CampaignFolder, read_record, write_record

RECIPE = """
schema: k3bench.recipe/1
name: unmade
title: A campaign whose second pair is not there
engine: {name: simulated, truth: {effect_pct: -4.0}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 16, osl_tokens: 8, levels: [1], batches: 5}
observations: [{id: obs1}, {id: obs2, pair: p2}]
blocks: 1
primary_level: 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignFolder:
    """A planned campaign: pair p1 is made, p2 is not."""
    monkeypatch.chdir(tmp_path)
    found = CampaignFolder(tmp_path / "results/unmade")
    write_record(found.plan, make_plan(parse_recipe(RECIPE, where="unmade.yaml", name="unmade")))
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/unmade.yaml").write_text(RECIPE)
    assert main(["build", str(found.plan), "p1", "--executor", "here"]) == 0
    for arm in ("before", "after"):
        write_record(found.build("p2", arm), Unmade(pair="p2", arm=arm, reason="did not start within 5 min"))
    return found


def test_what_could_not_be_built_is_not_measured_and_the_rest_is(folder: CampaignFolder, capsys) -> None:
    """The summary says why; status shows it."""
    assert main(["measure", str(folder.plan), "--executor", "here"]) == 0
    assert read_record(folder.allocation("obs1", "alloc1"), Allocation).status == "measured"
    missing = read_record(folder.allocation("obs2", "alloc1"), Allocation)
    assert (missing.status, missing.accepted) == ("failed", ())
    assert "build pair p2 was not made: did not start within 5 min" in missing.reason
    capsys.readouterr()
    assert main(["status", "recipes/unmade.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "2 allocations: 1 done, 1 failed" in shown
    assert "build pair p2 was not made" in shown


def test_what_could_not_be_built_is_a_probe_that_was_not_run(folder: CampaignFolder) -> None:
    """Never a pass."""
    assert main(["verify", str(folder.plan), "obs2"]) == 0
    rows = read_record(folder.equivalence("obs2"), Equivalence).rows
    assert [row.status for row in rows] == ["not_run"]
    assert "was not made" in rows[0].reason
