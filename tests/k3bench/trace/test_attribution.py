"""Families without node ranges: capture records, order of capture, patterns; and refusals with counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3bench.records.residency import Residency
from k3bench.trace.command import main
from tests.k3bench.trace.golden import H200
from tests.k3bench.trace.kineto_files import K, call, kernel, write

Nodes = list[tuple[str, str | None]]


def captured(
    *ranges: tuple[str, int, int], n_nodes: int, nodes: list[tuple[str, str | None]] | None = None
) -> dict[str, Any]:
    graph: dict[str, Any] = {
        "level": 1,
        "n_nodes": n_nodes,
        "ranges": [{"name": name, "first_node": first, "end_node": end} for name, first, end in ranges],
    }
    if nodes is not None:
        graph["nodes"] = [{"kind": kind, "name": name} for kind, name in nodes]
    return {"schema": "k3bench.capture/1", "engine": "test", "graphs": [graph]}


def replays(*ops: tuple[float, float, int, str], ids: bool, n: int = 3) -> list[str]:
    """The same operations (start us, length us, lane, name), n times; node ids where asked."""
    events = []
    for step in range(n):
        base = 100 * (step + 1)
        events.append(call("cudaGraphLaunch", 50 + step, f"{base - 1}.000"))
        for node, (start, length, lane, name) in enumerate(ops):
            known = {"node": 9 << 32 | node, "graph": 9} if ids else {}
            events.append(kernel(K(f"{base + start:.3f}", f"{length:.3f}", lane, name, 50 + step, **known)))
    return events


def run(tmp_path: Path, events: list[str], capture: dict[str, Any] | None, *more: str) -> tuple[int, Residency | None]:
    trace, out = write(tmp_path / "t.json", events), tmp_path / "r.json"
    extra = list(more)
    if capture is not None:
        (tmp_path / "capture.json").write_text(json.dumps(capture))
        extra += ["--capture", str(tmp_path / "capture.json")]
    code = main([str(trace), *extra, "--out", str(out), "--quiet"])
    return code, Residency.from_bytes(out.read_bytes()) if code == 0 else None


def busy(record: Residency | None) -> dict[str, float]:
    assert record is not None
    return {row.family: round(1000 * row.busy_ms_per_step, 6) for row in record.summaries}


def test_node_ids_meet_the_capture_record(tmp_path: Path) -> None:
    """Kineto with graph ids: node numbers of the replay are those of the capture, whatever the order in time."""
    events = replays((5, 3, 8, "g"), (0, 4, 7, "g"), (9, 2, 7, "g"), ids=True)
    code, record = run(tmp_path, events, captured(("L0.KDA", 0, 2), ("L0.MoE", 2, 3), n_nodes=3), "--families")
    assert code == 0
    assert busy(record) == {"KDA": 7.0, "MoE": 2.0}
    assert record is not None
    assert record.traces[0].attribution.method == "capture_record"


def test_other_nodes_of_a_capture_take_no_part(tmp_path: Path) -> None:
    """Event and empty nodes have numbers but no device interval."""
    nodes = [("kernel", None), ("other", None), ("kernel", None)]
    events = [e.replace(str(9 << 32 | 1), str(9 << 32 | 2)) for e in replays((0, 4, 7, "g"), (5, 2, 7, "g"), ids=True)]
    code, record = run(
        tmp_path, events, captured(("L0.KDA", 0, 1), ("L0.MoE", 1, 3), n_nodes=3, nodes=nodes), "--families"
    )
    assert code == 0
    assert busy(record) == {"KDA": 4.0, "MoE": 2.0}


def test_a_record_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A capture of other size cannot be the one that was replayed."""
    code, _ = run(tmp_path, replays((0, 4, 7, "g"), ids=True), captured(("L0.KDA", 0, 5), n_nodes=5), "--families")
    assert code == 2
    assert "0 captured graphs" in capsys.readouterr().err


def test_order_of_capture_without_node_ids(tmp_path: Path) -> None:
    """torch 2.11: blocks by time, confirmed by lane order; legs by names that only one leg has."""
    ops = ((0, 5, 7, "gemm"), (1, 2, 8, "copy"), (3.5, 1, 8, "mix"), (6, 3, 7, "core"), (10, 4, 7, "gemm"))
    ranges = [("L0.KDA", 0, 4), ("fork.stage.main", 0, 1), ("fork.stage.side", 1, 3), ("L0.MoE", 4, 5)]
    names = [("kernel", n) for n in ("gemm", "copy", "mix", "core", "gemm")]
    code, record = run(tmp_path, replays(*ops, ids=False), captured(*ranges, n_nodes=5, nodes=names), "--families")
    assert code == 0
    assert record is not None
    (trace,) = record.traces
    assert busy(record) == {"KDA": 8.0, "MoE": 4.0}
    assert (trace.attribution.method, trace.attribution.n_leg_ambiguous) == ("lane_ordinal", 0)
    assert [(f.fork, f.shorter_leg_span_ns_per_step, f.overlapped_ns_per_step) for f in trace.forks] == [
        ("stage", 3500.0, 3000.0)
    ]


def test_copies_of_one_leg_are_told_by_their_kind(tmp_path: Path) -> None:
    """Copy nodes have no name in a graph; Kineto calls them Memcpy, and no kernel can be taken for one."""
    ops = ((0, 5, 7, "gemm"), (1, 2, 8, "Memcpy DtoD (Device -> Device)"), (6, 3, 7, "core"))
    ranges = [("L0.KDA", 0, 3), ("fork.stage.main", 0, 1), ("fork.stage.side", 1, 2)]
    names: Nodes = [("kernel", "gemm"), ("memcpy", None), ("kernel", "core")]
    code, record = run(tmp_path, replays(*ops, ids=False), captured(*ranges, n_nodes=3, nodes=names), "--families")
    assert code == 0
    assert record is not None
    assert record.traces[0].attribution.n_leg_ambiguous == 0
    assert [f.shorter_leg_span_ns_per_step for f in record.traces[0].forks] == [2000.0]


