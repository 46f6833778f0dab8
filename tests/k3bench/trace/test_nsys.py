"""Nsight Systems exports: tables by their columns, nodes to ranges, steps, and what must be refused."""

from __future__ import annotations

import gzip
import sqlite3
import stat
from pathlib import Path

import pytest

from k3bench.errors import TraceError
from k3bench.records.residency import GraphResidency, TraceResidency
from k3bench.trace.analysis import Asked, analyse
from k3bench.trace.families import Grammar, Pattern
from k3bench.trace.readers import files
from tests.k3bench.trace.golden import H200
from tests.k3bench.trace.nsys_files import FORKED, PID, SERIAL, Export, Node, decode


def measured(path: Path, **asked: object) -> TraceResidency:
    return analyse(path, Asked(**asked)).result  # type: ignore[arg-type]


def only_graph(result: TraceResidency) -> GraphResidency:
    (graph,) = result.devices[0].graphs
    return graph


def test_nodes_lead_to_the_ranges_open_at_their_creation(tmp_path: Path) -> None:
    """Replay, clone, original, creation, innermost range: families with exact times per step."""
    graph = only_graph(measured(decode(tmp_path / "t.sqlite", FORKED), families=True))
    kda, moe = graph.families
    assert (kda.family, kda.all_ops.busy_per_step_ns, kda.all_ops.residency_per_step_ns) == (
        "KDA",
        (13_000, 13_000),
        (5_500, 5_500),
    )
    assert (moe.family, moe.all_ops.busy_ns, moe.all_ops.residency_ns, moe.segments_per_step) == ("MoE", 10_000, 0, 1)
    assert (graph.step_period_median_ns, graph.step_span_median_ns) == (100_000, 19_000)


def test_one_kernel_in_two_families_is_told_apart(tmp_path: Path) -> None:
    """The same kernel name belongs to the family of its node, and hides there only."""
    kda, moe = only_graph(measured(decode(tmp_path / "t.sqlite", FORKED))).families
    (in_kda,) = (k for k in kda.kernels if k.name == "gemm")
    (in_moe,) = (k for k in moe.kernels if k.name == "gemm")
    assert (in_kda.n, in_kda.duration_ns, in_kda.hidden_same_family_ns) == (2, 20_000, 11_000)
    assert (in_moe.n, in_moe.duration_ns, in_moe.hidden_any_op_ns) == (2, 10_000, 0)


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])
def test_the_node_table_is_found_by_its_columns(tmp_path: Path, table: str) -> None:
    """CUDA_GRAPH_EVENTS holds nodes up to 2023.4 and graphs afterwards."""
    path = decode(tmp_path / "t.sqlite", FORKED, node_table=table)
    if table != "CUDA_GRAPH_EVENTS":
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE CUDA_GRAPH_EVENTS (start, end, globalTid, graphId, originalGraphId, graphExecId)")
        base.commit()
        base.close()
    assert measured(path, families=True).attribution.n_unattributed_ops == 0


def test_the_oldest_schema_names_no_version(tmp_path: Path) -> None:
    """A 2021 export has no metadata table and no mangled names."""
    result = measured(decode(tmp_path / "t.sqlite", SERIAL, schema=None))
    assert result.schema_version is None
    assert result.devices[0].window.residency_ns == 0


def test_warm_up_and_incomplete_steps_are_dropped_and_counted(tmp_path: Path) -> None:
    """The first replay of a graph, and a replay that lacks operations, are no evidence."""
    export = Export(tmp_path / "t.sqlite")
    export.capture(SERIAL)
    export.replay(SERIAL, [100_000, 200_000, 300_000])
    export.replay(SERIAL[:3], [400_000], first_corr=2000)
    graph = only_graph(measured(export.done()))
    assert (graph.n_steps_seen, graph.n_steps_kept, graph.n_dropped_warm_up, graph.n_dropped_incomplete) == (4, 2, 1, 1)


def test_graphs_are_never_pooled(tmp_path: Path) -> None:
    """Two batch sizes in one trace are two rows, each with its own warm-up."""
    export = Export(tmp_path / "t.sqlite")
    export.capture(SERIAL)
    export.capture(FORKED, at=10_000, original=4, exec_id=5)
    export.replay(SERIAL, [100_000, 300_000])
    export.replay(FORKED, [200_000, 400_000, 500_000], exec_id=5, first_corr=2000)
    graphs = measured(export.done()).devices[0].graphs
    assert [(g.graph, g.n_steps_kept, g.total.residency_ns) for g in graphs] == [("2", 1, 0), ("5", 2, 11_000)]


