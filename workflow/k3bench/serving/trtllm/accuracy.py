"""The guard beside the speed: trtllm-eval over all ranks with an arm's own flags and keys; its score read from its log.

A faster decode that answers worse is no gain: a routing switch that costs nothing in TPOT took GSM8K from 96.5 to 9.
Out of scope: when it runs (`verify_served/job.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from k3bench.errors import ServingError
from k3bench.serving.trtllm.arm import TrtllmArm, step_name
from k3bench.serving.trtllm.settings import spec_of
from k3bench.serving.trtllm.slurm_step import end_step, refuse_outside_slurm, run_step

#: How the task's score stands in the log; the last one counts.
SCORE = re.compile(r"average accuracy:\s*([0-9]+(?:\.[0-9]+)?)")


def log_of(arm: TrtllmArm) -> Path:
    """Where an arm's evaluation is written down; kept."""
    return arm.root / "logs" / f"accuracy-{arm.build.pair}-{arm.build.arm}.log"


def words_of(arm: TrtllmArm) -> tuple[str, ...]:
    """The command line."""
    guard, log = spec_of(arm.recipe).accuracy, log_of(arm)
    assert guard is not None, "only asked where the recipe has a guard"
    return arm.commands().accuracy(step_name(log), log, guard)


def accuracy_pct(arm: TrtllmArm, limit_s: float) -> float:
    """Run it. Raises `ServingError` where it ended without a score."""
    log, commands = log_of(arm), arm.commands()
    refuse_outside_slurm(arm.recipe.resources.nodes)
    arm.write_config(commands)
    begin = log.stat().st_size if log.exists() else 0
    try:
        status = run_step(words_of(arm), log.with_suffix(".srun.log"), limit_s)
    finally:
        end_step(step_name(log))
    said = log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""
    found = SCORE.findall(said)
    if status or not found:
        raise ServingError(
            f"trtllm-eval ended with status {status} and {'a' if found else 'no'} score",
            where=str(log),
            fix=f"its last words: {said[-500:].strip() or '(none)'}",
        )
    return float(found[-1])
