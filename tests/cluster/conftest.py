"""One loopback Slurm for all campaign tests, healed after each; its fault table is printed at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3bench.cluster import Cluster, Layout, missing_packages

from .campaign import Campaign
from .faults import Row, heal, table


@pytest.fixture(scope="session")
def running() -> Iterator[Cluster]:
    """Without accounting, and with nodes that are given up after ten seconds of silence."""
    if reason := missing_packages():
        pytest.skip(reason)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="k3c-", dir="/tmp")), tied=True)
    try:
        cluster.up(Layout(node_timeout_s=10))
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture
def cluster(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster as Slurm's commands find it, left idle."""
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    yield running
    heal(running)


@pytest.fixture
def campaign(cluster: Cluster, tmp_path: Path) -> Iterator[Campaign]:
    """A campaign that is under way."""
    found = Campaign(cluster, tmp_path / "a clone")
    yield found
    found.head.kill()
    for pid in found.pids("waiter", "tool"):
        os.kill(pid, 9)


@pytest.fixture(scope="session")
def rows(running: Cluster) -> Iterator[list[Row]]:
    """What each fault cost; printed, and written where K3_FAULT_TABLE says."""
    found: list[Row] = []
    yield found
    text = table(found, running)
    print("\n" + text)
    if target := os.environ.get("K3_FAULT_TABLE"):
        Path(target).write_text(text)
