"""Racks at campaign level: one that never comes free, the order in which they are asked for, clocks that disagree."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from k3bench.cluster import Cluster, Layout, missing_packages
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Measurement
from k3bench.records.plan import Plan
from k3bench.store import read_record

from ..workflow.clone import environment
from .campaign import NAME, RECIPE, UNTIL, Campaign, path_with
from .faults import check

pytestmark = pytest.mark.timeout(420)
LONG = pytest.mark.all_faults
SKEW = timedelta(minutes=10)
#: Whole racks, so that one allocation waits for another: 12 s each, longer than the limit of 9 s.
SCARCE = (
    RECIPE.replace("wait_s_per_batch: 0.06", "wait_s_per_batch: 0.15")
    .replace("nodes: 2", "nodes: 4")
    .replace("blocks: 4\nblocks_per_allocation: 4", "blocks: 2\nblocks_per_allocation: 2")
    .replace("minutes: 10", "minutes: 10, queue_minutes: 0.15")
)


def submitted(campaign: Campaign) -> list[str]:
    """Observation/allocation of every first attempt, by rising job id."""
    found = []
    for job in campaign.jobs():
        asked = job.request(1).arguments
        found.append((int(job.ledger().attempts[0].job or 0), f"{asked['observation']}/{asked['allocation']}"))
    return [name for _, name in sorted(found)]


def planned(campaign: Campaign) -> list[str]:
    """The same names in the order of the plan."""
    plan = read_record(campaign.results / "plan.json", Plan)
    return [f"{o.id}/{a.id}" for o in plan.observations for a in o.allocations]


@LONG
def test_zero_changes_are_submitted_first_and_last(cluster: Cluster, tmp_path: Path) -> None:
    """Under Snakemake's scheduler too: job ids rise in the order of the plan."""
    recipe = RECIPE.replace("zero_change: 1", "zero_change: 2").replace(
        "blocks_per_allocation: 4", "blocks_per_allocation: 1"
    )
    campaign = Campaign(cluster, tmp_path / "a clone", recipe.replace("0.06", "0.0"))
    campaign.finish()
    order = submitted(campaign)
    assert order == planned(campaign)
    assert [name.split("/")[0] for name in order] == [o for o in ("zero1", "obs1", "obs2", "zero2") for _ in range(4)]


def test_a_rack_that_never_comes_free(cluster: Cluster, tmp_path: Path, rows: list) -> None:
    """Its job is withdrawn and said to be so everywhere; the other rack is measured, whatever waits for our own jobs
    there; with the rack free again a new start measures the rest.
    """
    stranger = cluster.call("sbatch", "--parsable", "-N4", "-C", "d127", "-o", "/dev/null", "--wrap", "sleep 900")[1]
    campaign = Campaign(cluster, tmp_path / "a clone", SCARCE, rest=("--", "--until", "publish"))
    begun = time.monotonic()
    output = campaign.head.wait()
    assert "obs2/alloc1: NOT measured\ndid not start within 0.15 min and was withdrawn: job" in output
    command = ["k3bench", "status", f"recipes/{NAME}.yaml"]
    status = subprocess.run(command, cwd=campaign.clone, env=environment(), capture_output=True, text=True, check=True)
    assert "3 allocations: 2 done, 1 cancelled" in status.stdout
    assert "did not start within 0.15 min" in status.stdout
    comparison = read_record(campaign.results / "comparison.json", Comparison)
    row = next(o for o in comparison.observations if o.observation == "obs2")
    assert row.status == "missing"
    assert "did not start within 0.15 min" in row.reason
    assert "obs2" in (campaign.results / "report/pr.md").read_text()
    cluster.call("scancel", stranger.strip())
    campaign.rest = UNTIL
    campaign.again()
    campaign.finish()
    rows.append(check("rack never comes free, then it does", campaign, time.monotonic() - begun, most_redone=0))


