"""Weak evidence is said to be weak; two records of one program are held against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3bench.records.residency import Residency
from k3bench.trace.command import main
from tests.k3bench.trace.nsys_files import FORKED, SERIAL, Node, decode


def record(path: Path, out: Path, *more: str) -> Residency:
    assert main([str(path), "--families", "--out", str(out), "--quiet", *more]) == 0
    return Residency.from_bytes(out.read_bytes())


def codes(found: Residency) -> set[str]:
    return {w.code for w in found.traces[0].warnings}


def test_an_overlap_below_the_clock_grid_is_no_evidence(tmp_path: Path) -> None:
    """One overlap of 32 ns lies within the uncertainty of its two ends."""
    nodes = [Node(0, 10_000, 7, ("L0.KDA",)), Node(9_968, 12_000, 8, ("L0.KDA",))]
    found = record(decode(tmp_path / "t.sqlite", nodes), tmp_path / "r.json")
    assert "below_clock_grid" in codes(found)
    wide = [nodes[0], Node(9_000, 12_000, 8, ("L0.KDA",))]
    assert "below_clock_grid" not in codes(record(decode(tmp_path / "t.sqlite", wide), tmp_path / "r.json"))


def test_a_profiler_that_slows_the_step_is_said(tmp_path: Path) -> None:
    """The trace's own step period against the unprofiled step time that was given: 100 us against 80."""
    trace = decode(tmp_path / "t.sqlite", FORKED)
    found = record(trace, tmp_path / "r.json", "--unprofiled-step", "0.08")
    assert found.traces[0].profiled.profiled_over_unprofiled == pytest.approx(1.25)
    assert "profiler_slows" in codes(found)
    assert "profiler_slows" not in codes(record(trace, tmp_path / "r.json", "--unprofiled-step", "0.099"))


def test_two_records_that_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Residency by family, in percent of busy time, and the bound."""
    moved = [n._replace(start=n.start + 100, end=n.end + 100) if n.name == "copy" else n for n in FORKED]
    for name, nodes in (("a", FORKED), ("b", moved)):
        record(decode(tmp_path / f"{name}.sqlite", nodes), tmp_path / f"{name}.json")
    assert main(["--agree", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "all within 3 % of busy"


def test_two_records_that_do_not_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Forked against serial is another program."""
    for name, nodes in (("a", FORKED), ("b", SERIAL)):
        record(decode(tmp_path / f"{name}.sqlite", nodes), tmp_path / f"{name}.json")
    assert main(["--agree", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert "1 beyond 3 % of busy" in capsys.readouterr().out


def test_records_of_different_families_are_no_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A family that one record lacks is named."""
    record(decode(tmp_path / "a.sqlite", FORKED), tmp_path / "a.json")
    record(decode(tmp_path / "b.sqlite", FORKED[:4]), tmp_path / "b.json")
    assert main(["--agree", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "trace MoE" in capsys.readouterr().err
