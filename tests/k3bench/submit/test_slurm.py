"""On a real Slurm: whatever dies, whenever, a block's job runs once and its result is neither lost nor doubled."""

import os
import signal
import subprocess
from pathlib import Path

import example_jobs
import pytest
from on_slurm import SPEC, heal, loopback
from place import answer_of, until

from k3bench.errors import MeasureError
from k3bench.submit import run_once
from k3bench.submit.folder import JobFolder

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def running():
    """One cluster without accounting for the whole module: squeue is all there is to ask."""
    yield from loopback(node_timeout_s=10)


@pytest.fixture
def cluster(running, monkeypatch):
    """The cluster, found by Slurm's commands, with nothing left over from an earlier test."""
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    yield running
    heal(running)


def waiting(place):
    return {"log": str(place.log), "gate": str(place.gate)}


def worker_pid(place, attempt=1):
    lines = until(lambda: [n for n in place.noted() if n.split()[1] == str(attempt)], f"attempt {attempt} begins")
    return int(lines[0].split()[2])


def job_of(place):
    return until(lambda: (last := place.ledger().last) and last.job, "the job is in the ledger")


def on_path(monkeypatch, folder: Path, name: str, script: str) -> None:
    """Put a script before the real command of that name."""
    real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/bash\n" + script.replace("REAL", real))
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_job_runs_whole_on_one_rack_and_says_where(cluster, place):
    """Constraint, switch, exclusive nodes and size reach Slurm; rack, nodes and job are on record."""
    spec = SPEC.model_copy(update={"nodes": 2, "tasks_per_node": 4, "constraint": "d127"})
    head = place.start_head("wait_for", waiting(place), spec)
    worker_pid(place)
    _, shown = cluster.call("scontrol", "show", "job", job_of(place))
    for word in ("NumNodes=2", "Features=d127", "Switches=1@", "OverSubscribe=NO", "Requeue=0"):
        assert word in shown
    started = JobFolder(place.folder).started(place.ledger().last)
    assert started.slurm["SLURM_JOB_NODELIST"] == "d127-n[1-2]"
    assert started.slurm["SLURM_JOB_ID"] == job_of(place)
    place.gate.touch()
    assert answer_of(head)["how"] == "submitted"


def test_a_killed_heads_job_is_adopted_while_it_runs(cluster, place):
    """The next head finds the job in the ledger and waits for it."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    pid = worker_pid(place)
    job_of(place)
    head.kill()
    head.wait()
    second = place.start_head("wait_for", waiting(place), SPEC)
    until(lambda: "taking over" in second.out.read_text(), "the second head adopts")
    place.gate.touch()
    assert answer_of(second) == {"how": "adopted", "result": {"pid": pid, "attempt": 1}, "attempt": 1}


def test_a_job_that_ended_while_no_head_was_there_is_not_run_again(cluster, place):
    """Its result is taken from disk."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    worker_pid(place)
    job_of(place)
    head.kill()
    head.wait()
    place.gate.touch()
    until(lambda: (place.folder / "attempts/1/ended.json").exists(), "the job finishes")
    assert answer_of(place.start_head("wait_for", waiting(place), SPEC))["attempt"] == 1
    assert len(place.noted()) == 1


@pytest.mark.parametrize(
    "script",
    [
        'out=$(REAL "$@"); kill -9 $PPID; echo "$out"\n',
        'kill -9 $PPID; sleep 1; exec REAL "$@"\n',
    ],
    ids=["after sbatch", "while sbatch is on its way"],
)
def test_a_head_killed_between_sbatch_and_ledger_is_made_good(cluster, place, monkeypatch, tmp_path, script):
    """The ledger knows the intent; the job is found by its name, which carries the token."""
    monkeypatch.setenv("SAVED_PATH", os.environ["PATH"])
    on_path(monkeypatch, tmp_path / "bin", "sbatch", script)
    assert place.start_head("wait_for", waiting(place), SPEC).wait() == -signal.SIGKILL
    assert place.ledger().last.state == "intended"
    monkeypatch.setenv("PATH", os.environ["SAVED_PATH"])
    patient = SPEC.model_copy(update={"grace_s": 5.0})
    second = place.start_head("wait_for", waiting(place), patient)
    worker_pid(place)
    place.gate.touch()
    assert answer_of(second)["attempt"] == 1
    assert len(place.noted()) == 1


