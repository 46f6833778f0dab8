"""A model over two nodes of one rack: tasks of one srun step under the job, gloo between them; and a rank that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3bench.cluster import Cluster
from k3bench.records.equivalence import Equivalence
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Allocation, Measurement
from k3bench.store import CampaignFolder, read_record

from ..workflow.clone import environment, make_clone
from .campaign import UNTIL, Head, until

pytestmark = pytest.mark.timeout(420)
RECIPE = """
schema: k3bench.recipe/1
name: ranks
title: nano on two ranks, one a node
engine: {name: k3model, preset: nano, device: cpu, options: {tp_size: 2, collectives: distributed}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 4, osl_tokens: OSL, levels: [1], batches: 5, warmup_batches: 0}
observations: [{id: obs1, rack: d127}]
blocks: 1
primary_level: 1
resources: {minutes: 10, nodes: 2, gpus_per_node: 1}
"""


def ranks_of(clone: Path) -> dict[int, int]:
    """Rank -> pid of the rank processes of a clone."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0") if entry.name.isdigit() else []
            told = (entry / "environ").read_bytes().decode().split("\0") if "k3bench.ranks.program" in words else []
        except OSError:
            continue
        if any(str(clone) in word for word in words) and words[0].endswith(("python", "python3")):
            found |= {int(name[len("SLURM_PROCID=") :]): int(entry.name) for name in told if "SLURM_PROCID=" in name}
    return found


def test_two_nodes_hold_two_ranks_and_each_proves_its_rack(cluster: Cluster, tmp_path: Path) -> None:
    """Points say which nodes, the fingerprint keeps Slurm's own word of each rank; verifying is a job there too."""
    clone = make_clone(tmp_path / "a clone", ranks=RECIPE.replace("OSL", "3"))
    said = Head(clone, "ranks", UNTIL).wait()
    folder = CampaignFolder(clone / "results" / "ranks")
    assert read_record(folder.allocation("obs1", "alloc1"), Allocation).status == "measured", said[-4000:]
    for point in folder.records("obs1", "points", Measurement):
        detail = {check.name: check.detail for check in point.checks if check.ok}["ranks_present"]
        each = "0 d127-n1 (spine.d127.d127-n1) cpu, 1 d127-n2 (spine.d127.d127-n2) cpu"
        assert detail == f"2 ranks on 2 nodes: {each}; gloo x2"
    for found in folder.records("obs1", "fingerprints", Fingerprint):
        assert [place.slurm["SLURM_TOPOLOGY_ADDR"] for place in found.stable.ranks] == [
            "spine.d127.d127-n1",
            "spine.d127.d127-n2",
        ]
    words = ["verify", str(folder.plan), "obs1", "--executor", "slurm", "--budget", "0"]
    done = subprocess.run([sys.executable, "-m", "k3bench", *words], cwd=clone, env=environment(), check=False)
    assert done.returncode == 0
    rows = read_record(folder.equivalence("obs1"), Equivalence).rows
    assert rows[0].what == "2 ranks against one, float32"
    assert "the time for probes, 0 s, was over" in rows[0].reason


@pytest.mark.all_faults
def test_a_rank_that_dies_ends_its_allocation_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    """Within seconds, on all nodes; the next start measures the block again whole."""
    clone = make_clone(tmp_path / "a clone", ranks=RECIPE.replace("OSL", "33"))
    folder, head = CampaignFolder(clone / "results" / "ranks"), Head(clone, "ranks", UNTIL)
    until(lambda: list(folder.observation("obs1").glob("points/*.json")), "a point appears")
    ranks = until(lambda: (found := ranks_of(clone)) and len(found) == 2 and found, "both ranks run")
    begun = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    head.wait()
    print(f"a dead rank ended its allocation after {time.monotonic() - begun:.1f} s")
    summary = read_record(folder.allocation("obs1", "alloc1"), Allocation)
    assert summary.status == "failed"
    assert "of 2 ended" in summary.reason
    assert "all ranks were ended" in summary.reason
    assert not ranks_of(clone)
    assert Head(clone, "ranks", UNTIL).wait()
    summary = read_record(folder.allocation("obs1", "alloc1"), Allocation)
    assert (summary.status, len(summary.accepted), len(summary.superseded) > 0) == ("measured", 4, True)
