"""Recorded traces against independently computed values, to the nanosecond, through the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3bench.records.residency import Residency
from k3bench.trace.command import main
from tests.k3bench.trace.golden import H200, SHARED

GRAPH_MODE = "twostream_graphmode_nsys2025.3.sqlite.xz"


def oracles(root: Path) -> list[Path]:
    """Every oracle whose trace can be measured."""
    found = sorted([*root.rglob("*.oracle.json"), *root.rglob("*.family.json")])
    return [path for path in found if GRAPH_MODE not in path.name]


def trace_of(oracle: Path) -> Path:
    return oracle.with_name(oracle.name.removesuffix(".oracle.json").removesuffix(".family.json"))


@pytest.mark.parametrize("oracle", oracles(H200), ids=lambda p: p.name)
def test_our_own_traces_equal_their_oracles(oracle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Busy, two-stream, same-stream, per-step and per-kernel values are equal, and every one is printed."""
    assert main([str(trace_of(oracle)), "--against", str(oracle)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} values, all equal"
    assert len(lines) > 20


@pytest.mark.parametrize("oracle", oracles(SHARED) or [None], ids=lambda p: p.name if p else "none")
def test_traces_of_others_equal_their_oracles(oracle: Path | None) -> None:
    """Third-party traces, 2021 to today, NVIDIA and AMD, lie outside the repository."""
    if oracle is None:
        pytest.skip("the shared folder of third-party traces is not here")
    assert main([str(trace_of(oracle)), "--against", str(oracle)]) == 0


def test_same_stream_overlap_is_no_residency(tmp_path: Path) -> None:
    """A real B200 trace with programmatic dependent launch: 0.069 ms overlap on one stream, residency exactly 0."""
    trace = SHARED / "tracelens" / "b200_eager.json.gz"
    if not trace.exists():
        pytest.skip("the shared folder of third-party traces is not here")
    assert main([str(trace), "--out", str(tmp_path / "r.json"), "--quiet"]) == 0
    window = Residency.from_bytes((tmp_path / "r.json").read_bytes()).traces[0].devices[0].window
    assert (window.residency_ns, window.same_lane_ns, window.conc2_ns) == (0, 69278, 69278)


def test_a_difference_is_named_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An oracle that is off by one nanosecond is found."""
    oracle = H200 / "twostream_node_nsys2025.3.sqlite.xz.oracle.json"
    changed = tmp_path / "oracle.json"
    changed.write_text(oracle.read_text().replace('"busy_ns": 6527784', '"busy_ns": 6527785', 1))
    assert main([str(trace_of(oracle)), "--against", str(changed)]) == 1
    assert "DIFFERS all/device 0 busy_ns: expected 6527785, got 6527784" in capsys.readouterr().out


def test_graph_mode_is_refused_with_the_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve replays without kernels are unknown, not zero: no record is written."""
    assert main([str(H200 / GRAPH_MODE), "--out", str(tmp_path / "r.json")]) == 2
    said = capsys.readouterr().err
    assert "graph mode" in said
    assert "--cuda-graph-trace=node" in said
    assert not (tmp_path / "r.json").exists()


def residency_by_family(path: Path, *more: str, out: Path) -> dict[str, tuple[float, float]]:
    assert main([str(path), *more, "--out", str(out), "--quiet"]) == 0
    rows = Residency.from_bytes(out.read_bytes()).summaries
    return {r.family: (r.busy_ms_per_step, r.two_stream_residency_ms_per_step) for r in rows}


def test_three_formats_of_one_program_agree(tmp_path: Path) -> None:
    """nsys nodes, CUPTI tags and lane order against the capture trace: residency by family within 3 % of busy."""
    out = tmp_path / "r.json"
    nsys = residency_by_family(H200 / "torch_node_nsys2025.3.sqlite.xz", out=out)
    capture = str(H200 / "torch211_kineto_capture.json.gz")
    kineto = residency_by_family(H200 / "torch211_kineto_replay.json.gz", "--capture", capture, "--families", out=out)
    cupti = residency_by_family(H200 / "torch211_cupti_python.json.gz", out=out)
    assert set(nsys) == set(kineto) == set(cupti) == {"KDA", "MLA", "MoE"}
    for family, (busy, residency) in nsys.items():
        for other in (kineto, cupti):
            assert abs(other[family][1] - residency) <= 0.03 * busy


def test_the_record_is_the_same_bytes_every_time(tmp_path: Path) -> None:
    """Two runs over one file write one record."""
    for name in ("a.json", "b.json"):
        assert main([str(H200 / "twostream_node_nsys2025.3.sqlite.xz"), "--out", str(tmp_path / name), "--quiet"]) == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