def test_legs_that_names_cannot_tell_are_counted_not_guessed(tmp_path: Path) -> None:
    """The same kernel on both legs: family and layer are certain, the legs are not, and no headroom is claimed."""
    ops = ((0, 5, 7, "gemm"), (1, 2, 8, "gemm"), (6, 3, 7, "core"))
    ranges = [("L0.KDA", 0, 3), ("fork.stage.main", 0, 1), ("fork.stage.side", 1, 2)]
    names = [("kernel", n) for n in ("gemm", "gemm", "core")]
    code, record = run(tmp_path, replays(*ops, ids=False), captured(*ranges, n_nodes=3, nodes=names), "--families")
    assert code == 0
    assert record is not None
    assert record.traces[0].attribution.n_leg_ambiguous == 2
    assert record.traces[0].forks == ()


def test_replays_that_disagree_are_refused_with_the_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operation that lies in another block in one replay cannot be placed surely."""
    events = replays((0, 5, 7, "a"), (6, 2, 8, "a"), (9, 2, 7, "a"), ids=False, n=2)
    events += [
        e.replace('"correlation": 50', '"correlation": 70')
        for e in replays((6, 5, 7, "a"), (0, 2, 8, "a"), (12, 2, 7, "a"), ids=False, n=1)
    ]
    events = [e.replace('"ts": 1', '"ts": 9') if '"correlation": 70' in e else e for e in events]
    code, _ = run(
        tmp_path, events, captured(("L0.KDA", 0, 1), ("L0.MoE", 1, 3), n_nodes=3), "--families", "--warm-up", "0"
    )
    assert code == 2
    said = capsys.readouterr().err
    assert "2 of 3 operations a step cannot be matched surely" in said
    assert "torch 2.12 or later" in said


def test_blocks_that_run_side_by_side_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a segment begins on another lane before the last one ended, order says nothing."""
    events = replays((0, 5, 7, "a"), (3, 4, 8, "b"), ids=False)
    code, _ = run(tmp_path, events, captured(("L0.KDA", 0, 1), ("L0.MoE", 1, 2), n_nodes=2), "--families")
    assert code == 2
    assert "1 of 2 operations" in capsys.readouterr().err


def test_names_that_do_not_fit_the_capture_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A capture of the same size but other kernels is another graph; mangled names fit the function they spell."""
    events = replays((0, 5, 7, "void at::native::reduce_kernel<512>(int)"), ids=False)
    right = captured(("L0.KDA", 0, 1), n_nodes=1, nodes=[("kernel", "_ZN2at6native13reduce_kernelILi512EEEvi")])
    assert run(tmp_path, events, right, "--families")[0] == 0
    wrong = captured(("L0.KDA", 0, 1), n_nodes=1, nodes=[("kernel", "gather_kernel")])
    assert run(tmp_path, events, wrong, "--families")[0] == 2
    assert "1 of 1 operations" in capsys.readouterr().err


def test_kernel_names_and_anchors_of_a_recipe(tmp_path: Path) -> None:
    """Anchors open a segment; kernels that no row names belong to the anchor before them."""
    table = tmp_path / "recipe.yaml"
    table.write_text(
        "trace:\n  families:\n"
        "  - {kernel: '^kda_', family: KDA, anchor: true}\n"
        "  - {kernel: '^mla_', family: MLA, anchor: true}\n"
        "  - {kernel: 'router', family: MoE, anchor: true}\n"
        "  - {kernel: 'sample', family: other}\n"
    )
    ops = [(0, 2, 7, "kda_in"), (3, 2, 7, "gemm"), (6, 1, 7, "router"), (8, 4, 7, "gemm")]
    ops += [(13, 2, 7, "mla_q"), (16, 2, 7, "gemm"), (19, 1, 7, "router"), (21, 4, 7, "gemm"), (26, 1, 7, "sample")]
    code, record = run(tmp_path, replays(*ops, ids=False), None, "--families", str(table))
    assert code == 0
    assert busy(record) == {"KDA": 4.0, "MLA": 4.0, "MoE": 10.0, "other": 1.0}
    assert record is not None
    assert {r.family: r.segments_per_step for r in record.summaries} == {"KDA": 1, "MLA": 1, "MoE": 2, "other": 1}
    assert record.traces[0].attribution.method == "patterns"


def test_a_bad_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row without a pattern, a broken expression, an unknown key: named before any work."""
    for content in (
        "families: [{family: KDA}]",
        "families: [{family: KDA, kernel: '('}]",
        "families: [{family: KDA, kernle: x}]",
    ):
        table = tmp_path / "table.yaml"
        table.write_text(content)
        code, _ = run(tmp_path, replays((0, 5, 7, "a"), ids=False), None, "--families", str(table))
        assert code == 2
        assert "no table of family patterns" in capsys.readouterr().err


def test_asked_families_without_a_capture_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Kineto of torch 2.11 alone cannot tell families; the message says what can."""
    assert main([str(H200 / "torch211_kineto_replay.json.gz"), "--families"]) == 2
    assert "--capture" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ['{"schema": "k3bench.capture/2", "graphs": []}', "[]", '{"schema": "k3bench.capture/1"}', "{"]
)
def test_a_file_that_is_no_capture_record_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    """Another version, another shape, broken JSON."""
    path = tmp_path / "capture.json"
    path.write_text(content)
    assert main([str(H200 / "torch211_kineto_replay.json.gz"), "--capture", str(path)]) == 2
    assert "no capture record" in capsys.readouterr().err
