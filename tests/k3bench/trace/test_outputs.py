"""What is written besides the record: scrubbed copies, a Perfetto step, the lane picture; and collected folders."""

from __future__ import annotations

import gzip
import json
import lzma
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from k3bench.records.residency import Collected, Residency
from k3bench.store import write_record
from k3bench.trace.command import main
from tests.k3bench.trace.golden import H200, SHARED
from tests.k3bench.trace.kineto_files import K
from tests.k3bench.trace.kineto_files import kernel as kernel_text
from tests.k3bench.trace.nsys_files import FORKED, SERIAL, decode

SECRETS = ("hunter2", "alice", "node-17.internal", "/home/alice/run", "API_TOKEN", "train.py")


def with_secrets(path: Path) -> Path:
    """An export with everything that real ones carry."""
    decode(path, FORKED)
    base = sqlite3.connect(path)
    strings = ["/home/alice/run/train.py", "API_TOKEN=hunter2", "node-17.internal", "alice"]
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings, 900))
    for table, column in (("PROCESSES", "name"), ("TARGET_INFO_SYSTEM_ENV", "value"), ("ANALYSIS_FILE", "filename")):
        base.execute(f"CREATE TABLE {table} ({column})")
        base.executemany(f"INSERT INTO {table} VALUES (?)", [(s,) for s in strings])
    base.execute("CREATE TABLE META_DATA_CAPTURE (name, value)")
    rows = [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "API_TOKEN=hunter2"),
        ("PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE", "Node"),
    ]
    base.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
    base.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp, severity, text)")
    texts = ["Loaded CUPTI library: /home/alice/run/libcupti.so.13.0", "Process train.py of alice started"]
    base.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, ?)", [(t,) for t in texts])
    base.execute("UPDATE NVTX_EVENTS SET textId = 903 WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)")
    base.execute(
        "INSERT INTO NVTX_EVENTS SELECT start, end, 59, NULL, 'run of alice', NULL, globalTid, 0 FROM NVTX_EVENTS"
    )
    base.commit()
    base.close()
    return path


def unpacked(path: Path) -> bytes:
    raw = path.read_bytes()
    return lzma.decompress(raw) if path.suffix == ".xz" else gzip.decompress(raw) if path.suffix == ".gz" else raw


def test_a_scrubbed_export_tells_of_nobody_and_measures_the_same(tmp_path: Path) -> None:
    """Decompress and grep: no user, host, path, argument or variable; the CUPTI version and the residency stay."""
    source, copy = with_secrets(tmp_path / "t.sqlite"), tmp_path / "copy.sqlite.xz"
    assert main([str(source), "--scrub", str(copy)]) == 0
    found = [secret for secret in SECRETS if secret.encode() in unpacked(copy)]
    assert found == []
    assert any(secret.encode() in unpacked(source) for secret in SECRETS)
    records = []
    for path in (source, copy):
        assert main([str(path), "--out", str(tmp_path / "r.json"), "--quiet"]) == 0
        records.append(Residency.from_bytes((tmp_path / "r.json").read_bytes()).traces[0])
    assert records[0].devices == records[1].devices
    assert records[1].cupti_version == "13.0"


def test_scrubbed_json_keeps_the_times_to_the_digit(tmp_path: Path) -> None:
    """A Kineto trace with user, host and paths in its header and CPU events."""
    secret = {"username": "alice", "host_name": "node-17.internal", "traceName": "/home/alice/run/t.json"}
    cpu = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "train.py(3): main",
        "ts": 1,
        "dur": 1,
        "args": {"cmd": "API_TOKEN=hunter2"},
    }
    kernel = kernel_text(K("1682725898237042.123", "0.500")).replace('"args": {', '"args": {"note": "alice", ')
    source, copy = tmp_path / "t.json", tmp_path / "copy.json.gz"
    source.write_text(json.dumps(secret)[:-1] + f', "traceEvents": [{json.dumps(cpu)}, {kernel}]}}')
    assert main([str(source), "--scrub", str(copy)]) == 0
    content = unpacked(copy)
    assert [s for s in SECRETS if s.encode() in content] == []
    assert b'"ts":1682725898237042.123' in content


def test_recorded_traces_carry_nothing_that_tells_of_a_place() -> None:
    """Every trace of the project, decompressed: no environment, home, user name or assignment."""
    for path in sorted(H200.glob("*.xz")) + sorted(H200.glob("*.json.gz")):
        content = unpacked(path)
        for telling in (b"/home/", b"/root", b"/tmp/", b"PATH=", b"LD_LIBRARY", b"USER", b"HOSTNAME", b"TOKEN"):
            assert telling not in content, (path.name, telling)


