"""What waiting costs the head node and the controller, for 20 and for 200 allocations in the queue."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from k3bench.cluster import Cluster

from ..workflow.test_kills import victims
from .campaign import RECIPE, Campaign, until
from .faults import origin

WATCHED_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """A moment: proportional memory (MB) by kind of process, CPU seconds so far, questions to the controller so far."""

    memory: dict[str, float]
    cpu_s: float
    questions: int


def cost(campaign: Campaign) -> Cost:
    """Of all processes of the campaign on the head node; its jobs have not begun."""
    memory: Counter[str] = Counter()
    cpu = 0.0
    for kind, pid in victims(campaign.clone):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        memory[kind] += int(rollup.partition("\nPss:")[2].split()[0]) / 1024
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
    return Cost(dict(memory), cpu, questions(campaign.cluster))


def questions(cluster: Cluster) -> int:
    """How often the controller was asked for its jobs, by its own count."""
    shown = cluster.call("sdiag")[1]
    return sum(int(count) for count in re.findall(r"REQUEST_JOB_(?:USER_)?INFO\s.*count:(\d+)", shown))


@pytest.mark.all_faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("waiting", [20, 200])
def test_waiting_costs_one_process_and_one_question_an_interval(cluster, tmp_path: Path, waiting: int) -> None:
    """However many wait: less than a megabyte each, and seven questions a minute at most."""
    cluster.call("sbatch", "-N8", "-o", "/dev/null", "--wrap", "sleep 3000")
    until(lambda: "RUNNING" in cluster.call("squeue", "-h", "-o", "%T")[1], "all nodes are taken")
    recipe = RECIPE.replace("blocks: 4\nblocks_per_allocation: 4", f"blocks: {waiting // 2}").replace(
        "zero_change: 1", "zero_change: 0"
    )
    begun = time.monotonic()
    campaign = Campaign(cluster, tmp_path / "a clone", recipe)
    try:
        until(lambda: len(campaign.attempts()) == waiting and all(a.job for a in campaign.attempts()), "all wait", 600)
        submitted_s = time.monotonic() - begun
        time.sleep(15)
        before = cost(campaign)
        time.sleep(WATCHED_S)
        after = cost(campaign)
    finally:
        campaign.head.kill()
        campaign.kill_waiter()
    memory = {kind: round(mb, 1) for kind, mb in sorted(after.memory.items())}
    asked, cpu = after.questions - before.questions, after.cpu_s - before.cpu_s
    text = f"{waiting} waiting: MB {memory}, {cpu:.2f} CPU s and {asked} questions in {WATCHED_S:.0f} s, "
    text += f"all submitted after {submitted_s:.0f} s; {origin(campaign.cluster)}"
    print(text)
    if target := os.environ.get("K3_HEAD_COST"):
        with Path(target).open("a") as file:
            file.write(text + "\n")
    assert after.memory["waiter"] < 100 + waiting
    assert 1 <= asked <= 7 + 1
