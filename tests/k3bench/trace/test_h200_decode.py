"""Recorded traces of the K3 decode on an H200: the collectors agree, the values stand, nothing tells of a place."""

from __future__ import annotations

import json
import lzma
import re
import sqlite3
from bisect import bisect_right
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from k3bench.records.residency import FamilySummary, Headroom, Residency
from k3bench.trace.command import main
from tests.k3bench.trace.golden import ROOT

RECORDED = ROOT / "results" / "recorded" / "h200-traces"
#: What a trace could carry of the place it was made in: paths, assignments, addresses, users, hosts.
TELLING = re.compile(
    rb"/(?:root|home|tmp|work|opt|usr|var|etc|mnt|srv|proc|sys|dev|lib)/|(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{2,}=[^=]"
    rb"|\w@[\w-]+\.\w|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b|(?i:hostname|firecracker|localhost|python3|\.py\b)"
)
#: Folders whose traces cannot be read, and why is tested.
REFUSED = ("kineto-pdl",)
PAIRS = [("nsys-c1", "kineto-c1"), ("nsys-c8", "kineto-c8"), ("nsys-c1", "cupti-c1")]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Residency]:
    """Every recorded folder that can be read through the command, once."""
    found = {}
    for folder in sorted(p for p in RECORDED.iterdir() if p.is_dir() and p.name not in REFUSED):
        out = tmp_path_factory.mktemp("residency") / f"{folder.name}.json"
        assert main(["--collected", str(folder), "--families", "--out", str(out), "--quiet"]) == 0
        found[folder.name] = Residency.from_bytes(out.read_bytes())
    return found


def by_family(record: Residency) -> dict[tuple[str | None, str], FamilySummary]:
    return {(s.arm, s.family): s for s in record.summaries}


def headroom(record: Residency) -> Headroom:
    assert record.headroom is not None
    return record.headroom


@pytest.mark.parametrize(
    ("one", "other"), [("nsys-c1", "kineto-c1"), ("nsys-c8", "kineto-c8"), ("nsys-c1", "cupti-c1")]
)
def test_collectors_agree_on_residency(records: dict[str, Residency], one: str, other: str) -> None:
    """The same build under two tools: residency of every family and arm within 3 % of its busy time."""
    left, right = by_family(records[one]), by_family(records[other])
    assert set(left) == set(right)
    assert len(left) == 8
    for key, row in left.items():
        apart = abs(row.two_stream_residency_ms_per_step - right[key].two_stream_residency_ms_per_step)
        assert apart <= 0.03 * row.busy_ms_per_step, key


@pytest.mark.parametrize(
    ("one", "other"), [("nsys-c1", "kineto-c1"), ("nsys-c8", "kineto-c8"), ("nsys-c1", "cupti-c1")]
)
def test_collectors_agree_on_the_headroom(records: dict[str, Residency], one: str, other: str) -> None:
    """Node ids, lane order and CUPTI tags find the same legs: the ideal gain differs by less than 3 %."""
    left, right = headroom(records[one]), headroom(records[other])
    assert [f.fork for f in left.forks] == [f.fork for f in right.forks]
    assert {f.fork for f in left.forks} == {"kda_staging", "mla_q_kv", "mla_absorb_rope"}
    assert left.ideal_ms_per_step == pytest.approx(right.ideal_ms_per_step, rel=0.03)


def test_attention_ran_on_one_stream_before_and_on_two_after(records: dict[str, Residency]) -> None:
    """Exactly zero before, in every record; the MoE fork was there all along, and nothing is without a family."""
    for record in records.values():
        rows = by_family(record)
        for family in ("KDA", "MLA"):
            assert rows["before", family].two_stream_residency_ms_per_step == 0
            assert rows["after", family].two_stream_residency_ms_per_step > 0.05
        assert rows["before", "MoE"].two_stream_residency_ms_per_step > 0.2
        assert [t.attribution.unattributed_ns for t in record.traces] == [0, 0]
        assert [t.attribution.n_leg_ambiguous for t in record.traces] == [0, 0]


def test_every_residency_stands_beside_what_the_profiler_cost(records: dict[str, Residency]) -> None:
    """Profiled over unprofiled step time is known and small."""
    for record in records.values():
        for summary in record.summaries:
            assert summary.profiled_over_unprofiled is not None
            assert 1.0 < summary.profiled_over_unprofiled < 1.05


