"""`k3bench measure`: submit each allocation exactly once, wait, and write the summary that the next stage reads.

An allocation that could not be measured becomes a summary that says why: the campaign goes on with the others, and the
report lists it. Out of scope: how a job is submitted (`k3bench.submit`) and how a block is measured (`allocation.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from k3bench.errors import MeasureError, StoreError
from k3bench.measure.allocation import AllocationSpec, accepted_block, load_spec, run_allocation, summarise
from k3bench.records.ledger import ExecutorName
from k3bench.records.measurement import Allocation
from k3bench.records.plan import Plan
from k3bench.store import read_record, write_record
from k3bench.submit import JobSpec, run_once

#: Beside results/, so that losing one leaves the other.
JOBS = Path(".k3/jobs")


def measure(plan_path: Path, chosen: tuple[str, str] | None, *, executor: ExecutorName, out: Path | None) -> int:
    """Measure one allocation, or all of the plan in its order. Returns 0; a failed allocation is a row, not a crash."""
    plan, root = read_record(plan_path, Plan), plan_path.parent
    names = [chosen] if chosen else [(o.id, a.id) for o in plan.observations for a in o.allocations]
    for number, (observation, allocation) in enumerate(names, 1):
        spec = load_spec(root, observation, allocation)
        _say(f"[{number}/{len(names)}] {observation}/{allocation}: {len(spec.blocks)} blocks")
        summary = measure_once(spec, executor=executor)
        write_record(out or spec.folder.allocation(observation, allocation), summary)
        _say(_in_words(summary))
    return 0


def measure_once(spec: AllocationSpec, *, executor: ExecutorName) -> Allocation:
    """Submit or adopt, wait, summarise. Raises only what no later start could mend by itself, such as a full disk."""
    arguments = {"root": str(spec.folder.root.absolute()), "observation": spec.observation.id}
    try:
        run_once(
            spec.key,
            run_allocation,
            arguments | {"allocation": spec.allocation},
            jobs=JOBS,
            spec=job_spec(spec, executor),
            say=lambda text: _say(text.replace(spec.key[:16], f"{spec.observation.id}/{spec.allocation}")),
            keep=lambda result: _is_whole(spec, result),
        )
    except StoreError:
        raise
    except MeasureError as error:
        return summarise(spec, reason=str(error))
    return summarise(spec)


def job_spec(spec: AllocationSpec, executor: ExecutorName) -> JobSpec:
    """The recipe's resources as a job: a rack is a constraint, and the block keeps its nodes to itself."""
    resources = spec.plan.recipe.resources
    return JobSpec(
        executor=executor,
        time_limit_min=resources.minutes,
        nodes=resources.nodes,
        gpus_per_node=resources.gpus_per_node,
        constraint=spec.observation.rack if executor == "slurm" else None,
    )


def _is_whole(spec: AllocationSpec, result: dict[str, Any]) -> bool:
    """A finished job counts while its files are there; without them it is measured again."""
    return all(accepted_block(spec, block) for block in spec.blocks)


def _in_words(summary: Allocation) -> str:
    where = f"{summary.observation}/{summary.allocation}"
    if summary.status == "failed":
        return f"{where}: NOT measured\n{summary.reason}"
    fragments = f", {len(summary.superseded)} superseded fragments kept" if summary.superseded else ""
    return f"{where}: {len(summary.accepted)} of {summary.planned_points} points accepted{fragments}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
