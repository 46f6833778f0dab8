"""Ideal and achieved gain of forks, and the claims that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3bench.records.residency import Residency
from k3bench.trace.command import main
from k3bench.trace.headroom import overlap_seen
from tests.k3bench.trace.golden import ROOT
from tests.k3bench.trace.nsys_files import FORKED, SERIAL, Node, decode


def record(tmp_path: Path, *more: str, before: list[Node] = SERIAL, after: list[Node] = FORKED) -> Residency:
    first, second = decode(tmp_path / "before.sqlite", before), decode(tmp_path / "after.sqlite", after)
    out = tmp_path / "r.json"
    assert (
        main(["--before", str(first), "--after", str(second), "--families", "--out", str(out), "--quiet", *more]) == 0
    )
    return Residency.from_bytes(out.read_bytes())


def test_the_ideal_holds_kernels_and_gaps_of_the_shorter_leg(tmp_path: Path) -> None:
    """A side leg of 2 and 3 us with a gap of 1 us can hide 6 us, of which 5 are kernels; 6.5 were gained."""
    found = record(tmp_path).headroom
    assert found is not None
    (fork,) = found.forks
    assert (fork.fork, fork.family, fork.already_forked) == ("stage", "KDA", False)
    assert fork.ideal_ms_per_step == pytest.approx(0.006)
    assert fork.ideal_kernels_only_ms_per_step == pytest.approx(0.005)
    assert fork.achieved_ms_per_step == pytest.approx(0.0065)
    assert fork.achieved_over_ideal == pytest.approx(6.5 / 6)


def test_a_claim_above_the_ideal_is_flagged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gain that the forks cannot give is said so."""
    found = record(tmp_path, "--claimed-gain", "0.02").headroom
    assert found is not None
    assert found.claimed_beyond_ideal is True
    found = record(tmp_path, "--claimed-gain", "0.004").headroom
    assert found is not None
    assert found.claimed_beyond_ideal is False


def test_a_fork_that_was_on_before_is_not_of_this_change(tmp_path: Path) -> None:
    """Legs that ran side by side in the before trace already are listed, and stay out of the totals."""
    found = record(tmp_path, before=FORKED).headroom
    assert found is not None
    assert found.forks[0].already_forked is True
    assert found.ideal_ms_per_step == 0
    assert found.achieved_over_ideal is None


def test_nested_forks_each_have_their_legs(tmp_path: Path) -> None:
    """An inner fork inside an outer main leg: its operations count in both."""
    nodes = [
        Node(0, 4_000, 7, ("L0.MoE", "fork.outer.main", "fork.inner.main"), "a"),
        Node(5_000, 7_000, 7, ("L0.MoE", "fork.outer.main", "fork.inner.side"), "b"),
        Node(8_000, 11_000, 7, ("L0.MoE", "fork.outer.side"), "c"),
    ]
    found = record(tmp_path, before=nodes, after=nodes).headroom
    assert found is not None
    assert {f.fork: round(f.ideal_ms_per_step, 6) for f in found.forks} == {"inner": 0.002, "outer": 0.003}


def test_arms_stand_apart_in_the_summaries(tmp_path: Path) -> None:
    """One row per arm and family, residency only after."""
    rows = {(r.arm, r.family): r.two_stream_residency_ms_per_step for r in record(tmp_path).summaries}
    assert rows == {
        ("before", "KDA"): 0,
        ("before", "MoE"): 0,
        ("after", "KDA"): pytest.approx(0.0055),
        ("after", "MoE"): 0,
    }


def test_both_arms_have_their_pictures(tmp_path: Path) -> None:
    """One layer of each family: bars with legs, two rows after, one before."""
    before, after = record(tmp_path).traces
    kda_before, kda_after = (next(p for p in t.pictures if p.family == "KDA") for t in (before, after))
    assert {b.row for b in kda_before.bars} == {0}
    assert {b.row for b in kda_after.bars} == {0, 1}
    assert [(b.name, b.start_ns, b.leg) for b in kda_after.bars][:2] == [("gemm", 0, "main"), ("copy", 1000, "side")]


def test_bars_of_different_lanes_never_share_a_row_at_once(tmp_path: Path) -> None:
    """Replay lanes are handed on from leg to leg; a row shows one of them at a time."""
    lanes = [(0, 5, 7), (1, 3, 8), (6, 9, 8), (7, 12, 7), (10, 14, 9), (13, 15, 8)]
    nodes = [Node(1000 * a, 1000 * b, lane, ("L0.KDA",)) for a, b, lane in lanes]
    (picture,) = record(tmp_path, before=nodes, after=nodes).traces[0].pictures
    assert len(picture.bars) == len(nodes)
    for one in picture.bars:
        for two in picture.bars:
            apart = one.end_ns <= two.start_ns or two.end_ns <= one.start_ns
            assert one is two or apart or one.row != two.row


def test_published_figures_allow_only_the_overlap_seen() -> None:
    """The figures of the pull request: overlap seen, its share of the step, gaps not shown."""
    text = overlap_seen([0.7016, 0.2829], 13.2, {"observation 2": 0.53, "observation 3": 0.81})
    assert text == (
        "overlap seen 0.985 ms a step, 7.5 % of 13.2 ms; gaps not shown;"
        " observation 2 saved 0.53 ms, observation 3 saved 0.81 ms"
    )


def test_the_pull_request_allows_only_the_overlap_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """The same from the recorded figures of the pull request, through the command."""
    assert main(["--published", str(ROOT / "results" / "recorded" / "pr-17103" / "reported.json")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("overlap seen 0.985 ms a step, 7.5 % of 13.2 ms; gaps not shown;")
    assert "0.53 ms" in said
    assert "0.81 ms" in said
