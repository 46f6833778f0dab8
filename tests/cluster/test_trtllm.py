"""Engine trtllm on a real Slurm: sixteen ranks a server, a client beside them, with a stand-in for TensorRT-LLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3bench.cluster import Cluster

from ..workflow.clone import environment, make_clone
from .trtllm import broken, points, programs, recipe

pytestmark = pytest.mark.timeout(420)


def k3bench(clone: Path, *words: str, **extra: str) -> str:
    """A verb in a clone; its output, or a failed test."""
    command = [sys.executable, "-m", "k3bench", *words]
    done = subprocess.run(command, cwd=clone, env=environment(**extra), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_block_is_measured_with_sixteen_ranks_a_server(cluster: Cluster, tmp_path: Path) -> None:
    """Four lives of a server over 4 nodes x 4 ranks, by TensorRT-LLM's own client; no step is left behind."""
    text = recipe(
        "ranks", programs(tmp_path / "standin"), largest=1, trtllm={"client": "benchmark_serving"},
        workload={"isl_tokens": 8, "osl_tokens": 21, "levels": [1], "stream_interval": 10, "warmup_batches": 0},
        observations=[{"id": "obs1", "rack": "d157"}], blocks=1,
    )  # fmt: skip
    clone = make_clone(tmp_path / "clone", ranks=text)
    k3bench(clone, "plan", "recipes/ranks.yaml", "--out", "results/ranks/plan.json")
    k3bench(clone, "build", "results/ranks/plan.json", "p1")
    said = k3bench(clone, "measure", "results/ranks/plan.json", "--executor", "slurm")
    results = clone / "results/ranks"
    assert "4 of 4 points accepted" in said
    assert broken(results) == {}
    for point in points(results):
        ranks = next(c for c in point.checks if c.name == "ranks_complete")
        assert ranks.detail == "16 ranks on 4 nodes (d157-n[1-4])"
        assert len(point.batch_tpot_ms) == 5
    assert not cluster.call("squeue", "--steps", "-h")[1].strip()
    served = (results / "logs").glob("server-obs1-b000-r*-*.log")
    assert [p.read_text().startswith("ranks joined: 16 on 4 nodes") for p in served if ".srun" not in p.name] == [
        True
    ] * 4


@pytest.mark.all_faults
@pytest.mark.timeout(2400)
def test_a_campaign_survives_a_crash_and_a_server_that_never_gets_ready(cluster: Cluster, tmp_path: Path) -> None:
    """Two racks x 4 nodes x 4 ranks from `k3bench run` to pr.md; one life crashes, one never answers: two runs less."""
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / "1-hang.fault").touch()
    (faults / "2-crash.fault").touch()
    text = recipe(
        "racks", programs(tmp_path / "standin"), largest=8, serving={"ready_limit_s": 90},
        trtllm={"accuracy": {"least_pct": 95.5}, "environment": {"K3_STANDIN_FAULTS": str(faults)}},
        workload={"isl_tokens": 16, "osl_tokens": 21, "levels": [1, 2, 4, 8], "stream_interval": 10, "batches": 5},
        observations=[
            {"id": "obs1", "rack": "d157", "pair": "p1", "rebuild": True},
            {"id": "obs2", "rack": "d127", "pair": "p2", "rebuild": True},
        ],
        blocks=2, zero_change=1, trace={"tool": "nsys", "level": 1},
    )  # fmt: skip
    clone = make_clone(tmp_path / "clone", racks=text)
    k3bench(clone, "run", "--profile", "slurm", "recipes/racks.yaml")
    results = clone / "results/racks"
    reasons = [" ".join(sorted(found)) for found in broken(results).values()]
    assert sorted(p.suffix for p in faults.iterdir()) == [".taken", ".taken"]
    assert len([r for r in reasons if "was not ready within 90 s" in r]) == 1
    assert len([r for r in reasons if "the server ended with status" in r]) == 1
    found = points(results)
    assert len(found) == 3 * 2 * 4 * 4
    assert sum(point.valid for point in found) >= len(found) / 2
    rows = [row for o in ("obs1", "obs2") for row in equality(results, o)]
    assert [row["status"] for row in rows] == ["pass"] * 10
    assert {row["kind"] for row in rows} == {"greedy", "control", "accuracy"}
    assert len(list(results.glob("observations/obs1/traces/after.c1.r*.collected.json"))) == 16
    report = (results / "report/pr.md").read_text()
    assert "d157" in report
    assert "d127" in report
    print(report)


def equality(results: Path, observation: str) -> list[dict]:
    return json.loads((results / f"observations/{observation}/equivalence.json").read_text())["rows"]
