"""Random victims at random moments: head, waiter, worker, node daemon. Nothing is lost and nothing doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from k3bench.cluster import Cluster

from .campaign import RECIPE, Campaign
from .faults import NODES, check

KINDS = ("head", "waiter", "worker", "worker", "slurmd")
#: One job a rack at a time, long enough that the fiftieth kill comes before the end.
LONG_RECIPE = (
    RECIPE.replace("wait_s_per_batch: 0.06", "wait_s_per_batch: 0.4")
    .replace("zero_change: 1", "zero_change: 2")
    .replace("blocks: 4\n", "blocks: 16\n")
    .replace("nodes: 2", "nodes: 4")
)


def soak(campaign: Campaign, kills: int, seed: int) -> Counter[str]:
    """Kill, start again what has to be started again, and go on; returns how many of each kind were killed."""
    draw, killed, begun = random.Random(seed), Counter[str](), time.monotonic()
    while sum(killed.values()) < kills and not _is_over(campaign):
        time.sleep(draw.uniform(0.2, 3.0))
        kind = draw.choice(KINDS)
        if kind == "slurmd":
            node = draw.choice(NODES)
            campaign.cluster.kill(f"slurmd-{node}")
            killed[kind] += 1
        else:
            killed[kind] += _kill_one(campaign, kind, draw)
        print(f"{time.monotonic() - begun:6.1f} s  {kind}: {sum(killed.values())} kills", flush=True)
        _stand_up_again(campaign)
    return killed


def _is_over(campaign: Campaign) -> bool:
    """Reading all records takes as long as a kill, so only an ended head makes us look."""
    return campaign.head.ended() and campaign.is_complete()


def _kill_one(campaign: Campaign, kind: str, draw: random.Random) -> int:
    end = time.monotonic() + 10
    while not (found := sorted(campaign.pids(kind))) and time.monotonic() < end and not _is_over(campaign):
        time.sleep(0.1)
    if not found:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(found), signal.SIGKILL)
        return 1
    return 0


def _stand_up_again(campaign: Campaign) -> None:
    """A person would start the head again and an administrator the node."""
    running = campaign.cluster.processes()
    for node in NODES:
        if f"slurmd-{node}" not in running:
            campaign.cluster.start(f"slurmd-{node}")
    if campaign.head.ended():
        campaign.again()


def soaked(cluster: Cluster, clone: Path, recipe: str, kills: int, seed: int, rows: list) -> None:
    """One soak, checked and written down."""
    campaign = Campaign(cluster, clone, recipe)
    begun = time.monotonic()
    killed = soak(campaign, kills, seed)
    campaign.finish(patience_s=1500)
    total = sum(killed.values())
    assert total == kills, f"the campaign ended before the {kills} kills: {killed}"
    words = ", ".join(f"{number} {kind}" for kind, number in sorted(killed.items()) if number)
    rows.append(check(f"{total} random kills ({words})", campaign, time.monotonic() - begun, most_redone=total))


@pytest.mark.timeout(420)
def test_five_random_kills(cluster: Cluster, tmp_path: Path, rows: list) -> None:
    """The short form."""
    soaked(cluster, tmp_path / "clone", RECIPE.replace("0.06", "0.15"), 5, 1, rows)


@pytest.mark.all_faults
@pytest.mark.timeout(3600)
def test_fifty_random_kills(cluster: Cluster, tmp_path: Path, rows: list) -> None:
    """The long form."""
    soaked(cluster, tmp_path / "clone", LONG_RECIPE, 50, 2, rows)
