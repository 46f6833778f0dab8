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

__all__ = ["Cluster", "Layout", "add_arguments", "environment", "missing_packages", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `k3bench cluster`."""
    parser.add_argument("action", choices=("up", "env", "down"), help="start it, print its environment, stop it")
    parser.add_argument("--dir", type=Path, default=default_folder(), help="where it keeps everything (%(default)s)")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB, so that sacct works")
    parser.add_argument("--racks", default="d157,d127", help="rack names (%(default)s)")
    parser.add_argument("--nodes-per-rack", type=int, default=4, metavar="N", help="virtual nodes (%(default)s)")
    parser.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="pretended GPUs (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `k3bench cluster ACTION`; returns the exit status."""
    cluster = Cluster(arguments.dir)
    if arguments.action == "up":
        layout = Layout(
            racks=tuple(arguments.racks.split(",")),
            nodes_per_rack=arguments.nodes_per_rack,
            gpus_per_node=arguments.gpus_per_node,
            accounting=arguments.accounting,
        )
        cluster.up(layout, say=print)
        print(f'\nthis shell can use it after\n  eval "$(./k3 cluster env{_elsewhere(arguments.dir)})"')
    elif arguments.action == "env":
        if not cluster.is_up():
            raise K3Error("no loopback cluster runs here", where=str(arguments.dir), fix="start one: ./k3 cluster up")
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