@LONG
def test_a_rack_that_is_not_even_free_for_the_build(cluster: Cluster, tmp_path: Path, rows: list) -> None:
    """Builds as jobs on their racks: one pair is not made, the other is measured; a new start makes up for it."""
    stranger = cluster.call("sbatch", "--parsable", "-N4", "-C", "d127", "-o", "/dev/null", "--wrap", "sleep 900")[1]
    campaign = Campaign(cluster, tmp_path / "a clone", SCARCE + "build_where: job\n", rest=("--", "--until", "compare"))
    begun = time.monotonic()
    output = campaign.head.wait()
    assert "obs2/alloc1: NOT measured\nbuild pair p2 was not made: did not start within 0.15 min" in output
    row = next(
        o for o in read_record(campaign.results / "comparison.json", Comparison).observations if o.observation == "obs2"
    )
    assert row.status == "missing"
    assert "build pair p2 was not made" in (row.reason or "")
    cluster.call("scancel", stranger.strip())
    campaign.rest = UNTIL
    campaign.again()
    campaign.finish()
    rows.append(check("rack not free for the build, then it is", campaign, time.monotonic() - begun, most_redone=0))


def _on_rack(rack: str, skew: str) -> str:
    """Line of an sbatch that starts the worker of a rack's job under another clock; the last argument is the script."""
    return f'grep -q "constraint={rack}" "${{@: -1}}" && sed -i "s/^exec /exec faketime -f {skew} /" "${{@: -1}}"\n'


@pytest.fixture
def skewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster whose rack d157 is ten minutes behind and d127 ten minutes ahead: daemons, and jobs as they start."""
    if reason := missing_packages():
        pytest.skip(reason)
    if shutil.which("faketime") is None:
        pytest.skip("not installed: faketime (apt-get install --no-install-recommends faketime)")
    cluster = Cluster(Path("/tmp") / f"k3s-{os.getpid()}", tied=True)
    skews = {"d157": "-600s", "d127": "+600s"}
    script = "".join(_on_rack(rack, skew) for rack, skew in skews.items()) + 'exec REAL "$@"\n'
    try:
        cluster.up(Layout(node_timeout_s=10, credential_s=3600))
        for node in Layout().nodes:
            cluster.kill(f"slurmd-{node}")
            cluster.start(f"slurmd-{node}", "faketime", "-f", skews[node.rpartition("-n")[0]])
        cluster.wait_idle(len(Layout().nodes))
        monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        monkeypatch.setenv("PATH", path_with(tmp_path / "bin", "sbatch", script))
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@LONG
def test_clocks_of_head_and_nodes_ten_minutes_apart(skewed: Cluster, tmp_path: Path, rows: list, running) -> None:
    """Head and a worker are killed on top of it: what is lost, live or finished is known without comparing clocks."""
    campaign = Campaign(skewed, tmp_path / "a clone")
    worker = campaign.worker(campaign.under_way())
    begun = time.monotonic()
    campaign.head.kill()
    os.kill(worker, signal.SIGKILL)
    campaign.again()
    campaign.finish()
    rows.append(
        check(
            "clocks of head and nodes 10 min apart, head and worker SIGKILLed",
            campaign,
            time.monotonic() - begun,
            most_redone=1,
        )
    )
    assert offsets(campaign) == {"d157": -1, "d127": 1}


def offsets(campaign: Campaign) -> dict[str, int]:
    """By how many times ten minutes each rack's records differ from this clock."""
    found = {}
    for path in campaign.results.glob("observations/*/points/*.json"):
        point = read_record(path, Measurement)
        began = datetime.fromisoformat(point.started)
        found[point.rack] = round((began - datetime.fromtimestamp(path.stat().st_mtime, UTC)) / SKEW)
    return found


@LONG
def test_accounting_goes_away_mid_campaign(tmp_path: Path, monkeypatch, rows: list, running) -> None:
    """With slurmdbd gone a worker's death is known from the queue alone, as on a cluster that never had accounting."""
    if reason := missing_packages(accounting=True):
        pytest.skip(reason)
    cluster = Cluster(Path("/tmp") / f"k3d-{os.getpid()}", tied=True)
    try:
        cluster.up(Layout(node_timeout_s=10, accounting=True))
        monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        campaign = Campaign(cluster, tmp_path / "a clone")
        worker = campaign.worker(campaign.under_way())
        begun = time.monotonic()
        cluster.kill("slurmdbd")
        os.kill(worker, signal.SIGKILL)
        campaign.finish()
        rows.append(check("accounting SIGKILLed, then a worker", campaign, time.monotonic() - begun, most_redone=1))
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)