def test_overlapping_replays_are_separate_steps(tmp_path: Path) -> None:
    """A launch that begins before the last one ended: residency per step unchanged, the overlap stands apart."""
    result = measured(decode(tmp_path / "t.sqlite", SERIAL, starts=(100_000, 200_000, 224_000)))
    assert only_graph(result).total.residency_ns == 0
    assert result.devices[0].cross_step_overlap_ns == 1_500


def test_correlations_belong_to_their_process(tmp_path: Path) -> None:
    """Two processes use the same correlation ids; their launches are different steps and their streams other lanes."""
    export = Export(tmp_path / "t.sqlite")
    export.replay([Node(0, 1000, 7)], [100_000, 200_000])
    other = PID + (1 << 24)
    export.base.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT start + 500, end + 500, deviceId, contextId, streamId,"
        f" correlationId, {other}, demangledName, shortName, graphNodeId FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    (device,) = measured(export.done(), warm_up=0).devices
    assert [(g.n_steps_kept, g.total.residency_ns) for g in device.graphs] == [(2, 0), (2, 0)]
    assert (len(device.lanes), device.window.residency_ns) == (2, 1000)


def test_a_capture_outside_the_window_is_refused_only_if_families_were_asked(tmp_path: Path) -> None:
    """Without node rows nothing says which kernel is which; a plain look at the file still works."""
    export = Export(tmp_path / "t.sqlite")
    export.replay(SERIAL, [100_000, 200_000])
    path = export.done()
    plain = measured(path)
    assert (plain.attribution.method, plain.attribution.unattributed_pct) == ("none", 100.0)
    with pytest.raises(TraceError, match="nothing says which operation belongs to which") as refused:
        measured(path, families=True)
    assert "before the graph is captured" in refused.value.fix


def test_unattributed_time_fails_above_the_threshold_only_if_asked(tmp_path: Path) -> None:
    """A tenth of the busy time without a range: its own bucket, and a refusal where families are evidence."""
    nodes = [*SERIAL, Node(26_000, 29_000, 7, (), "norm")]
    path = decode(tmp_path / "t.sqlite", nodes)
    plain = measured(path)
    assert plain.attribution.unattributed_ns == 6_000
    assert [f.family for f in only_graph(plain).families] == ["KDA", "MoE", "unattributed"]
    with pytest.raises(TraceError, match="% of the busy time has no family"):
        measured(path, families=True)
    assert measured(path, families=True, unattributed_limit_pct=15.0).attribution.n_unattributed_ops == 3


def test_lost_kernels_are_refused(tmp_path: Path) -> None:
    """A collector of another version kept a few kernels of many, and said nothing."""
    export = Export(tmp_path / "t.sqlite")
    for i in range(200):
        export.call("cudaLaunchKernel_v7000", 1000 * i, i)
        if i % 20 == 0:
            export.kernel(1000 * i + 10, 1000 * i + 500, 7, corr=i)
    with pytest.raises(TraceError, match="events were lost"):
        measured(export.done())


def test_launches_into_a_capture_are_not_lost(tmp_path: Path) -> None:
    """Captured launches never run by themselves."""
    export = Export(tmp_path / "t.sqlite")
    export.call("cudaLaunchKernel_v7000", 0, 1)
    export.kernel(10, 20, 7, corr=1)
    export.call("cudaStreamBeginCapture_v10000", 100, 2)
    for i in range(50):
        export.call("cudaLaunchKernel_v7000", 101 + i, 3 + i)
    export.call("cudaStreamEndCapture_v10000", 200, 60)
    export.call("cudaLaunchKernel_v7000", 300, 61)
    export.kernel(310, 320, 7, corr=61)
    assert measured(export.done()).counts.n_ops == 2


