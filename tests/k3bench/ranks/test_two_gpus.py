"""Two ranks on two GPUs, NCCL inside the captured graph: measured, verified, profiled and read by the same commands."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from k3bench.cli import main
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Measurement
from k3bench.records.residency import Residency
from k3bench.store import CampaignFolder, read_record

ROOT = Path(__file__).parents[3]
RECIPE = """
schema: k3bench.recipe/1
name: gpus
title: A small K3 on two GPUs
engine:
  {name: k3model, preset: small-16, device: cuda, context: noise, options: {tp_size: 2, collectives: distributed}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 64, osl_tokens: 17, levels: [1, 4], batches: 5, warmup_batches: 1}
observations: [{id: obs1, rack: local, pair: p1}]
blocks: 1
primary_level: 1
trace: {tool: kineto, level: 1}
resources: {minutes: 10, gpus_per_node: 2}
"""


def gpus() -> int:
    """How many the CUDA driver shows."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


@pytest.mark.gpu
@pytest.mark.skipif(gpus() < 2, reason="needs two CUDA devices")
def test_two_gpus_from_recipe_to_residency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid points over NCCL, no probe that fails, a trace of each rank, never two collectives at once."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'workflow'}:{ROOT}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = CampaignFolder(tmp_path / "results" / "gpus")
    Path("gpus.yaml").write_text(RECIPE)
    assert main(["plan", "gpus.yaml", "--out", str(folder.plan)]) == 0
    assert main(["measure", str(folder.plan), "--here"]) == 0
    points = list(folder.records("obs1", "points", Measurement))
    assert len(points) == 8
    assert all(point.valid for point in points)
    details = {check.detail for point in points for check in point.checks if check.name == "ranks_present"}
    assert all(detail.endswith("; nccl x2") for detail in details)

    assert main(["verify", str(folder.plan), "obs1", "--budget", "120"]) == 0
    rows = read_record(folder.equivalence("obs1"), Equivalence).rows
    assert [row for row in rows if row.status == "fail"] == []
    assert any(row.status == "pass" and row.what.startswith("captured step against serial") for row in rows)

    out, traces = folder.residency("obs1"), folder.traces("obs1")
    assert main(["trace", "--collected", str(traces), "--families", "--out", str(out), "--quiet"]) == 0
    found = read_record(out, Residency)
    assert sorted((str(t.arm), t.rank) for t in found.traces) == [
        ("after", 0),
        ("after", 1),
        ("before", 0),
        ("before", 1),
    ]
    for trace in found.traces:
        for device in trace.devices:
            assert device.collectives is not None
            assert device.collectives.concurrent_ns == 0
