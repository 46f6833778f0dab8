"""A head in a process of its own, so that tests can kill it: `head.py JOBS KEY FUNCTION ARGUMENTS SPEC`."""

import json
import os
import signal
import sys
from pathlib import Path

import example_jobs
import submitit

from k3bench.errors import K3Error
from k3bench.submit import JobSpec, run_once


def die(*_: object, **__: object) -> None:
    """What a power cut does."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if os.environ.get("DIE_WHEN_STARTED"):
        submitit.LocalJob.__init__ = die  # the job's process exists, nothing has been written about it
    jobs, key, function, arguments, spec = sys.argv[1:]
    try:
        outcome = run_once(
            key,
            getattr(example_jobs, function),
            json.loads(arguments),
            jobs=Path(jobs),
            spec=JobSpec.model_validate_json(spec),
        )
    except K3Error as error:
        print(json.dumps({"error": type(error).__name__, "what": error.what}))
    else:
        print(json.dumps({"how": outcome.how, "result": outcome.result, "attempt": outcome.attempt.number}))
