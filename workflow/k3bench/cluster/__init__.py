"""A real Slurm on one machine, to try and to test the slurm profile: `k3bench cluster up`, `env`, `down`.

In: a folder, racks, sizes. Out: running daemons of our own, and the environment in which Slurm's commands find them.
Out of scope: systemd, cgroups, anything under /etc, any process that `up` did not start.
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

from k3bench.cluster.daemons import Cluster, missing_packages
from k3bench.cluster.layout import Layout, default_folder
from k3bench.errors import K3Error

__all__ = ["Cluster", "Layout", "environment", "missing_packages", "run"]


def run(arguments: argparse.Namespace) -> int:
    """Carry out `k3bench cluster ACTION`; returns the exit status."""
    folder = arguments.dir or default_folder()
    cluster = Cluster(folder)
    if arguments.action == "up":
        layout = Layout(
            racks=tuple(arguments.racks.split(",")),
            nodes_per_rack=arguments.nodes_per_rack,
            gpus_per_node=arguments.gpus_per_node,
            accounting=arguments.accounting,
        )
        cluster.up(layout, say=print)
        print(f'\nthis shell can use it after\n  eval "$(./k3 cluster env{_elsewhere(folder)})"')
    elif arguments.action == "env":
        if not cluster.is_up():
            raise K3Error("no loopback cluster runs here", where=str(folder), fix="start one: ./k3 cluster up")
        for name, value in cluster.environment().items():
            print(f"export {name}={shlex.quote(value)}")
    else:
        cluster.down(say=print)
    return 0


def environment() -> dict[str, str]:
    """What lets Slurm's commands find the default loopback cluster; empty when another Slurm is meant, or none runs."""
    cluster = Cluster(default_folder())
    other = "SLURM_CONF" in os.environ or Path("/etc/slurm/slurm.conf").exists()
    return {} if other or not cluster.is_up() else cluster.environment()


def _elsewhere(folder: Path) -> str:
    return "" if folder == default_folder() else f" --dir {shlex.quote(str(folder))}"
