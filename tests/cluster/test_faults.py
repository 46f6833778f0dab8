"""Faults of a campaign on a real Slurm: whatever fails, every planned point ends with exactly one accepted record."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from k3bench.cluster import Cluster, Layout

from ..workflow.test_failures import mounted
from .campaign import NAME, RECIPE, UNTIL, Campaign, Head, path_with, until
from .faults import check
from .test_racks import planned, submitted

pytestmark = pytest.mark.timeout(420)
LONG = pytest.mark.all_faults


def test_nothing_happens(campaign: Campaign, rows: list) -> None:
    """The undisturbed campaign, to compare the others with; its jobs are submitted in the order of the plan."""
    begun = time.monotonic()
    campaign.finish()
    assert submitted(campaign) == planned(campaign)
    rows.append(check("none", campaign, time.monotonic() - begun, most_redone=0))


def test_head_killed_while_jobs_run(campaign: Campaign, rows: list) -> None:
    """Waiters go on by themselves; the next head finds them queued for the same keys, and the jobs are adopted."""
    campaign.under_way()
    begun = time.monotonic()
    campaign.head.kill()
    campaign.again()
    campaign.finish()
    rows.append(check("head SIGKILLed while jobs run", campaign, time.monotonic() - begun, most_redone=0))


@LONG
def test_head_killed_and_jobs_end_meanwhile(campaign: Campaign, rows: list) -> None:
    """Results are found on disk; nothing is submitted again."""
    campaign.under_way()
    begun = time.monotonic()
    campaign.head.kill()
    campaign.kill_waiter()
    until(lambda: not campaign.cluster.call("squeue", "-h")[1].strip(), "the jobs end")
    campaign.again()
    campaign.finish()
    assert campaign.lost() == {}
    rows.append(
        check("head and waiters SIGKILLed, jobs end meanwhile", campaign, time.monotonic() - begun, most_redone=0)
    )


def test_head_and_waiters_killed(campaign: Campaign, rows: list) -> None:
    """Only the jobs live; a new head adopts them."""
    campaign.under_way()
    begun = time.monotonic()
    campaign.head.kill()
    campaign.kill_waiter()
    campaign.again()
    campaign.finish()
    rows.append(check("head and waiters SIGKILLed while jobs run", campaign, time.monotonic() - begun, most_redone=0))
    assert campaign.lost() == {}


def test_waiter_dies_between_sbatch_and_ledger(cluster, tmp_path: Path, monkeypatch, rows: list) -> None:
    """Twice the first sbatch kills the process that called it: the jobs run, the ledgers do not know them."""
    once = 'out=$(REAL "$@")\n[ -e {0}/$PPID ] || {{ touch {0}/$PPID; kill -9 $PPID; }}\necho "$out"\n'
    marks = tmp_path / "marks"
    marks.mkdir()
    real = os.environ["PATH"]
    monkeypatch.setenv("PATH", path_with(tmp_path / "bin", "sbatch", once.format(marks)))
    campaign = Campaign(cluster, tmp_path / "a clone")
    begun = time.monotonic()
    for number in (1, 2):
        campaign.head.wait()
        assert len(list(marks.iterdir())) == number
        if number == 2:
            monkeypatch.setenv("PATH", real)
        campaign.again()
    campaign.finish()
    rows.append(check("sbatch succeeds, then its caller dies", campaign, time.monotonic() - begun, most_redone=0))
    assert campaign.lost() == {}


def test_worker_killed_mid_point(campaign: Campaign, rows: list) -> None:
    """The block in flight is measured again whole; its fragments stay, counted apart."""
    worker = campaign.worker(campaign.under_way())
    begun = time.monotonic()
    os.kill(worker, signal.SIGKILL)
    campaign.finish()
    rows.append(check("worker SIGKILLed mid-point", campaign, time.monotonic() - begun, most_redone=1))


def test_node_daemon_killed_mid_block(campaign: Campaign, rows: list) -> None:
    """The worker outlives its slurmd and its work is kept."""
    node = campaign.node(campaign.under_way())
    begun = time.monotonic()
    campaign.cluster.kill(f"slurmd-{node}")
    campaign.finish()
    rows.append(check("node daemon SIGKILLed mid-block", campaign, time.monotonic() - begun, most_redone=0))


@LONG
def test_node_lost_mid_block(campaign: Campaign, rows: list) -> None:
    """Daemon and worker die together: a new job on the rack's other nodes."""
    attempt = campaign.under_way()
    node, worker = campaign.node(attempt), campaign.worker(attempt)
    begun = time.monotonic()
    campaign.cluster.kill(f"slurmd-{node}")
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    os.kill(worker, signal.SIGKILL)
    campaign.finish()
    rows.append(check("node lost mid-block", campaign, time.monotonic() - begun, most_redone=1))


def test_cancelled_by_the_user(campaign: Campaign, rows: list) -> None:
    """Not submitted again by this head: the campaign goes on with the others and says so; a new start measures it."""
    attempt = campaign.under_way()
    begun = time.monotonic()
    campaign.cluster.call("scancel", attempt.job)
    output = campaign.head.wait()
    assert "was cancelled, so nothing is submitted again" in output
    assert not campaign.is_complete()
    assert sum(a.name.startswith(attempt.name[:19]) for a in campaign.attempts()) == 1
    campaign.again()
    campaign.finish()
    rows.append(check("scancel by the user, then started again", campaign, time.monotonic() - begun, most_redone=1))


