"""A loopback Slurm for a test module, or the reason why there is none."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from place import until

from k3bench.cluster import Cluster, Layout, missing_packages
from k3bench.submit import JobSpec

#: No grace worth waiting for: the file system is local. Questions every half second keep the tests short.
SPEC = JobSpec(
    executor="slurm",
    time_limit_min=10,
    nodes=1,
    constraint="d157",
    gpus_per_node=4,
    grace_s=1.0,
    ask_every_s=0.5,
    overlap_limit_s=60.0,
)

NODES = Layout().nodes


def loopback(**layout: object) -> Iterator[Cluster]:
    """Bring a cluster up in a short folder of its own, and down again with all its files."""
    if reason := missing_packages(accounting=bool(layout.get("accounting"))):
        pytest.skip(reason)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="k3c-", dir="/tmp")), tied=True)
    try:
        cluster.up(Layout(**layout))  # type: ignore[arg-type]
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)


def heal(cluster: Cluster) -> None:
    """After a test: no jobs, every daemon running, every node idle."""
    running = cluster.processes()
    for name in ["slurmctld", *(f"slurmd-{node}" for node in NODES)]:
        if name not in running:
            cluster.start(name)
    until(lambda: cluster.call("scontrol", "ping", check=False)[0] == 0, "the controller answers")
    cluster.call("scancel", "--user", "root", check=False)
    until(lambda: not cluster.call("squeue", "-h")[1].strip(), "the queue empties")
    down = cluster.call("sinfo", "-h", "-N", "-t", "down,drain", "-o", "%N")[1].split()
    for node in set(down):
        cluster.call("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    cluster.wait_idle(len(NODES))
