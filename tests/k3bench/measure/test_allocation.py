"""An allocation: points on disk before the next begins, blocks whole or superseded, one accepted record each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from k3bench.build import build_arm
from k3bench.errors import MeasureError, RecordError
from k3bench.evidence import Evidence, read_evidence
from k3bench.measure.allocation import load_spec, run_allocation, summarise
from k3bench.measure.command import measure
from k3bench.plan import make_plan
from k3bench.recipe import parse_recipe
from k3bench.records.measurement import Measurement
from k3bench.store import CampaignFolder, write_record

RECIPES = Path(__file__).parents[3] / "recipes"


def campaign(root: Path, *changes: tuple[str, str]) -> CampaignFolder:
    """A planned and built simulated campaign."""
    text = (RECIPES / "simulated.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder = CampaignFolder(root / "results/simulated")
    plan = make_plan(parse_recipe(text, where="simulated.yaml", name="simulated"))
    write_record(folder.plan, plan)
    for pair in sorted({o.pair for o in plan.observations}):
        for arm in ("before", "after"):
            write_record(folder.build(pair, arm), build_arm(plan, pair, arm))  # type: ignore[arg-type]
    return folder


def run(folder: CampaignFolder, attempt: int = 1) -> None:
    """Measure obs1/alloc1 in this process."""
    run_allocation(root=str(folder.root), observation="obs1", allocation="alloc1", attempt=attempt)


def test_every_planned_point_is_accepted_once_with_raw_values_and_fingerprint(tmp_path: Path) -> None:
    """Two blocks of four runs at four levels are 32 points, each with the files it names."""
    folder = campaign(tmp_path)
    run(folder)
    summary = summarise(load_spec(folder.root, "obs1", "alloc1"))
    assert (summary.status, summary.planned_points, len(summary.accepted)) == ("measured", 32, 32)
    assert summary.superseded == ()
    for point in folder.records("obs1", "points", Measurement):
        assert folder.raw("obs1", str(point.name)).exists()
        assert folder.fingerprint("obs1", point.fingerprint).exists()
        assert point.simulated
        assert point.valid


def test_measuring_again_measures_nothing(tmp_path: Path) -> None:
    """Finished blocks are kept as they are."""
    folder = campaign(tmp_path)
    run(folder)
    before = {p: p.stat().st_mtime_ns for p in folder.root.rglob("*") if p.is_file()}
    run(folder, attempt=2)
    assert before == {p: p.stat().st_mtime_ns for p in folder.root.rglob("*") if p.is_file()}


def test_a_broken_block_is_measured_again_whole_and_its_fragments_are_superseded(tmp_path: Path) -> None:
    """A block without its closing record does not count, however many of its points exist."""
    folder = campaign(tmp_path)
    run(folder)
    (folder.observation("obs1") / "blocks/b001-a1.json").unlink()
    for fragment in sorted((folder.observation("obs1") / "points").glob("b001-a1-r3-*")):
        fragment.unlink()
    run(folder, attempt=2)
    summary = summarise(load_spec(folder.root, "obs1", "alloc1"))
    attempts = Counter(ref.point.split("-")[1] for ref in summary.accepted if ref.point.startswith("b001"))
    assert attempts == {"a2": 16}
    assert len(summary.accepted) == 32
    assert sorted({ref.point[:7] for ref in summary.superseded}) == ["b001-a1"]
    assert len(summary.superseded) == 12


def test_a_point_that_was_changed_on_disk_stops_counting_and_its_block_is_redone(tmp_path: Path) -> None:
    """The closing record holds digests, so a tampered point breaks its block."""
    folder = campaign(tmp_path)
    run(folder)
    path = next((folder.observation("obs1") / "points").glob("b000-a1-r0-*-c1.json"))
    path.write_bytes(path.read_bytes().replace(b'"tpot_median_ms":1', b'"tpot_median_ms":2'))
    assert summarise(load_spec(folder.root, "obs1", "alloc1")).status == "failed"
    run(folder, attempt=2)
    assert summarise(load_spec(folder.root, "obs1", "alloc1")).status == "measured"


def test_a_planted_failure_is_a_record_that_says_invalid_and_why(tmp_path: Path) -> None:
    """An invalid run is kept, counted, and never silently dropped."""
    folder = campaign(tmp_path, ("heavy_tails: true", "fail_share: 0.3"))
    run(folder)
    evidence = measured(folder)
    invalid = [p for p in evidence.points if not p.valid]
    assert 0 < len(invalid) < len(evidence.points)
    assert {c.detail for p in invalid for c in p.checks if not c.ok} == {"planted failure"}


def measured(folder: CampaignFolder) -> Evidence:
    """The campaign's evidence after writing its summary."""
    write_record(folder.allocation("obs1", "alloc1"), summarise(load_spec(folder.root, "obs1", "alloc1")))
    evidence = read_evidence(folder.root)
    assert isinstance(evidence, Evidence)
    return evidence


def test_evidence_refuses_a_point_whose_digest_differs_from_the_summary(tmp_path: Path) -> None:
    """What compare reads is what was measured."""
    folder = campaign(tmp_path)
    run(folder)
    measured(folder)
    path = next((folder.observation("obs1") / "points").glob("b000-a1-r0-*-c1.json"))
    path.write_bytes(path.read_bytes().replace(b'"rack":"d157"', b'"rack":"d158"'))
    with pytest.raises(RecordError, match="digest differs"):
        read_evidence(folder.root)


def test_a_name_that_is_not_planned_lists_the_valid_ones(tmp_path: Path) -> None:
    """`obs9/alloc1` is answered with what exists."""
    folder = campaign(tmp_path)
    with pytest.raises(MeasureError, match="obs1/alloc1"):
        load_spec(folder.root, "obs9", "alloc1")


def test_an_engine_that_cannot_run_here_is_a_failed_row_and_the_campaign_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA without CUDA: the allocation's summary says why, and the exit code is 0."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    text = (RECIPES / "laptop.yaml").read_text().replace("device: auto", "device: cuda")
    folder = CampaignFolder(tmp_path / "results/laptop")
    plan = make_plan(parse_recipe(text, where="x", name="laptop"))
    write_record(folder.plan, plan)
    for pair in ("p1", "p2"):
        for arm in ("before", "after"):
            write_record(folder.build(pair, arm), build_arm(plan, pair, arm))  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    assert measure(folder.plan, ("obs1", "alloc1"), executor="here", out=None) == 0
    evidence = read_evidence(folder.root)
    assert isinstance(evidence, Evidence)
    assert evidence.allocations[0].status == "failed"
    assert "no CUDA device" in evidence.allocations[0].reason