def test_two_heads_at_once_share_one_job(cluster, place):
    """The second queues behind the first; there is one job in Slurm."""
    heads = [place.start_head("wait_for", waiting(place), SPEC) for _ in range(2)]
    worker_pid(place)
    until(lambda: any("queueing" in head.out.read_text() for head in heads), "one head queues")
    assert len(cluster.call("squeue", "-h")[1].splitlines()) == 1
    place.gate.touch()
    assert sorted(answer_of(head)["how"] for head in heads) == ["kept", "submitted"]
    assert len(place.noted()) == 1


def test_a_killed_worker_is_replaced_by_a_new_job(cluster, place):
    """A job that dies without a word is seen without accounting, and one new job follows."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    os.kill(worker_pid(place), signal.SIGKILL)
    worker_pid(place, attempt=2)
    place.gate.touch()
    assert answer_of(head)["attempt"] == 2
    assert [a.state for a in place.ledger().attempts] == ["lost", "finished"]


def test_a_cancelled_job_is_not_submitted_again(cluster, place):
    """scancel is a person's decision; SIGTERM ends the function at once, although submitit would swallow it."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    pid = worker_pid(place)
    cluster.call("scancel", job_of(place))
    answer = answer_of(head)
    assert answer["error"] == "MeasureError"
    assert "was cancelled" in answer["what"]
    assert not Path(f"/proc/{pid}").exists()
    assert len(place.noted()) == 1
    assert place.noted("end") == []


def test_a_pending_job_that_is_cancelled_is_not_submitted_again(cluster, place):
    """Also before it ever started."""
    impossible = SPEC.model_copy(update={"extra": ("--begin=now+1hour",)})
    head = place.start_head("wait_for", waiting(place), impossible)
    cluster.call("scancel", job_of(place))
    assert "was cancelled" in answer_of(head)["what"]


