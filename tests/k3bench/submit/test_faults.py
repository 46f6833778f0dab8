"""Whatever is killed, and whenever: no job runs twice, no result is lost, and nothing forged is believed."""

import os
import random
import signal
import time
from pathlib import Path

import example_jobs
import pytest
from place import answer_of, until

from k3bench.errors import MeasureError
from k3bench.records.ledger import Ended, Ledger, Process
from k3bench.store import write_record
from k3bench.submit import JobSpec, cancel, live_jobs, run_once
from k3bench.submit.folder import JobFolder, now
from k3bench.submit.worker import Worker

LOCAL = JobSpec(executor="local", grace_s=0.2)


def waiting(place):
    return {"log": str(place.log), "gate": str(place.gate)}


def worker_pid(place):
    return int(until(lambda: place.noted(), "the worker begins")[-1].split()[2])


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)


def test_a_killed_heads_job_is_adopted_while_it_runs(place):
    """SIGKILL of the head leaves the worker alone; the next head waits for that same worker."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    pid = worker_pid(place)
    head.kill()
    head.wait()
    second = place.start_head("wait_for", waiting(place), LOCAL)
    until(lambda: "taking over" in second.out.read_text(), "the second head adopts")
    place.gate.touch()
    assert answer_of(second) == {"how": "adopted", "result": {"pid": pid, "attempt": 1}, "attempt": 1}
    assert len(place.noted()) == 1


def test_a_job_that_ended_while_no_head_was_there_is_not_run_again(place):
    """Its result is taken from disk."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    worker_pid(place)
    head.kill()
    head.wait()
    place.gate.touch()
    until(lambda: (place.folder / "attempts/1/ended.json").exists(), "the orphan finishes")
    assert answer_of(place.start_head("wait_for", waiting(place), LOCAL))["result"]["attempt"] == 1
    assert len(place.noted()) == 1


def test_two_heads_at_once_share_one_job(place):
    """The second queues behind the first and returns the same result."""
    heads = [place.start_head("wait_for", waiting(place), LOCAL) for _ in range(2)]
    worker_pid(place)
    until(lambda: any("queueing" in head.out.read_text() for head in heads), "one head queues")
    place.gate.touch()
    answers = [answer_of(head) for head in heads]
    assert sorted(a["how"] for a in answers) == ["kept", "submitted"]
    assert len(place.noted()) == 1


def test_a_killed_worker_is_replaced_by_one_new_attempt(place):
    """A silent death is retried; the attempt's number tells the function so."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    kill(worker_pid(place))
    until(lambda: len(place.noted()) == 2, "a second worker begins")
    place.gate.touch()
    assert answer_of(head)["attempt"] == 2
    assert [a.state for a in place.ledger().attempts] == ["lost", "finished"]


def test_a_killed_controller_does_not_end_its_worker(place):
    """submitit's watcher of a local job may die; the worker's lock still says that it lives."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    worker_pid(place)
    controller = until(lambda: place.ledger().last.process, "the controller is in the ledger")
    kill(controller.pid)
    place.gate.touch()
    assert answer_of(head)["attempt"] == 1
    assert len(place.noted()) == 1


def test_a_job_that_keeps_dying_is_given_up_with_its_reason(place):
    """Three attempts, then one error that says where to read."""
    with pytest.raises(MeasureError, match=r"lost 3 attempts[\s\S]*ended without a result"):
        run_once(place.key, example_jobs.vanish, {"log": str(place.log), "until": 99}, jobs=place.jobs, spec=LOCAL)
    assert place.noted() == ["begin 1", "begin 2", "begin 3"]


def test_a_new_call_may_try_what_an_earlier_one_gave_up(place):
    """The limit counts the attempts of one call, not of all time."""
    spec = LOCAL.model_copy(update={"attempts": 1})
    arguments = {"log": str(place.log), "until": 2}
    with pytest.raises(MeasureError, match="lost 1 attempts"):
        run_once(place.key, example_jobs.vanish, arguments, jobs=place.jobs, spec=spec)
    outcome = run_once(place.key, example_jobs.vanish, arguments, jobs=place.jobs, spec=spec)
    assert (outcome.result, outcome.lost) == ({"attempt": 2}, 0)


