"""A function call, run exactly once per key, wherever it runs: in this process, beside it, or on a Slurm cluster.

In: a key, an importable function with plain arguments, a `JobSpec`. Out: an `Outcome`, or the function's own error.
Out of scope: what is measured, and how the files of a campaign are named.

    run_once ──> ledger (token first) ──> submitit ──> worker (lock, token, started) ──> function ──> ended.json
        ^── finished? ── live? adopt ── live but unknown? adopt ── else submit ──^
"""

from k3bench.submit.once import Outcome, cancel, live_jobs, look, read_ledger, run_once
from k3bench.submit.spec import JOBS, JobSpec, job_of
from k3bench.submit.worker import AttemptOverError, raise_if_over

__all__ = [
    "JOBS",
    "AttemptOverError",
    "JobSpec",
    "Outcome",
    "cancel",
    "job_of",
    "live_jobs",
    "look",
    "raise_if_over",
    "read_ledger",
    "run_once",
]
