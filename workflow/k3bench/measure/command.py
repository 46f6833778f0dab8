"""`k3bench measure`: submit each allocation exactly once, wait, and write the summary that the next stage reads.

An allocation that could not be measured becomes a summary that says why: the campaign goes on with the others, and the
report lists it. Out of scope: how a job is submitted (`k3bench.submit`) and how a block is measured (`allocation.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from k3bench.errors import BuildError, MeasureError, StoreError
from k3bench.measure.allocation import AllocationSpec, accepted_block, not_built, run_allocation, spec_of, summarise
from k3bench.records.ledger import ExecutorName
from k3bench.records.measurement import Allocation
from k3bench.records.plan import Plan
from k3bench.store import CampaignFolder, read_record, write_record
from k3bench.submit import JOBS, JobSpec, job_of, run_once

#: One of many things to do: it calls its argument as soon as all that is left to it is to wait.
Task = Callable[[Callable[[], None]], None]


def measure(plan_path: Path, chosen: tuple[str, str] | None, *, executor: ExecutorName, out: Path | None) -> int:
    """Measure one allocation, or all of the plan in its order. Returns 0; a failed allocation is a row, not a crash.

    On Slurm all are submitted in the order of the plan and this process waits for all of them; elsewhere the next
    begins when the one before has ended, because two at once would disturb each other's times.
    """
    plan, folder = read_record(plan_path, Plan), CampaignFolder(plan_path.parent)
    names = [chosen] if chosen else [(o.id, a.id) for o in plan.observations for a in o.allocations]
    tasks: list[Task] = []
    for number, name in enumerate(names, 1):
        try:
            spec = spec_of(folder, plan, *name)
        except BuildError as error:
            _write(not_built(plan, *name, str(error)), out or folder.allocation(*name))
        else:
            tasks.append(partial(_measure_to, out, spec, executor, f"[{number}/{len(names)}]"))
    if executor == "slurm":
        _together(tasks)
    else:
        for task in tasks:
            task(lambda: None)
    return 0


def _together(tasks: Sequence[Task]) -> None:
    """Begin each when the one before it waits; when all have ended, raise the first error there was."""
    errors: list[Exception] = []
    threads = []
    for task in tasks:
        waits = threading.Event()
        thread = threading.Thread(target=_noting_errors, args=(task, waits, errors), daemon=True)
        thread.start()
        waits.wait()
        threads.append(thread)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _noting_errors(task: Task, waits: threading.Event, errors: list[Exception]) -> None:
    try:
        task(waits.set)
    except Exception as error:
        _say(f"error: {error}")
        errors.append(error)
    finally:
        waits.set()


def _measure_to(
    out: Path | None, spec: AllocationSpec, executor: ExecutorName, number: str, waits: Callable[[], None]
) -> None:
    _say(f"{number} {spec.observation.id}/{spec.allocation}: {len(spec.blocks)} blocks")
    summary = measure_once(spec, executor=executor, waits=waits)
    _write(summary, out or spec.folder.allocation(spec.observation.id, spec.allocation))


def _write(summary: Allocation, path: Path) -> None:
    write_record(path, summary)
    _say(_in_words(summary))


def measure_once(
    spec: AllocationSpec, *, executor: ExecutorName, waits: Callable[[], None] = lambda: None
) -> Allocation:
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
            waits=waits,
        )
    except StoreError:
        raise
    except MeasureError as error:
        return summarise(spec, reason=str(error))
    return summarise(spec)


def job_spec(spec: AllocationSpec, executor: ExecutorName) -> JobSpec:
    """The job of an allocation."""
    recipe = spec.plan.recipe
    return job_of(recipe.resources, spec.observation.rack, executor, ranks=recipe.engine.ranks)


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
    sys.stderr.write(f"{text}\n")  # in one piece: many threads speak
    sys.stderr.flush()
