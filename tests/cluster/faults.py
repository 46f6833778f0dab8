"""What a fault cost, as a row, and how the cluster is made whole again."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from k3bench.cluster import Cluster, Layout

from ..workflow.clone import ROOT
from .campaign import Campaign, until

NODES = Layout().nodes


@dataclass(frozen=True)
class Row:
    """One line of the fault table."""

    fault: str
    planned: int
    accepted: int
    twice: int
    lost: int
    superseded: int
    redone: int
    seconds: float


def check(fault: str, campaign: Campaign, seconds: float, *, most_redone: int | None = None) -> Row:
    """Nothing lost, nothing doubled, every file accounted for."""
    found: dict[str, Any] = campaign.counts()
    assert found["accepted"] == found["planned"], found
    assert found["accepted_twice"] == 0, found
    assert found["on_disk"] == found["accepted"] + found["superseded"], found
    if most_redone is not None:
        assert found["blocks_redone"] <= most_redone, found
    finished = [a.state for job in campaign.jobs() for a in job.ledger().attempts if a.state == "finished"]
    assert len(finished) <= len(campaign.jobs())
    return Row(
        fault,
        found["planned"],
        found["accepted"],
        found["accepted_twice"],
        found["planned"] - found["accepted"],
        found["superseded"],
        found["blocks_redone"],
        seconds,
    )


def table(rows: list[Row], cluster: Cluster) -> str:
    """Markdown with its provenance."""
    head = "| fault | planned | accepted | accepted twice | lost | superseded | blocks redone | seconds to recover |"
    rule = "| :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    numbers = [(r.planned, r.accepted, r.twice, r.lost, r.superseded, r.redone, round(r.seconds)) for r in rows]
    lines = [f"| {r.fault} | {' | '.join(map(str, n))} |" for r, n in zip(rows, numbers, strict=True)]
    return "\n".join([f"Measured on: {origin(cluster)}.", "", head, rule, *lines, ""])


def origin(cluster: Cluster) -> str:
    """Where and of what something was measured."""
    version = cluster.call("scontrol", "--version", check=False)[1].strip() or "Slurm"
    load = f"{os.cpu_count()} cores at a load of {os.getloadavg()[2]:.0f}"
    machine = f"{load}, {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}"
    return f"{version}, loopback cluster of {len(NODES)} virtual nodes, {machine}, commit {_commit()}"


def _commit() -> str:
    """Of the sources under test; says so when they are not as committed."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def heal(cluster: Cluster) -> None:
    """After a test: no jobs, every daemon running, every node idle."""
    running = cluster.processes()
    for name in ["slurmctld", *(f"slurmd-{node}" for node in NODES)]:
        if name not in running:
            cluster.start(name)
    until(lambda: cluster.call("scontrol", "ping", check=False)[0] == 0, "the controller answers")
    cluster.call("scancel", "--user", str(os.getuid()), check=False)
    until(lambda: not cluster.call("squeue", "-h")[1].strip(), "the queue empties")
    for node in set(cluster.call("sinfo", "-h", "-N", "-t", "down,drain", "-o", "%N")[1].split()):
        cluster.call("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    cluster.wait_idle(len(NODES))
