"""The decode benchmark where there is no GPU: its dry path, and its reading of a recorded trace."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "results" / "recorded" / "h200-traces" / "kineto-c1"
sys.path.insert(0, str(ROOT / "benchmarks"))


def test_the_dry_path_fills_every_table(tmp_path: Path) -> None:
    """Nano on a CPU: steps, harness, each fork, and a policy for each batch; its times say nothing."""
    out = tmp_path / "decode.json"
    words = [
        sys.executable,
        "benchmarks/decode.py",
        "--device",
        "cpu",
        "--preset",
        "nano",
        "--quick",
        "--out",
        str(out),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["provenance"]["device"].startswith("cpu")
    for level in ("1", "2"):
        step = found["steps"][level]
        assert step["floor_ms"] == pytest.approx(sum(step["bytes"].values()) / 4.45e9)
        assert len(found["forks"][level]) == 7
        assert {"before", "after", "all"} <= set(found["best"][level]["policies"])
    assert found["harness"]["limit_pct"] == 0.3
    assert "op budget and ideal gains need a GPU's trace: not run" in done.stdout


def test_a_recorded_trace_is_cut_into_families_and_forks(tmp_path: Path) -> None:
    """Twelve layers before the change: kernels add up to their family's launches, the three forks could gain."""
    if not TRACES.is_dir():
        pytest.skip("the recorded traces are not in this copy")
    import decode_parts as parts

    from k3bench.trace.analysis import Asked, analyse
    from k3bench.trace.capture import read_capture

    for name in ("before.c1.r0.json", "before.c1.r0.capture.json"):
        (tmp_path / name).write_bytes(lzma.decompress((TRACES / f"{name}.xz").read_bytes()))
    capture = read_capture(tmp_path / "before.c1.r0.capture.json")
    trace = analyse(tmp_path / "before.c1.r0.json", Asked(families=True, capture=capture, warm_up=2)).result
    rows = {row["family"]: row for row in parts.families(trace)}
    assert {"KDA", "MLA", "MoE", "other"} <= set(rows)
    for row in rows.values():
        assert sum(kernel["launches"] for kernel in row["kernels"]) == pytest.approx(row["launches"])
        assert row["busy_ms"] > 0
    ideal = parts.ideal_gains(trace)
    assert all(ideal[fork] > 0 for fork in ("kda_staging", "mla_q_kv", "mla_absorb_rope"))


def test_pairs_are_timed_in_turn() -> None:
    """One round is not kept; then the order turns round each time. The difference is the mean, with its interval."""
    import decode_parts as parts

    order: list[str] = []

    def run(name: str, ms: float) -> float:
        order.append(name)
        return ms

    values = iter([15.0, 9.0, 9.1, 8.9, 9.0])
    delta = parts.paired(lambda: run("before", 10.0), lambda: run("after", next(values)), 4)
    assert order == ["before", "after", *["before", "after", "after", "before"] * 2]
    assert delta.delta_pct == pytest.approx(-10.0)
    assert 0 < delta.half_pct < 2
    assert delta.gains
