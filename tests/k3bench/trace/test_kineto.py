"""Kineto traces: exact times, old and new categories, devices, and what must be refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from k3bench.errors import TraceError
from k3bench.records.residency import TraceResidency
from k3bench.trace.analysis import Asked, analyse
from k3bench.trace.command import main
from tests.k3bench.trace.kineto_files import K, annotation, call, kernel, write


def measured(path: Path, **asked: object) -> TraceResidency:
    return analyse(path, Asked(**asked)).result  # type: ignore[arg-type]


def test_times_never_pass_through_floats(tmp_path: Path) -> None:
    """Absolute microseconds with nanosecond digits are beyond a double; one nanosecond decides touching or overlap."""
    touching = [K("1682725898237042.123", "0.500", 7), K("1682725898237042.623", "1.000", 8)]
    window = measured(write(tmp_path / "t.json", [kernel(k) for k in touching])).devices[0].window
    assert (window.busy_ns, window.residency_ns) == (1500, 0)
    overlapping = [K("1682725898237042.123", "0.501", 7), K("1682725898237042.623", "1.000", 8)]
    window = measured(write(tmp_path / "o.json", [kernel(k) for k in overlapping])).devices[0].window
    assert (window.busy_ns, window.residency_ns) == (1500, 1)


@pytest.mark.parametrize(
    ("ts", "dur", "busy_ns", "n_sub_ns"),
    [
        ("10", "5", 5000, 0),
        ("10.5", "5.25", 5250, 0),
        ("1e1", "5e0", 5000, 0),
        ("10.000", "0.0015", 2, 1),
        ('"10"', "5", 5000, 0),
    ],
)
def test_every_way_to_write_a_time_is_read(tmp_path: Path, ts: str, dur: str, busy_ns: int, n_sub_ns: int) -> None:
    """Whole microseconds, odd digits, exponents and quoted numbers; digits below a nanosecond are counted."""
    result = measured(write(tmp_path / "t.json", [kernel(K(ts, dur))]))
    assert (result.devices[0].window.busy_ns, result.counts.n_sub_ns) == (busy_ns, n_sub_ns)


def test_categories_and_tracks_of_2021(tmp_path: Path) -> None:
    """`Kernel`, `Memcpy` and a track named `stream 7` without stream arguments."""
    event = (
        '{"ph": "X", "cat": "%s", "name": "k", "pid": 0, "tid": "stream 7", "ts": %d, "dur": 2, "args": {"device": 0}}'
    )
    result = measured(
        write(tmp_path / "t.json", [event % ("Kernel", 5), event % ("Memcpy", 9), event % ("Memset", 20)])
    )
    assert (result.counts.n_kernels, result.counts.n_memcpy, result.counts.n_memset) == (1, 1, 1)
    assert [lane.lane for lane in result.devices[0].lanes] == ["-/7"]


def test_devices_are_never_unioned(tmp_path: Path) -> None:
    """Two devices busy at once are two rows, no residency."""
    result = measured(write(tmp_path / "t.json", [kernel(K("1", "5", device=0)), kernel(K("1", "5", 8, device=1))]))
    assert [(d.device, d.window.busy_ns, d.window.residency_ns) for d in result.devices] == [(0, 5000, 0), (1, 5000, 0)]


def test_zero_and_negative_lengths_are_counted(tmp_path: Path) -> None:
    """A zero-length operation is an instance without measure; one that ends before it starts is left out and said."""
    result = measured(
        write(tmp_path / "t.json", [kernel(K("1", "5")), kernel(K("3", "0", 8)), kernel(K("4", "-2", 9))])
    )
    assert (result.counts.n_ops, result.counts.n_zero_length, result.counts.n_negative) == (2, 1, 1)
    assert result.devices[0].window.residency_ns == 0
    assert [w.code for w in result.warnings] == ["negative_lengths"]


def test_exact_duplicates_are_counted_and_stay(tmp_path: Path) -> None:
    """The same operation twice is said; nothing is merged silently."""
    result = measured(write(tmp_path / "t.json", [kernel(K("1", "5"))] * 3))
    assert (result.counts.n_ops, result.counts.n_exact_duplicates) == (3, 2)


def test_compressed_files_are_read_directly(tmp_path: Path) -> None:
    """`.json.gz` needs no unpacking by hand."""
    plain = write(tmp_path / "t.json", [kernel(K("1", "5"))])
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert measured(packed).devices[0].window.busy_ns == 5000


def test_large_files_are_decoded_in_pieces_with_the_same_result(tmp_path: Path) -> None:
    """Pieces of a file give what the whole gives, braces inside names included."""
    names = ["a}, {b", "plain", 'quote\\"}, {\\"ph']
    events = [kernel(K(f"{i}.000", "0.600", i % 3, names[i % 3].replace('\\"', '"'), i)) for i in range(130_000)]
    result = measured(write(tmp_path / "t.json", events))
    assert result.counts.n_ops == 130_000
    assert result.devices[0].window.busy_ns == 130_000 * 600
    assert sorted(k.name for k in result.devices[0].kernels) == sorted(n.replace('\\"', '"') for n in names)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"traceEvents": [{"ph": "X", "ts": 1', "cut off"),
        ('{"some": "json"}', "no trace"),
        ("hello", "no trace"),
        ("", "no trace"),
        ('{"traceEvents": []}', "no device operation"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 2}]}', "no device operation"),
    ],
)
def test_files_that_cannot_answer_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, what: str
) -> None:
    """Truncated JSON, other JSON, no JSON, an empty file, a trace without device work: one error with its cure."""
    path = tmp_path / "t.json"
    path.write_text(content)
    assert main([str(path), "--out", str(tmp_path / "r.json")]) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "fix:" in said
    assert not (tmp_path / "r.json").exists()


def test_logical_lanes_are_refused_unless_accepted(tmp_path: Path) -> None:
    """Lanes renamed for display no longer say which stream ran what."""
    label = '{"ph": "M", "name": "thread_name", "pid": 0, "tid": 8, "args": {"name": "all-gather"}}'
    named = write(tmp_path / "named.json", [kernel(K("1", "5")), kernel(K("1", "5", 8)), label])
    numbered = write(tmp_path / "numbered.json", [kernel(K("1", "5")), kernel(K("1", "5", 100_008))])
    for path in (named, numbered):
        with pytest.raises(TraceError, match="logical lanes"):
            measured(path)
        assert measured(path, accept_lanes=True).devices[0].window.residency_ns == 5000


def test_ordinary_stream_labels_are_fine(tmp_path: Path) -> None:
    """Kineto names every track `stream N`."""
    label = '{"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7 "}}'
    assert measured(write(tmp_path / "t.json", [kernel(K("1", "5")), label])).devices[0].window.busy_ns == 5000


def test_zero_timestamps_are_refused(tmp_path: Path) -> None:
    """torch 2.12 wrote ts 0 for part of a trace."""
    path = write(tmp_path / "t.json", [kernel(K("0", "5")), kernel(K("5114168994666.494", "5", 8))])
    with pytest.raises(TraceError, match=r"zero timestamp|not of this clock"):
        measured(path)


def test_a_graph_launch_without_kernels_between_others_is_refused(tmp_path: Path) -> None:
    """A lost replay in the middle is lost data; one at the edge of the window is a warning."""
    launches = [call("cudaGraphLaunch", i, f"{10 * i}.000") for i in (1, 2, 3)]
    replay = [kernel(K(f"{10 * i + 1}.000", "2.000", correlation=i)) for i in (1, 2, 3)]
    with pytest.raises(TraceError, match="1 of 3 graph launches"):
        measured(write(tmp_path / "lost.json", [*launches, replay[0], replay[2]]))
    edge = measured(write(tmp_path / "edge.json", [*launches, *replay[:2]]))
    assert [w.code for w in edge.warnings] == ["launches_without_operations"]


def test_eager_operations_get_the_range_of_their_launch(tmp_path: Path) -> None:
    """Without a graph, the record_function range open at the launch call is the family, and step ranges are steps."""
    events = []
    for step in range(3):
        at = 100 * step
        events.append(annotation(f"step {step}", f"{at}.000", "90.000"))
        for i, family in enumerate(("KDA", "MoE")):
            correlation = 10 * step + i
            events.append(annotation(f"L{i}.{family}", f"{at + 10 * i + 1}.000", "5.000"))
            events.append(call("cudaLaunchKernel", correlation, f"{at + 10 * i + 2}.000"))
            events.append(kernel(K(f"{at + 20 + 10 * i}.000", "12.000", 7 + i, family, correlation)))
    result = measured(write(tmp_path / "t.json", events), families=True)
    (graph,) = result.devices[0].graphs
    assert (result.attribution.method, graph.n_steps_kept, graph.n_dropped_warm_up) == ("launch_ranges", 2, 1)
    assert {f.family: f.all_ops.busy_ns for f in graph.families} == {"KDA": 24000, "MoE": 24000}
    assert [(c.family_a, c.family_b, c.overlap_ns) for c in graph.cross_families] == [("KDA", "MoE", 4000)]