def test_a_scrubbed_copy_never_replaces_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The original stays what it was."""
    source = decode(tmp_path / "t.sqlite", SERIAL)
    before = source.read_bytes()
    assert main([str(source), "--scrub", str(source)]) == 2
    assert source.read_bytes() == before


def test_scrubbing_a_trace_of_others_leaves_no_host(tmp_path: Path) -> None:
    """A real export of 2026 with a job's environment in it."""
    source = SHARED / "nsys_ai" / "h100_2gpu_1s.sqlite.gz"
    if not source.exists():
        pytest.skip("the shared folder of third-party traces is not here")
    copy = tmp_path / "copy.sqlite"
    assert main([str(source), "--scrub", str(copy)]) == 0
    for telling in (b"rich-wsl", b"FastVideo", b"modal", b"DESKTOP", b"PATH="):
        assert telling not in copy.read_bytes()


def test_one_step_for_perfetto(tmp_path: Path) -> None:
    """Families as tracks; no two slices of a track overlap, because Perfetto would clip them."""
    out = tmp_path / "step.json"
    assert main([str(H200 / "twostream_node_nsys2025.3.sqlite.xz"), "--perfetto", str(out), "--quiet"]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert set(names.values()) == {"KDA", "MLA", "MoE", "unattributed"}
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 80
    for track in {(e["pid"], e["tid"]) for e in slices}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))


def test_the_lane_picture_is_drawn_and_the_same_every_time(tmp_path: Path) -> None:
    """Before and after side by side; SVG bytes do not depend on the clock."""
    lanes = pytest.importorskip("k3bench.publish.lanes")
    first, second = decode(tmp_path / "b.sqlite", SERIAL), decode(tmp_path / "a.sqlite", FORKED)
    out = tmp_path / "r.json"
    assert main(["--before", str(first), "--after", str(second), "--out", str(out), "--quiet"]) == 0
    before, after = Residency.from_bytes(out.read_bytes()).traces
    for name in ("one.svg", "two.svg"):
        lanes.draw(before.pictures, after.pictures, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()


def collected(folder: Path, arm: str, trace: str, **more: object) -> None:
    fields = {
        "arm": arm,
        "level": 4,
        "rank": 0,
        "tool": "nsys",
        "tool_version": "2025.3.2.0",
        "n_replays": 3,
        "trace": trace,
    }
    write_record(folder / f"{arm}.c4.r0.collected.json", Collected(**{**fields, **more}))  # type: ignore[arg-type]


def test_a_collected_folder_gives_arms_ratio_and_headroom(tmp_path: Path) -> None:
    """The collector's records say which arm, level, build, forks and step times a trace has."""
    decode(tmp_path / "b.sqlite", SERIAL)
    decode(tmp_path / "a.sqlite", FORKED)
    collected(tmp_path, "before", "b.sqlite", forks_on=(), profiled_step_ms=0.055, unprofiled_step_ms=0.05)
    collected(
        tmp_path,
        "after",
        "a.sqlite",
        forks_on=("stage",),
        profiled_step_ms=0.048,
        unprofiled_step_ms=0.04,
        build="a" * 64,
    )
    out = tmp_path / "r.json"
    assert main(["--collected", str(tmp_path), "--families", "--out", str(out), "--quiet"]) == 0
    record = Residency.from_bytes(out.read_bytes())
    assert {(r.arm, round(r.profiled_over_unprofiled or 0, 3)) for r in record.summaries} == {
        ("before", 1.1),
        ("after", 1.2),
    }
    assert [t.level for t in record.traces] == [4, 4]
    assert [t.build for t in record.traces] == ["a" * 64, None]
    assert out.read_text().count('"build"') == 1
    assert record.headroom is not None
    assert [f.fork for f in record.headroom.forks] == ["stage"]


def test_a_collected_record_that_points_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File names only; a path would read what nobody meant."""
    collected(tmp_path, "before", "../b.sqlite")
    assert main(["--collected", str(tmp_path)]) == 2
    assert "elsewhere" in capsys.readouterr().err


def test_different_tools_in_the_two_arms_are_said(tmp_path: Path) -> None:
    """Residency before and after is comparable under one tool and version only."""
    out = tmp_path / "r.json"
    files = [str(H200 / f"twostream_node_nsys{v}.sqlite.xz") for v in ("2023.4", "2025.3")]
    assert main(["--before", files[0], "--after", files[1], "--out", str(out), "--quiet"]) == 0
    assert "tools_differ" in {w.code for w in Residency.from_bytes(out.read_bytes()).warnings}


def test_nothing_given_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No file, no work."""
    assert main([]) == 2
    assert "no trace given" in capsys.readouterr().err