def test_values_equal_those_of_a_count_that_shares_no_code(records: dict[str, Residency], tmp_path: Path) -> None:
    """Plain SQL and a step function over one arm: busy and two-stream time of every family, to the nanosecond."""
    path = tmp_path / "after.sqlite"
    path.write_bytes(lzma.decompress((RECORDED / "nsys-c1" / "after.c1.r0.sqlite.xz").read_bytes()))
    counted = count(path)
    (trace,) = (t for t in records["nsys-c1"].traces if t.arm == "after")
    ((graph,),) = (device.graphs for device in trace.devices)
    ours = {f.family: (f.all_ops.busy_ns, f.all_ops.residency_ns) for f in graph.families}
    assert ours == counted


def count(path: Path) -> dict[str, tuple[int, int]]:
    """family -> (busy, two-stream) ns over all replays but the first."""
    base = sqlite3.connect(path)
    clone = dict(
        base.execute(
            "SELECT graphNodeId, originalGraphNodeId FROM CUDA_GRAPH_NODE_EVENTS WHERE originalGraphNodeId IS NOT NULL"
        )
    )
    born = dict(base.execute("SELECT graphNodeId, start FROM CUDA_GRAPH_NODE_EVENTS WHERE originalGraphNodeId IS NULL"))
    spoken = (
        "SELECT n.start, n.end, COALESCE(n.text, s.value) FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
    )
    families = sorted(
        (start, end, name) for start, end, name in base.execute(spoken) if re.match(r"L\d+\.", name or "")
    )
    starts = [start for start, _, _ in families]

    def family(node: int) -> str:
        moment = born[clone[node]]
        start, end, name = families[bisect_right(starts, moment) - 1]
        assert start <= moment <= end
        return str(name).split(".")[1]

    tables = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY")
    ops = [
        row
        for table in tables
        for row in base.execute(
            f"SELECT correlationId, start, end, streamId, graphNodeId FROM {table} WHERE graphNodeId IS NOT NULL"
        )
    ]
    base.close()
    first = min(correlation for correlation, *_ in ops)
    held: dict[tuple[int, str], list[tuple[int, int, int]]] = {}
    for correlation, start, end, lane, node in ops:
        if correlation != first:
            held.setdefault((correlation, family(node)), []).append((start, end, lane))
    found: dict[str, tuple[int, int]] = {}
    for (_, name), intervals in held.items():
        busy, both = lanes_at_once(intervals)
        found[name] = (found.get(name, (0, 0))[0] + busy, found.get(name, (0, 0))[1] + both)
    return found


def lanes_at_once(intervals: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Between two neighbouring endpoints the set of running lanes is constant."""
    ends = sorted({t for start, end, _ in intervals for t in (start, end)})
    busy = both = 0
    for a, b in pairwise(ends):
        lanes = {lane for start, end, lane in intervals if start <= a and b <= end}
        busy += (b - a) * (len(lanes) >= 1)
        both += (b - a) * (len(lanes) >= 2)
    return busy, both


def test_a_side_leg_that_begins_before_its_fork_opens_is_refused_without_node_ids(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Programmatic dependent launch across streams: in some replays order does not say which kernel is which."""
    assert main(["--collected", str(RECORDED / "kineto-pdl"), "--families"]) == 2
    said = capsys.readouterr().err
    assert "1 of 1600 operations a step cannot be matched surely" in said
    assert "whose traces name graph nodes" in said


def test_batch_sizes_are_never_pooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder with traces of two levels is refused, with both named."""
    for name in ("nsys-c1", "nsys-c8"):
        for path in (RECORDED / name).iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert main(["--collected", str(tmp_path), "--families"]) == 2
    assert "several levels: 1, 8" in capsys.readouterr().err


@cache
def unpacked(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*/*")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_nothing_recorded_tells_of_a_place_or_a_person(path: Path) -> None:
    """Every file is unpacked and searched: no path, assignment, address, host or program."""
    content = unpacked(path)
    if path.suffix == ".xz":
        assert len(content) > 50_000
    assert [m.group() for m in TELLING.finditer(content)][:5] == []


def test_the_search_finds_what_it_looks_for() -> None:
    """A leftover of each kind is found."""
    for text in (b"/root/x.py", b"HOME=/x", b"me@host.example", b"10.0.0.7", b"Hostname", b" PATH=a"):
        assert TELLING.search(text), text


def test_the_recorded_folder_is_small_and_whole() -> None:
    """At most 3 MB, and every trace has the record that makes it count."""
    files = [p for p in RECORDED.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 3_000_000
    for side in RECORDED.glob("*/*.collected.json"):
        record = json.loads(side.read_bytes())
        assert (side.parent / record["trace"]).is_file()
