"""A key's function runs exactly once on every executor of this machine, and its error comes back as what it was."""

import subprocess
import sys

import example_jobs
import pytest
from pydantic import ValidationError

from k3bench.errors import K3Error, MeasureError, RecordError, TraceError
from k3bench.submit import JobSpec, run_once

EXECUTORS = ["here", "debug", "local"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_function_runs_once_and_later_calls_return_its_result(place, executor):
    """The second call finds the result and starts nothing."""
    spec, arguments = JobSpec(executor=executor), {"log": str(place.log), "a": 2, "b": 3}
    first = run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec)
    again = run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec)
    assert (first.how, again.how) == ("submitted", "kept")
    assert first.result == again.result == {"sum": 5, "attempt": 1}
    assert place.noted() == ["begin 1"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_error_of_the_project_comes_back_as_itself_and_is_not_retried(place, executor):
    """Class, place and cure survive the way back; only a new call tries again."""
    spec, arguments = JobSpec(executor=executor), {"log": str(place.log)}
    for attempt in (1, 2):
        with pytest.raises(TraceError) as caught:
            run_once(place.key, example_jobs.refuse, arguments, jobs=place.jobs, spec=spec)
        assert (caught.value.what, caught.value.where, caught.value.fix) == ("no such family", "trace.json", "name one")
        assert place.noted()[-1] == f"begin {attempt}"
    assert len(place.noted()) == 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_foreign_error_is_named_with_its_log(place, executor):
    """Whatever else a function raises becomes a MeasureError that says where to read on."""
    with pytest.raises(MeasureError, match=r"ZeroDivisionError: one over nothing[\s\S]*attempts"):
        run_once(
            place.key, example_jobs.crash, {"log": str(place.log)}, jobs=place.jobs, spec=JobSpec(executor=executor)
        )
    assert place.noted() == ["begin 1"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_result_that_is_not_plain_data_is_the_functions_fault(place, executor):
    """It is refused where it was made, not lost on the way."""
    with pytest.raises(MeasureError, match=r"Error: "):
        run_once(
            place.key, example_jobs.not_plain, {"log": str(place.log)}, jobs=place.jobs, spec=JobSpec(executor=executor)
        )


def test_a_result_whose_files_are_gone_is_measured_again(place):
    """The caller says whether a finished result still holds; one that does not is voided, never returned."""
    spec, arguments = JobSpec(executor="here"), {"log": str(place.log), "a": 2, "b": 3}
    run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec)
    again = run_once(
        place.key, example_jobs.add, arguments, jobs=place.jobs, spec=spec, keep=lambda r: r["attempt"] == 2
    )
    assert again.result["attempt"] == 2
    assert [a.state for a in place.ledger().attempts] == ["voided", "finished"]


def test_a_result_that_never_holds_is_an_error_not_a_loop(place):
    """A function that finishes without leaving its files behind is reported once."""
    with pytest.raises(MeasureError, match="is not there"):
        run_once(
            place.key,
            example_jobs.add,
            {"log": str(place.log), "a": 2, "b": 3},
            jobs=place.jobs,
            spec=JobSpec(executor="here"),
            keep=lambda _: False,
        )
    assert place.noted() == ["begin 1"]


def test_attempts_are_numbered_on_from_what_is_on_disk(place):
    """When the ledger was lost and results stayed, no attempt number is used twice."""
    outcome = run_once(
        place.key,
        example_jobs.add,
        {"log": str(place.log), "a": 2, "b": 3},
        jobs=place.jobs,
        spec=JobSpec(executor="here"),
        first_number=4,
    )
    assert outcome.result["attempt"] == 4


def test_an_interrupted_call_leaves_the_next_one_free_to_start(place):
    """Ctrl-C in this process ends the attempt at once; the same process may try again."""
    spec, arguments = JobSpec(executor="here"), {"log": str(place.log), "until": 2}
    with pytest.raises(KeyboardInterrupt):
        run_once(place.key, example_jobs.interrupt, arguments, jobs=place.jobs, spec=spec)
    outcome = run_once(place.key, example_jobs.interrupt, arguments, jobs=place.jobs, spec=spec)
    assert outcome.result == {"attempt": 2}


@pytest.mark.parametrize("visible", ["0,3", None])
def test_a_local_job_sees_the_devices_its_head_saw(place, monkeypatch, visible):
    """submitit hides every device from a local job that asks for none; ours sees what it would see here."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    outcome = run_once(
        place.key, example_jobs.devices, {"log": str(place.log)}, jobs=place.jobs, spec=JobSpec(executor="local")
    )
    assert outcome.result == {"visible": visible or "all"}


def test_here_needs_neither_submitit_nor_torch(place):
    """A compute node with torch, numpy, pydantic and PyYAML alone can run an allocation."""
    program = (
        "import sys, pathlib, example_jobs; from k3bench.submit import JobSpec, run_once;"
        f"run_once('k', example_jobs.add, {{'log': {str(place.log)!r}, 'a': 1, 'b': 1}},"
        f" jobs=pathlib.Path({str(place.jobs)!r}), spec=JobSpec(executor='here'));"
        "print(sorted({'submitit', 'cloudpickle', 'torch', 'mlflow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_arguments_that_are_not_plain_json_are_refused_before_anything_is_submitted(place, arguments):
    """Nothing is pickled, so nothing else can travel."""
    with pytest.raises(MeasureError, match="plain JSON"):
        run_once(place.key, example_jobs.add, arguments, jobs=place.jobs, spec=JobSpec(executor="here"))
    assert place.ledger().attempts == ()


def test_a_function_without_an_import_path_is_refused(place):
    """A lambda could not be called in another process."""
    with pytest.raises(MeasureError, match="import path"):
        run_once(place.key, lambda attempt: {}, {}, jobs=place.jobs, spec=JobSpec(executor="local"))


@pytest.mark.parametrize("key", ["../up", "a/b", "", ".hidden", "k\n", "x" * 121])
def test_a_key_is_a_name_and_never_a_path(place, key):
    """The key becomes a folder's name."""
    with pytest.raises(MeasureError, match="cannot name a job"):
        run_once(key, example_jobs.add, {}, jobs=place.jobs, spec=JobSpec(executor="here"))


def test_a_ledger_that_is_not_one_is_refused_not_ignored(place):
    """Ignoring it could submit a second job beside a live one."""
    place.folder.mkdir(parents=True)
    (place.folder / "ledger.json").write_text('{"schema":"k3bench.ledger/1","key":"k","attempts":[{}]}')
    with pytest.raises(RecordError, match="not a k3bench"):
        run_once(place.key, example_jobs.add, {}, jobs=place.jobs, spec=JobSpec(executor="here"))


def test_a_jobs_folder_that_cannot_be_written_is_one_clear_error(place):
    """The message names the path and the cure."""
    place.jobs.parent.mkdir()
    place.jobs.write_text("a file where the folder should be")
    with pytest.raises(K3Error, match="jobs"):
        run_once(place.key, example_jobs.add, {}, jobs=place.jobs, spec=JobSpec(executor="here"))


@pytest.mark.parametrize(
    "fields",
    [
        {"account": "a\nrm -rf /tmp/nothing"},
        {"constraint": "d157\r"},
        {"extra": ("--comment=a\nb",)},
        {"extra": ("-A x",)},
        {"extra": ("--gres gpu",)},
        {"nodelist": ""},
        {"python": "a\x00b"},
        {"nodes": 0},
        {"executor": "cloud"},
        {"colour": "red"},
    ],
)
def test_a_job_spec_that_could_end_an_sbatch_line_or_means_nothing_is_refused(fields):
    """A line break inside an `#SBATCH` value would hand the rest to the batch shell."""
    with pytest.raises(ValidationError):
        JobSpec(**fields)


def test_site_options_become_sbatch_options_and_extra_wins():
    """Nothing site-specific is in the code: it all comes from the spec."""
    spec = JobSpec(
        executor="slurm", account="bench", constraint="d157", nodes=4, extra=("--switches=2", "--overcommit")
    )
    options = spec.sbatch_options()
    assert options["account"] == "bench"
    assert options["constraint"] == "d157"
    assert options["nodes"] == 4
    assert options["switches"] == "2"
    assert options["overcommit"] is True
    assert options["no-requeue"] is True
    assert options["exclusive"] is True
    assert options["signal"] == "B:USR2@300"
    assert "qos" not in options


def test_the_time_limit_is_announced_when_half_of_it_is_left_at_the_earliest():
    """A warning longer than the limit would come at once, in every attempt."""
    assert JobSpec(executor="slurm", time_limit_min=2).sbatch_options()["signal"] == "B:USR2@60"


def test_a_path_that_slurm_would_misread_is_refused(tmp_path):
    """`%j` in a path would send the log elsewhere, a line break would end a line of the batch script."""
    for name in ("100%j", "a\nb"):
        with pytest.raises(MeasureError, match="misread"):
            run_once("k", example_jobs.add, {}, jobs=tmp_path / name, spec=JobSpec(executor="slurm"))