def test_a_collector_that_says_it_lost_events_is_refused(tmp_path: Path) -> None:
    """The diagnostic messages of the export are read."""
    export = Export(tmp_path / "t.sqlite")
    export.kernel(0, 10, 7)
    export.table("DIAGNOSTIC_EVENT", "timestamp, severity, text")
    export.rows(
        "DIAGNOSTIC_EVENT", [(0, 1, "Number of CUDA events collected: 1,773."), (1, 2, "37 CUDA events were dropped")]
    )
    with pytest.raises(TraceError, match="37 CUDA events were dropped"):
        measured(export.done())


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        ([], "holds no tables"),
        (["ENUM_CUDA_MEM_KIND (id, name)"], "no Nsight Systems export"),
        (["StringIds (id, value)", "META_DATA_EXPORT (name, value)"], "the importer had another version"),
        (["CUPTI_ACTIVITY_KIND_KERNEL (start, end)"], "has no column deviceId, streamId"),
        (["CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end)"], "graph mode"),
    ],
)
def test_half_exports_are_refused(tmp_path: Path, tables: list[str], what: str) -> None:
    """What a failed export or a mismatched importer leaves is not zero residency."""
    path = tmp_path / "t.sqlite"
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version = 1")
    for table in tables:
        base.execute(f"CREATE TABLE {table}")
    base.commit()
    base.close()
    with pytest.raises(TraceError, match=what):
        measured(path)


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    """A file may hold a query that never ends under the name of a table."""
    path = decode(tmp_path / "t.sqlite", SERIAL)
    base = sqlite3.connect(path)
    base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
    base.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    base.commit()
    base.close()
    with pytest.raises(TraceError):
        measured(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Half a database is not an empty one."""
    whole = decode(tmp_path / "t.sqlite", SERIAL * 40).read_bytes()
    half = tmp_path / "half.sqlite"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="damaged"):
        measured(half)


def test_a_node_that_changes_its_kernel_is_said(tmp_path: Path) -> None:
    """A graph updated in place runs other kernels under the same node ids."""
    export = Export(tmp_path / "t.sqlite")
    export.capture(SERIAL)
    export.replay(SERIAL, [100_000])
    export.replay([n._replace(name=n.name + "2") for n in SERIAL], [200_000], first_corr=2000)
    assert [w.code for w in measured(export.done()).warnings] == ["nodes_changed"]


def test_a_report_without_nsys_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No nsys on PATH: the exact command stands in the message."""
    monkeypatch.setenv("PATH", str(tmp_path))
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NSYS binary report")
    with pytest.raises(TraceError) as refused:
        measured(report)
    assert "nsys export --type sqlite -f true -o run.sqlite run.nsys-rep" in refused.value.fix


def fake_nsys(folder: Path, script: str) -> None:
    """An `nsys` on PATH that behaves as told."""
    tool = folder / "nsys"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)


def test_a_report_is_exported_with_the_nsys_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export is read and removed; the record names the report."""
    export = decode(tmp_path / "made.sqlite", FORKED)
    fake_nsys(tmp_path, f'[ "$1" = export ] && cp {export} "$7"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NSYS binary report")
    before = sorted(p.name for p in tmp_path.iterdir())
    result = measured(report)
    assert (result.file, result.devices[0].window.residency_ns) == ("run.nsys-rep", 16_500)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_export_of_another_version_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed export leaves half a sqlite; it is neither read nor kept."""
    fails = 'echo half > "$7"; echo ProtobufParseException >&2; exit 1'
    fake_nsys(tmp_path, f'case "$1" in --version) echo 2023.4.4.54;; *) {fails};; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NSYS binary report")
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(TraceError, match=r"2023\.4\.4\.54 failed: ProtobufParseException") as refused:
        measured(report)
    assert "another version" in refused.value.fix
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_the_recorded_versions_are_in_the_record() -> None:
    """Tool, schema, CUPTI and GPU stand beside every number."""
    result = measured(H200 / "twostream_node_nsys2025.3.sqlite.xz")
    found = (result.tool_version, result.schema_version, result.cupti_version, result.gpu)
    assert found == ("2025.3.2.0", "3.20.3", "13.0", "NVIDIA H200")


def test_ranges_of_another_engine_are_mapped_by_a_table(tmp_path: Path) -> None:
    """Module names of a served engine: a table maps them to families, a group named layer names the segment."""
    nodes = [
        Node(0, 4_000, 7, ("decoder.layers.0", "decoder.layers.0.kda_attn"), "a"),
        Node(5_000, 7_000, 7, ("decoder.layers.0", "decoder.layers.0.mlp.experts"), "b"),
        Node(8_000, 9_000, 7, ("decoder.layers.1", "decoder.layers.1.kda_attn"), "a"),
    ]
    rows = [{"range": r"layers\.(?P<layer>\d+)\.kda", "family": "KDA"}, {"range": r"\.experts$", "family": "MoE"}]
    grammar = Grammar(tuple(Pattern(**row) for row in rows))
    kda, moe = only_graph(measured(decode(tmp_path / "t.sqlite", nodes), families=True, grammar=grammar)).families
    assert (kda.family, kda.segments_per_step, kda.all_ops.busy_ns) == ("KDA", 2, 10_000)
    assert (moe.family, moe.segments_per_step, moe.all_ops.busy_ns) == ("MoE", 1, 4_000)


def test_a_small_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """Decompression is bounded, in memory and on disk."""
    bomb = tmp_path / "t.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 20_000_000))
    with pytest.raises(TraceError, match="more than 1,000,000 bytes"):
        files.plain_bytes(bomb, limit=1_000_000)
    with pytest.raises(TraceError, match="more than 1,000,000 bytes"), files.plain_file(bomb, limit=1_000_000):
        pass
