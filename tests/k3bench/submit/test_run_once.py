"""A key's function runs exactly once on every executor of this machine, and its error comes back as what it was."""


import example_jobs
import pytest

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
