"""Kineto traces without node ids against a capture record: which leg an operation belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3bench.records.residency import Residency, TraceResidency
from k3bench.trace.command import main
from tests.k3bench.trace.kineto_files import K, call, kernel, write

#: four kernels of one fork: two on the main leg, then two on the side leg
LEGS = [("L0.KDA", 0, 4), ("fork.staging.main", 0, 2), ("fork.staging.side", 2, 4)]


def captured(path: Path, names: list[str | None]) -> Path:
    """The capture record of the fork."""
    ranges = [{"name": name, "first_node": first, "end_node": end} for name, first, end in LEGS]
    nodes = [{"kind": "kernel", "name": name} for name in names]
    graph = {"level": 1, "graph_id": None, "exec_graph_id": None, "n_nodes": 4, "ranges": ranges, "nodes": nodes}
    path.write_text(json.dumps({"schema": "k3bench.capture/1", "engine": "k3model", "graphs": [graph]}))
    return path


def residency(folder: Path, names: list[str | None], *, forked: bool) -> TraceResidency:
    """Four replays: one leg after the other on a lane, or side by side with the side leg a little late."""
    events = []
    for step in range(1, 5):
        at = 100 * step
        events.append(call("cudaGraphLaunch", step, f"{at}.000"))
        for i in range(4):
            lane, start = (7 + 2 * (i // 2), 10 * (i % 2) + i // 2) if forked else (7, 10 * i)
            ran = names[i] if names[i] is not None else "k"
            events.append(kernel(K(f"{at + start}.000", "8.000", lane, str(ran), step)))
    trace, out = write(folder / "t.json", events), folder / "r.json"
    record = captured(folder / "c.json", names)
    assert main([str(trace), "--capture", str(record), "--families", "--out", str(out), "--quiet"]) == 0
    return Residency.from_bytes(out.read_bytes()).traces[0]


def test_on_one_lane_the_order_of_capture_tells_the_legs(tmp_path: Path) -> None:
    """A serial fork runs as it was captured, whatever its kernels are called: 18 us a leg, nothing side by side."""
    trace = residency(tmp_path, ["k", "k", "k", "k"], forked=False)
    (fork,) = trace.forks
    assert trace.attribution.n_leg_ambiguous == 0
    assert (fork.shorter_leg_span_ns_per_step, fork.fork_span_ns_per_step) == (18_000, 38_000)
    assert fork.overlapped_ns_per_step == 0


def test_on_two_lanes_each_lane_spells_its_leg(tmp_path: Path) -> None:
    """Kernel names shared by both legs do no harm while the sequences differ."""
    trace = residency(tmp_path, ["gemm", "copy", "copy", "gemm"], forked=True)
    (fork,) = trace.forks
    assert trace.attribution.n_leg_ambiguous == 0
    assert (fork.shorter_leg_span_ns_per_step, fork.fork_span_ns_per_step) == (18_000, 19_000)
    assert fork.overlapped_ns_per_step == 14_000


@pytest.mark.parametrize("names", [["k", "k", "k", "k"], [None, None, None, None]])
def test_legs_that_two_ways_fit_stay_open_and_give_no_span(tmp_path: Path, names: list[str | None]) -> None:
    """The family is certain and measured; a span over guessed legs would be a false headroom."""
    trace = residency(tmp_path, names, forked=True)
    assert trace.attribution.n_leg_ambiguous == 4
    assert trace.forks == ()
    ((graph,),) = (device.graphs for device in trace.devices)
    assert {f.family: f.all_ops.residency_ns for f in graph.families} == {"KDA": 3 * 14_000}