def test_a_head_killed_between_submission_and_ledger_is_made_good(place):
    """The job runs, the ledger knows only the intent: the job is found and adopted, not doubled."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    pid = worker_pid(place)
    head.kill()
    head.wait()
    forget_job(place)
    second = place.start_head("wait_for", waiting(place), LOCAL)
    until(lambda: "taking over" in second.out.read_text(), "the second head adopts")
    place.gate.touch()
    assert answer_of(second)["result"] == {"pid": pid, "attempt": 1}
    assert len(place.noted()) == 1


def forget_job(place):
    """Put the ledger back to the moment before the submission was written down."""
    ledger = place.ledger()
    intent = ledger.last.model_copy(update={"state": "intended", "process": None, "submitted_at": None})
    write_record(place.folder / "ledger.json", ledger.with_attempt(intent))


def test_a_job_whose_head_died_before_naming_its_pickle_still_runs(place, monkeypatch):
    """submitit names the pickle after the job only once it knows the job; a later head does it in its stead."""
    monkeypatch.setenv("DIE_WHEN_STARTED", "1")
    head = place.start_head("wait_for", waiting(place), LOCAL)
    assert head.wait() == -signal.SIGKILL
    monkeypatch.delenv("DIE_WHEN_STARTED")
    assert (place.ledger().last.state, place.noted()) == ("intended", [])
    place.gate.touch()
    assert answer_of(place.start_head("wait_for", waiting(place), LOCAL))["attempt"] == 1
    assert len(place.noted()) == 1


def test_an_intent_without_a_job_is_retired_and_submitted_anew(place):
    """The head died before the submission: after a bounded grace a new attempt with a new token follows."""
    intend(place)
    outcome = run_once(
        place.key, example_jobs.add, {"log": str(place.log), "a": 1, "b": 1}, jobs=place.jobs, spec=LOCAL
    )
    assert outcome.result["attempt"] == 2
    assert [a.state for a in place.ledger().attempts] == ["lost", "finished"]


def intend(place, **update):
    """A ledger whose only attempt was never submitted."""
    run_once(
        place.key,
        example_jobs.add,
        {"log": str(place.root / "other"), "a": 0, "b": 0},
        jobs=place.jobs,
        spec=JobSpec(executor="here"),
    )
    attempt = place.ledger().last.model_copy(
        update={"executor": "local", "state": "intended", "process": None, "ended_at": None, **update}
    )
    for name in ("started.json", "ended.json"):
        (place.folder / "attempts/1" / name).unlink()
    write_record(place.folder / "ledger.json", Ledger(key=place.key, attempts=(attempt,)))
    return attempt


def test_a_worker_that_starts_late_is_fenced_by_its_token(place):
    """Its attempt has been given up and replaced, so it does nothing at all."""
    old = intend(place)
    arguments = {"log": str(place.log), "a": 1, "b": 1}
    run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=LOCAL)
    Worker(str(place.folder), old.number, old.token, own_process=False)()
    assert place.noted() == ["begin 2"]
    assert not (place.folder / "attempts/1/started.json").exists()


def test_an_attempt_starts_once_even_when_its_job_is_requeued(place):
    """A requeued job runs the same pickle again; the second start leaves no trace."""
    run_once(
        place.key,
        example_jobs.add,
        {"log": str(place.log), "a": 1, "b": 1},
        jobs=place.jobs,
        spec=JobSpec(executor="here"),
    )
    attempt = place.ledger().last.model_copy(update={"state": "submitted", "ended_at": None})
    write_record(place.folder / "ledger.json", Ledger(key=place.key, attempts=(attempt,)))
    Worker(str(place.folder), attempt.number, attempt.token, own_process=False)()
    assert place.noted() == ["begin 1"]


def test_a_result_with_another_token_is_not_believed(place):
    """A file left by an older submission of the same number is as good as absent."""
    intend(place)
    forged = Ended(number=1, token="0" * 32, state="finished", ended_at=now(), result={"sum": -1})
    write_record(place.folder / "attempts/1/ended.json", forged)
    outcome = run_once(
        place.key, example_jobs.add, {"log": str(place.log), "a": 1, "b": 1}, jobs=place.jobs, spec=LOCAL
    )
    assert outcome.result == {"sum": 2, "attempt": 2}


def test_a_result_that_comes_late_is_kept(place):
    """A shared file system may show it only after its attempt was given up."""
    attempt = intend(place)
    folder = JobFolder(place.folder)
    folder.close(attempt, "lost", "no result in time")
    late = Ended(number=1, token=attempt.token, state="finished", ended_at=now(), result={"sum": 7})
    write_record(place.folder / "attempts/1/ended.json", late)
    outcome = run_once(
        place.key, example_jobs.add, {"log": str(place.log), "a": 1, "b": 1}, jobs=place.jobs, spec=LOCAL
    )
    assert (outcome.how, outcome.result) == ("kept", {"sum": 7})
    assert place.noted() == []


def test_a_reused_pid_is_not_taken_for_the_job(place):
    """A live process of the same number but another start time is somebody else."""
    mine = Process(host=os.uname().nodename, boot="another boot", pid=os.getpid(), start="1")
    intend(place, state="submitted", process=mine)
    outcome = run_once(
        place.key, example_jobs.add, {"log": str(place.log), "a": 1, "b": 1}, jobs=place.jobs, spec=LOCAL
    )
    assert outcome.result["attempt"] == 2


def test_a_child_that_outlives_its_worker_does_not_hold_the_job(place):
    """A forked child inherits the lock's descriptor; it must not keep the next attempt waiting."""
    head = place.start_head("fork_and_wait", waiting(place), LOCAL)
    kill(worker_pid(place))
    assert answer_of(head)["attempt"] == 2
    place.gate.touch()