@LONG
def test_time_limit_mid_block(cluster, tmp_path: Path, rows: list) -> None:
    """The limit is shortened under the running job: it ends at its next point, and the next attempt does the rest."""
    campaign = Campaign(cluster, tmp_path / "a clone", RECIPE.replace("0.06", "0.6"))
    attempt = campaign.under_way()
    begun = time.monotonic()
    campaign.cluster.call("scontrol", "update", f"jobid={attempt.job}", "timelimit=1")
    campaign.finish()
    rows.append(check("time limit mid-block", campaign, time.monotonic() - begun, most_redone=1))
    assert "the time limit is near" in [a.reason for a in campaign.attempts()]


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=LONG)])
def test_controller_away(campaign: Campaign, rows: list, seconds: int) -> None:
    """Nothing is concluded from silence. A controller killed like this may forget its newest jobs: those come again."""
    campaign.under_way()
    begun = time.monotonic()
    campaign.cluster.kill("slurmctld")
    time.sleep(seconds)
    campaign.cluster.start("slurmctld")
    campaign.finish()
    rows.append(check(f"slurmctld down for {seconds} s", campaign, time.monotonic() - begun, most_redone=0))
    lost = [a.reason for a in campaign.attempts() if a.state == "lost"]
    assert all(reason.startswith("Slurm knows no job") for reason in lost)


@LONG
def test_wiped_controller_reuses_job_ids(tmp_path: Path, monkeypatch, rows: list, running) -> None:
    """The cluster forgets everything and counts from the same number: the new jobs are not taken for the old ones."""
    cluster = Cluster(Path("/tmp") / f"k3w-{os.getpid()}", tied=True)
    try:
        cluster.up(Layout(first_job_id=4711, node_timeout_s=10))
        monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        campaign = Campaign(cluster, tmp_path / "a clone")
        campaign.under_way()
        begun = time.monotonic()
        campaign.head.kill()
        for pid in campaign.pids("waiter", "worker"):
            os.kill(pid, signal.SIGKILL)
        for name in ("slurmctld", *(n for n in cluster.processes() if n.startswith("slurmd"))):
            cluster.kill(name)
        cluster.down()
        for wiped in ("state", "spool"):
            shutil.rmtree(cluster.folder / wiped)
        cluster.up(Layout(first_job_id=4711, node_timeout_s=10))
        for _ in range(4):
            cluster.call("sbatch", "-N1", "-o", "/dev/null", "--wrap", "sleep 600")
        campaign.again()
        campaign.finish()
        rows.append(check("controller wiped, job ids reused", campaign, time.monotonic() - begun, most_redone=3))
        assert len(cluster.call("squeue", "-h", "-t", "R")[1].splitlines()) == 4
    finally:
        cluster.down()
        shutil.rmtree(cluster.folder, ignore_errors=True)


@LONG
def test_two_heads_on_one_recipe(campaign: Campaign, rows: list) -> None:
    """The second is told so; the first goes on."""
    campaign.under_way()
    begun = time.monotonic()
    assert "is being run by another head" in Head(campaign.clone, NAME, UNTIL).wait()
    campaign.finish()
    rows.append(check("two heads at once", campaign, time.monotonic() - begun, most_redone=0))
    assert campaign.lost() == {}


@LONG
def test_results_removed_while_the_ledger_stays(campaign: Campaign, rows: list) -> None:
    """A ledger that says "finished" is not believed without its files."""
    campaign.finish()
    begun = time.monotonic()
    shutil.rmtree(campaign.results)
    campaign.again()
    campaign.finish()
    rows.append(check("results removed, ledger stays", campaign, time.monotonic() - begun))
    assert all([a.state for a in job.ledger().attempts] == ["voided", "finished"] for job in campaign.jobs())


@LONG
def test_ledger_removed_while_results_stay(campaign: Campaign, rows: list) -> None:
    """Finished blocks are found by their files; nothing is measured again."""
    campaign.finish()
    before = campaign.points()
    begun = time.monotonic()
    shutil.rmtree(campaign.clone / ".k3")
    for summary in campaign.results.glob("observations/*/alloc*.json"):
        summary.unlink()
    campaign.again()
    campaign.finish()
    rows.append(check("ledger removed, results stay", campaign, time.monotonic() - begun, most_redone=0))
    assert campaign.points() == before


@LONG
def test_full_disk_under_the_results(cluster, tmp_path: Path, rows: list) -> None:
    """One clear error; with room again the campaign goes on from what is on disk."""
    clone = tmp_path / "a clone"
    with mounted(tmp_path / "disk", "size=256k"):
        campaign = Campaign(cluster, clone)
        until(lambda: (campaign.results / "plan.json").exists(), "the plan is there")
        folder = campaign.results / "observations"
        folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(tmp_path / "disk"), str(folder)], check=True)
        try:
            begun = time.monotonic()
            output = campaign.head.wait()
            logs = "".join(p.read_text() for p in campaign.results.glob("logs/*.log"))
            assert "No space left on device" in output + logs
            subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "disk")], check=True)
            campaign.again()
            campaign.finish()
            rows.append(check("disk full, then room again", campaign, time.monotonic() - begun))
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=False)