def test_a_node_daemon_killed_mid_block_loses_no_work(cluster, place):
    """The worker outlives its slurmd; Slurm gives the node up, the worker's lock says it lives, its result is kept."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    worker_pid(place)
    node = until(lambda: cluster.call("squeue", "-h", "-o", "%N")[1].strip(), "the job has a node")
    cluster.kill(f"slurmd-{node}")
    until(lambda: "its worker goes on" in head.out.read_text(), "Slurm gives the job up", patience_s=90)
    place.gate.touch()
    assert answer_of(head)["attempt"] == 1
    assert len(place.noted()) == 1


@pytest.mark.all_faults
def test_a_node_that_dies_with_its_worker_costs_one_attempt(cluster, place):
    """Daemon and worker gone: a new job on another node of the rack."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    pid = worker_pid(place)
    node = until(lambda: cluster.call("squeue", "-h", "-o", "%N")[1].strip(), "the job has a node")
    cluster.kill(f"slurmd-{node}")
    stepd = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(stepd, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    worker_pid(place, attempt=2)
    place.gate.touch()
    assert answer_of(head)["attempt"] == 2
    assert len(place.noted()) == 2


@pytest.mark.all_faults
def test_a_controller_that_is_away_changes_nothing(cluster, place):
    """While squeue fails nothing is concluded; a job that ends meanwhile is taken by its result."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    worker_pid(place)
    cluster.kill("slurmctld")
    until(lambda: "no answer" in head.out.read_text(), "the head notices")
    assert head.poll() is None
    place.gate.touch()
    assert answer_of(head)["attempt"] == 1
    assert len(place.noted()) == 1


def test_a_submission_that_nobody_answers_is_tried_again_without_doubling(cluster, place):
    """The controller is down when the head wants to submit, and comes back."""
    cluster.kill("slurmctld")
    head = place.start_head("wait_for", waiting(place), SPEC)
    until(lambda: "trying again" in head.out.read_text(), "sbatch gets no answer", patience_s=120)
    cluster.start("slurmctld")
    worker_pid(place)
    # a killed controller can bring back a job that an earlier test had ended: only this place's jobs count
    scripts = cluster.call("squeue", "-h", "-o", "%o")[1].splitlines()
    assert len([script for script in scripts if str(place.root) in script]) == 1, scripts
    place.gate.touch()
    assert answer_of(head)["attempt"] == 1
    assert len(place.noted()) == 1


def test_a_refused_submission_is_one_clear_error(cluster, place):
    """sbatch's own words, and no second try."""
    spec = SPEC.model_copy(update={"partition": "no-such-partition"})
    with pytest.raises(MeasureError, match=r"sbatch refused the job[\s\S]*partition"):
        run_once(place.key, example_jobs.wait_for, waiting(place), jobs=place.jobs, spec=spec)
    assert [a.state for a in place.ledger().attempts] == ["refused"]


@pytest.mark.all_faults
def test_the_time_limit_hands_over_to_the_next_attempt(cluster, place):
    """The worker is told in time, ends without blame, and the next job does the rest."""
    spec = SPEC.model_copy(update={"time_limit_min": 1, "warn_before_s": 30})
    head = place.start_head("wait_for", waiting(place), spec)
    worker_pid(place, attempt=2)
    place.gate.touch()
    assert answer_of(head)["attempt"] == 2
    assert place.ledger().attempts[0].reason == "the time limit is near"


def test_a_rack_that_never_comes_free_is_given_up_with_a_reason(cluster, place):
    """The job is withdrawn and the message says what it waited for; other blocks go on."""
    cluster.call("sbatch", "-N4", "-C", "d157", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600")
    spec = SPEC.model_copy(update={"queue_limit_min": 0.05})
    with pytest.raises(MeasureError, match=r"did not start within[\s\S]*(Resources|Priority)"):
        run_once(place.key, example_jobs.wait_for, waiting(place), jobs=place.jobs, spec=spec)
    until(lambda: len(cluster.call("squeue", "-h")[1].splitlines()) == 1, "the block's job is withdrawn")


def test_a_nodes_clock_ten_minutes_off_changes_nothing(cluster, place, tmp_path):
    """Results are known by their token; no decision compares the clocks of two hosts."""
    if subprocess.run(["which", "faketime"], capture_output=True, check=False).returncode:
        pytest.skip("faketime is not installed")
    for name, skew in (("behind", "-600s"), ("ahead", "+600s")):
        python = tmp_path / f"python {name}"
        python.write_text(f'#!/bin/bash\nexec faketime -f {skew} {SPEC.python} "$@"\n')
        python.chmod(0o755)
        place.key = f"skew-{name}"
        spec = SPEC.model_copy(update={"python": str(python)})
        arguments = {"log": str(place.log), "a": 1, "b": 1}
        outcome = run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec)
        assert (outcome.how, outcome.attempt.number) == ("submitted", 1)
        assert run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec).how == "kept"
    assert len(place.noted()) == 2


def test_a_job_is_never_requeued_by_slurm(cluster, place):
    """The head resubmits; a requeued job could write beside the new one."""
    head = place.start_head("wait_for", waiting(place), SPEC)
    worker_pid(place)
    assert cluster.call("scontrol", "requeue", job_of(place), check=False)[0] != 0
    place.gate.touch()
    assert answer_of(head)["attempt"] == 1


def test_a_head_inside_a_job_does_not_pass_that_jobs_identity_on(cluster, place, monkeypatch):
    """Inherited ids would make the child look for another job's files."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "1")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    arguments = {"log": str(place.log), "a": 1, "b": 1}
    assert run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=SPEC).attempt.number == 1
    assert os.environ["SLURM_ARRAY_TASK_ID"] == "7"
