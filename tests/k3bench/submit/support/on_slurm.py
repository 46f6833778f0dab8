"""A loopback Slurm for a test module, or the reason why there is none."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def loopback(**layout: object) -> Iterator[Cluster]:
    """Bring a cluster up in a short folder of its own, and down again with all its files."""
    if reason := missing_packages(accounting=bool(layout.get("accounting"))):
        pytest.skip(reason)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="k3c-", dir="/tmp")))
    try:
        cluster.up(Layout(**layout))  # type: ignore[arg-type]
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)
