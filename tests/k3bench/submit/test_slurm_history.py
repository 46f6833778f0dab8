"""On a Slurm that forgets: accounting is asked where there is one, nothing is made up, reused ids are seen through."""

import os
import shutil
import signal

import example_jobs
import pytest
from on_slurm import SPEC, heal, loopback
from place import answer_of, until

from k3bench.cluster import Layout
from k3bench.submit import run_once

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def accounted():
    """A cluster with slurmdbd whose controller forgets ended jobs at once."""
    yield from loopback(accounting=True, min_job_age_s=2)


@pytest.fixture(scope="module")
def forgetful():
    """The same without accounting: what the controller has forgotten, nobody knows."""
    yield from loopback(min_job_age_s=2)


@pytest.fixture
def use(monkeypatch):
    """Let Slurm's commands find a cluster, and leave it as it was."""
    used = []

    def enter(cluster):
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        used.append(cluster)
        return cluster

    yield enter
    for cluster in used:
        heal(cluster)


def waiting(place):
    return {"log": str(place.log), "gate": str(place.gate)}


def abandon(place):
    """A job runs, and its head is killed; returns job id and worker's pid."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    pid = int(until(lambda: place.noted(), "the worker begins")[0].split()[2])
    job = until(lambda: place.ledger().last.job, "the job is in the ledger")
    head.kill()
    head.wait()
    return job, pid


def forgotten(cluster, job):
    return until(lambda: job not in cluster.call("squeue", "-h", "-t", "all", "-o", "%A")[1].split(), "Slurm forgets")


def test_a_job_cancelled_while_nobody_waited_is_known_from_accounting(accounted, use, place):
    """The controller has forgotten it; sacct says CANCELLED, so nothing is submitted again."""
    cluster = use(accounted)
    job, _ = abandon(place)
    cluster.call("scancel", job)
    forgotten(cluster, job)
    assert "was cancelled" in answer_of(place.start_head("wait_for", waiting(place), SPEC))["what"]
    assert len(place.noted()) == 1


def test_a_job_that_died_while_nobody_waited_is_known_from_accounting(accounted, use, place):
    """sacct says FAILED: one new job."""
    cluster = use(accounted)
    job, pid = abandon(place)
    os.kill(pid, signal.SIGKILL)
    forgotten(cluster, job)
    place.gate.touch()
    assert answer_of(place.start_head("wait_for", waiting(place), SPEC))["attempt"] == 2
    assert "FAILED" in place.ledger().attempts[0].reason


def test_a_job_that_nobody_remembers_is_measured_again(forgetful, use, place):
    """Without accounting and after the controller forgot it there is no job and no result: one new job."""
    cluster = use(forgetful)
    job, pid = abandon(place)
    os.kill(pid, signal.SIGKILL)
    forgotten(cluster, job)
    place.gate.touch()
    assert answer_of(place.start_head("wait_for", waiting(place), SPEC))["attempt"] == 2
    assert f"knows no job {job}" in place.ledger().attempts[0].reason


def test_a_cancellation_through_us_is_remembered_even_without_accounting(forgetful, use, place):
    """`cancel` leaves its mark in the job's own folder."""
    from k3bench.submit import cancel

    cluster = use(forgetful)
    job, _ = abandon(place)
    assert cancel(place.key, jobs=place.jobs).state == "cancelled"
    forgotten(cluster, job)
    assert [a.state for a in place.ledger().attempts] == ["cancelled"]


def test_a_reused_job_id_is_somebody_elses(monkeypatch, place):
    """A wiped controller hands the same number to another job: it is neither adopted, believed nor cancelled."""
    for cluster in loopback(first_job_id=4711):
        monkeypatch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        job, pid = abandon(place)
        assert job == "4711"
        for name in ("slurmctld", *(n for n in cluster.processes() if n.startswith("slurmd"))):
            cluster.kill(name)
        os.kill(pid, signal.SIGKILL)
        cluster.down()
        for wiped in ("state", "spool"):
            shutil.rmtree(cluster.folder / wiped)
        cluster.up(Layout(first_job_id=4711))
        cluster.call("sbatch", "-N1", "-C", "d127", "-o", "/dev/null", "--wrap", "sleep 600")
        assert cluster.call("squeue", "-h", "-o", "%A")[1].split() == ["4711"]
        place.gate.touch()
        outcome = run_once(place.key, example_jobs.wait_for, waiting(place), jobs=place.jobs, spec=SPEC)
        assert (outcome.attempt.number, outcome.attempt.job) == (2, "4712")
        assert "4711" in cluster.call("squeue", "-h", "-t", "R", "-o", "%A")[1].split()
