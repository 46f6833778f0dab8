"""A campaign of engine trtllm with the stand-in's programs: its recipe, and what became of each server's life."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from k3bench.records.measurement import Measurement
from k3bench.store import read_record
from tests.standin import install

#: The shape of recipes/gb300-tep16-pr17103.yaml: 4 nodes of 4 ranks, two racks, block by block; nano K3 behind it.
SHAPE: dict[str, Any] = {
    "schema": "k3bench.recipe/1",
    "title": "The shape of pull request 17103, with a stand-in for TensorRT-LLM",
    "arms": {arm: {"policy": arm, "environment": {"K3_STANDIN_POLICY": arm}} for arm in ("before", "after")},
    "declared_change": ["policy", "environment.K3_STANDIN_POLICY"],
    "validity": {"max_client_bias_pct": 99},
    "blocks_per_allocation": 1,
    "primary_level": 1,
    "resources": {"minutes": 30, "nodes": 4, "gpus_per_node": 4},
}
CONFIG = {
    "enable_attention_dp": False,
    "moe_expert_parallel_size": 16,
    "disable_overlap_scheduler": False,
    "enable_chunked_prefill": True,
    "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.25},
}


def recipe(name: str, programs: Path, *, largest: int, trtllm: dict[str, Any] | None = None, **more: Any) -> str:
    """A recipe's text. `largest` is the batch that servers capture."""
    spec = {
        "version": "main-50aec1cb",
        "model": "/models/Kimi-K3",
        "programs": str(programs),
        "flags": {"max_batch_size": largest, "trust_remote_code": True},
        "config": {**CONFIG, "cuda_graph_config": {"max_batch_size": largest}},
        "port": 0,
        "mpi": mpi(),
        "ready_poll_s": 0.5,
        **(trtllm or {}),
    }
    serving = {"ready_limit_s": 240, "request_limit_s": 60} | more.pop("serving", {})
    engine = {"name": "trtllm", "preset": "nano", "device": "cpu", "serving": serving, "trtllm": spec}
    return yaml.safe_dump({"name": name, "engine": engine} | SHAPE | more, sort_keys=False)


def mpi() -> str:
    """What the recipe for real racks says, where this machine's Slurm has it (Debian: libpmix-dev)."""
    plugin = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so")
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False)
    return "pmix" if plugin.exists() and "pmix" in listed.stdout + listed.stderr else "none"


def programs(folder: Path) -> Path:
    """The stand-in's `bin/`."""
    return install(folder)


def points(results: Path) -> list[Measurement]:
    """Every point of a campaign, in name order."""
    return [read_record(p, Measurement) for p in sorted(results.glob("observations/*/points/*.json"))]


def broken(results: Path) -> dict[str, set[str]]:
    """Run (observation/block/position) -> why it has no numbers."""
    found: dict[str, set[str]] = {}
    for point in points(results):
        for check in point.checks:
            if not check.ok:
                place = f"{point.observation}/{point.name.block}/{point.name.run}"
                found.setdefault(place, set()).add(f"{check.name}: {check.detail}")
    return found
