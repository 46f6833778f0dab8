"""One arm of TensorRT-LLM under nsys, every rank, in a server life of its own that is never timed.

In: a profiled run. Out: `<arm>.c<level>.r<rank>.*` with a `k3bench.collected/1` each, rank 0's written last: it makes
the run count. Out of scope: reading traces (`k3bench.trace`).
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3bench.errors import MeasureError
from k3bench.measure.engine import RunContext
from k3bench.measure.load import load_of
from k3bench.records.residency import Collected
from k3bench.serving.trtllm.arm import TrtllmArm, trtllm_arm
from k3bench.serving.trtllm.commands import Commands
from k3bench.serving.trtllm.settings import spec_of
from k3bench.serving.trtllm.slurm_step import run_step
from k3bench.store import write_record

if TYPE_CHECKING:
    from k3bench.measure.profile import ProfileSpec

#: Sixteen reports of a decode with thousands of kernels a step take their time.
REPORT_LIMIT_S = 900.0
_TOOL = re.compile(r"\d{4}\.\d+(?:\.\d+)*")


def log_of(root: Path, observation: str, arm: str, level: int) -> Path:
    """What the profiled ranks said."""
    return root / "logs" / f"profile-{observation}-{arm}-c{level}.log"


def profile_ranks(spec: ProfileSpec) -> dict[str, Any]:
    """Collect all ranks into a temporary folder, then move the files, the records last."""
    allocation = spec.allocation
    root, planned = allocation.folder.root.absolute(), allocation.observation
    arm = trtllm_arm(allocation.plan.recipe, planned, allocation.builds, spec.arm, root)
    log = log_of(root, planned.id, spec.arm, spec.level)
    ranks = range(arm.recipe.resources.nodes * arm.recipe.resources.gpus_per_node)
    spec.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".profiling-", dir=spec.out.absolute()) as temporary:
        stem = Path(temporary) / f"{spec.arm}.c{spec.level}"
        _serve_and_load(spec, arm, log, stem, ranks)
        version = _export(arm.commands(), log, stem, ranks)
        for path in sorted(stem.parent.iterdir()):
            os.replace(path, spec.out / path.name)
    for rank in reversed(ranks):
        write_record(spec.out / f"{stem.name}.r{rank}.collected.json", _collected(spec, arm, stem.name, rank, version))
    return {"trace": f"{stem.name}.r0.sqlite"}


def _serve_and_load(spec: ProfileSpec, arm: TrtllmArm, log: Path, stem: Path, ranks: Sequence[int]) -> None:
    """One server life under load; over when every rank has written its report."""
    server = arm.start_profiled(log, stem)
    try:
        target, vocab = arm.target(server.base_url)
        context = RunContext(spec.allocation.observation.id, 0, 0, spec.arm, spec.level)
        load = load_of(arm.recipe, context, target, vocab, warm_up=False)
        assert load is not None
        load.send()
        end = time.monotonic() + REPORT_LIMIT_S
        while missing := [r for r in ranks if not Path(f"{stem}.r{r}.nsys-rep").is_file()]:
            if time.monotonic() > end or not server.is_running:
                raise MeasureError(
                    f"nsys left no report of rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}",
                    where=str(log),
                    fix="profiled_steps must lie within the steps of the load; nsys must be on PATH of every rank",
                )
            time.sleep(1.0)
    finally:
        server.stop()


def _export(commands: Commands, log: Path, stem: Path, ranks: Sequence[int]) -> str:
    """Every report as SQLite; returns the tool's version."""
    said = log.with_suffix(".export.log")
    for rank in ranks:
        words = commands.export(f"k3-export-{rank}", said, stem, rank)
        status = run_step(words, said.with_suffix(".srun.log"), REPORT_LIMIT_S)
        if status or not Path(f"{stem}.r{rank}.sqlite").is_file():
            raise MeasureError(f"`nsys export` of rank {rank} ended with status {status}", where=str(said))
    told = log.with_suffix(".version.log")
    run_step(
        commands.beside("k3-nsys-version", told, ("nsys", "--version"), plain=True), told.with_suffix(".srun.log"), 60.0
    )
    found = _TOOL.search(told.read_text(errors="replace")) if told.exists() else None
    return found.group() if found else "unknown"


def _collected(spec: ProfileSpec, arm: TrtllmArm, stem: str, rank: int, version: str) -> Collected:
    first, last = spec_of(arm.recipe).profiled_steps
    return Collected(
        trace=f"{stem}.r{rank}.sqlite",
        arm=spec.arm,
        level=spec.level,
        rank=rank,
        tool="nsys",
        tool_version=version,
        build=spec.build,
        n_replays=last - first,
    )