def test_a_cancelled_job_is_not_submitted_again_by_those_who_waited(place):
    """Neither the head that waited nor the one that queued starts it anew; a new call may."""
    heads = [place.start_head("wait_for", waiting(place), LOCAL) for _ in range(2)]
    worker_pid(place)
    until(lambda: any("queueing" in head.out.read_text() for head in heads), "one head queues")
    cancel(place.key, jobs=place.jobs)
    assert [answer_of(head)["error"] for head in heads] == ["MeasureError"] * 2
    assert len(place.noted()) == 1
    place.gate.touch()
    assert answer_of(place.start_head("wait_for", waiting(place), LOCAL))["attempt"] == 2


def test_a_job_cancelled_while_nobody_waits_is_written_down(place):
    """The next call starts anew at once instead of reporting an old cancellation."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    worker_pid(place)
    head.kill()
    head.wait()
    assert cancel(place.key, jobs=place.jobs).state == "cancelled"
    place.gate.touch()
    assert answer_of(place.start_head("wait_for", waiting(place), LOCAL))["attempt"] == 2


def test_a_worker_that_was_replaced_ends_at_its_next_point(place):
    """A worker whose attempt is no longer current stops by itself and writes no result."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    pid = worker_pid(place)
    head.kill()
    head.wait()
    folder = JobFolder(place.folder)
    folder.close(place.ledger().last, "lost", "given up")
    until(lambda: not Path(f"/proc/{pid}").exists(), "the replaced worker ends")
    assert not (place.folder / "attempts/1/ended.json").exists()


def test_a_job_near_its_time_limit_hands_over_to_the_next_attempt(place):
    """USR2 makes `raise_if_over` end the attempt without blame; the next one does the rest."""
    head = place.start_head("wait_for", waiting(place), LOCAL)
    kill(worker_pid(place), signal.SIGUSR2)
    until(lambda: len(place.noted()) == 2, "a second worker begins")
    place.gate.touch()
    assert answer_of(head)["attempt"] == 2
    assert place.ledger().attempts[0].reason == "the time limit is near"


def test_random_kills_leave_exactly_one_result(place):
    """Heads, workers and controllers are killed at random moments; in the end one attempt has finished."""
    draw = random.Random(20)
    spec = LOCAL.model_copy(update={"attempts": 50})
    head = place.start_head("wait_for", waiting(place), spec)
    for _ in range(8):
        victims = {"head": head.pid}
        attempt = place.ledger().last
        started = JobFolder(place.folder).started(attempt) if attempt else None
        if attempt is not None and attempt.process is not None:
            victims["controller"] = attempt.process.pid
        if started is not None:
            victims["worker"] = started.process.pid
        name = draw.choice(sorted(victims))
        if Path(f"/proc/{victims[name]}").exists():
            kill(victims[name])
        if name == "head":
            head.wait()
            head = place.start_head("wait_for", waiting(place), spec)
        time.sleep(draw.uniform(0, 1.5))
    place.gate.touch()
    answer = answer_of(head)
    states = [a.state for a in place.ledger().attempts]
    assert states.count("finished") == 1
    assert states[-1] == "finished"
    assert place.noted("end") == [f"end {answer['attempt']}"]


def test_every_live_job_of_a_campaign_is_found_whatever_it_does(place, tmp_path):
    """`k3bench cancel` ends builds, probes and profiled runs as well; another campaign's jobs are not among them."""
    campaign = tmp_path / "results" / "mine"
    arguments = {"root": str(campaign), "observation": "obs1", "log": str(place.log), "gate": str(place.gate)}
    place.start_head("probe", arguments, JobSpec(executor="local"))
    until(place.noted, "it runs")
    assert live_jobs(campaign, jobs=place.jobs) == {place.key: "probe obs1"}
    assert live_jobs(tmp_path / "results" / "other", jobs=place.jobs) == {}
    place.gate.touch()
    until(lambda: not live_jobs(campaign, jobs=place.jobs), "it ends")
