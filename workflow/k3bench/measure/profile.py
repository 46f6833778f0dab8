"""`k3bench profile`: one arm of an observation once more under a profiler, in a process of its own, never timed.

In: plan, builds. Out: `<arm>.c<level>.r0.*` with its `k3bench.collected/1`, the last file written: without it a trace
does not count. Out of scope: what profilers are (`profilers.py`), what is run under them
(`engines/k3model_profiled.py`), reading traces (`k3bench.trace`).
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.errors import MeasureError
from k3bench.measure.allocation import AllocationSpec, load_spec
from k3bench.measure.command import job_spec
from k3bench.measure.engine import EngineRequest
from k3bench.measure.profilers import PROFILERS, Profiler, Tool
from k3bench.ranks import Crew
from k3bench.records.base import digest_of
from k3bench.records.ledger import ExecutorName
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.plan import Plan
from k3bench.records.residency import Collected
from k3bench.runnable import adopt, runnable
from k3bench.store import read_record, write_record
from k3bench.submit import JOBS, run_once

PROGRAM = "k3bench.measure.engines.k3model_profiled"
RANK = f"{PROGRAM}:ProfiledRank"
#: How long profilers may write after the last replay.
PROFILER_ENDS_S = 300.0
_KEPT = "what is measured is kept; `trace: {tool: none}` in the recipe goes on without residency"


@dataclass(frozen=True)
class ProfileSpec:
    """One profiled run: which arm of which observation, at which level, by which tool, and where its files go."""

    allocation: AllocationSpec
    arm: Arm
    level: int
    tool: Tool
    out: Path

    @property
    def ranks(self) -> int:
        """Every rank leaves a trace of its own."""
        return self.allocation.plan.recipe.engine.ranks

    @property
    def stem(self) -> str:
        """The name of rank 0's files, without endings."""
        return self.stem_of(0)

    def stem_of(self, rank: int | str) -> str:
        """The name of a rank's files."""
        return f"{self.arm}.c{self.level}.r{rank}"

    @property
    def sidecar(self) -> Path:
        """The record that makes the traces count: rank 0's, written last."""
        return self.sidecar_of(0)

    def sidecar_of(self, rank: int) -> Path:
        """The record of one rank's trace."""
        return self.out / f"{self.stem_of(rank)}.collected.json"

    @property
    def build(self) -> str:
        """Identity of what runs."""
        return self.allocation.builds[self.arm].identity

    @property
    def key(self) -> str:
        """Digest of what is collected and where to."""
        return digest_of([self.allocation.key, "profile", self.arm, self.level, self.tool, str(self.out.absolute())])


def profile(
    plan_path: Path,
    observation: str,
    arm: str,
    *,
    out: Path,
    executor: ExecutorName,
    tool: Tool | None = None,
    level: int | None = None,
) -> Collected:
    """Collect the trace, or keep the one that is there. `tool` and `level` replace the recipe's."""
    spec = profile_spec(plan_path.parent, observation, arm, tool=tool, level=level, out=out)
    kept = _kept(spec)
    if kept is None:
        arguments = {"root": str(spec.allocation.folder.root.absolute()), "observation": observation, "arm": arm}
        run_once(
            spec.key,
            run_profile,
            arguments | {"tool": spec.tool, "level": spec.level, "out": str(out.absolute())},
            jobs=JOBS,
            spec=job_spec(spec.allocation, executor),
            keep=lambda result: spec.sidecar.exists(),
        )
    return kept or read_record(spec.sidecar, Collected)


def profile_spec(
    root: Path, observation: str, arm: str, *, tool: Tool | None, level: int | None, out: Path
) -> ProfileSpec:
    """What the names mean. Raises `MeasureError` for an arm, a level or an engine that cannot be profiled."""
    allocation = load_spec(root, observation, _first_allocation(root, observation))
    recipe = allocation.plan.recipe
    chosen, at = tool or recipe.trace.tool, level or recipe.trace.level or recipe.primary_level
    if arm not in ARMS:
        raise MeasureError(f"arm {arm!r} is neither before nor after", where=observation)
    if chosen == "none":
        raise MeasureError(
            "the recipe asks for no trace",
            where=recipe.name,
            fix=f"write `trace: {{tool: nsys}}` into the recipe, or give --tool {'|'.join(PROFILERS)}",
        )
    if recipe.engine.name not in ("k3model", "trtllm"):
        raise MeasureError(
            f"engine {recipe.engine.name} cannot be profiled from here",
            where=recipe.name,
            fix="start its server under `nsys profile --cuda-graph-trace=node` yourself, then use `k3bench trace`",
        )
    if at not in recipe.workload.levels:
        choices = ", ".join(map(str, recipe.workload.levels))
        raise MeasureError(f"level {at} is not in the recipe", where=recipe.name, fix=f"choose from: {choices}")
    return ProfileSpec(allocation, arm, at, chosen, out)  # type: ignore[arg-type]


def _first_allocation(root: Path, observation: str) -> str:
    plan = read_record(root / "plan.json", Plan)
    planned = [o.allocations[0].id for o in plan.observations if o.id == observation]
    return planned[0] if planned else "alloc1"


def _kept(spec: ProfileSpec) -> Collected | None:
    """A trace of this very build and tool is not collected twice; one of another is not replaced."""
    if not spec.sidecar.exists():
        return None
    record = read_record(spec.sidecar, Collected)
    if (record.tool, record.build) == (spec.tool, spec.build):
        return record
    raise MeasureError(
        f"holds a trace of another build or tool ({record.tool})",
        where=str(spec.sidecar),
        fix="results are never overwritten: give another --out, or move the folder away",
    )


def run_profile(
    *, root: str, observation: str, arm: str, tool: Tool, level: int, out: str, attempt: int
) -> dict[str, Any]:
    """The job: collect into a temporary folder, then move the files, the record last."""
    spec = profile_spec(Path(root), observation, arm, tool=tool, level=level, out=Path(out))
    if spec.allocation.plan.recipe.engine.name == "trtllm":
        from k3bench.measure.engines.trtllm.profiled import profile_ranks

        return profile_ranks(spec)
    profiler = PROFILERS[tool]
    _refuse_without_gpu()
    profiler.check()
    spec.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".profiling-", dir=spec.out) as temporary:
        folder = Path(temporary)
        told = _run_ranks(spec, profiler, folder) if spec.ranks > 1 else [_run(spec, profiler, folder / spec.stem)]
        records = [_record(spec, profiler, folder, rank, one) for rank, one in enumerate(told)]
        for path in sorted(folder.iterdir()):
            os.replace(path, spec.out / path.name)
    for record in reversed(records):
        write_record(spec.sidecar_of(record.rank or 0), record)
    return {"trace": records[0].trace}


def _record(spec: ProfileSpec, profiler: Profiler, folder: Path, rank: int, told: dict[str, Any]) -> Collected:
    trace = profiler.trace(folder / spec.stem_of(rank))
    return Collected(
        trace=trace.name,
        arm=spec.arm,
        level=spec.level,
        rank=rank,
        tool=spec.tool,
        tool_version=profiler.version() or told.get("tool_version", "unknown"),
        cupti_version=profiler.cupti_version(trace) or told.get("cupti_version"),
        build=spec.build,
        forks_on=tuple(told["forks_on"]),
        **{k: told[k] for k in ("capture", "n_replays", "profiled_step_ms", "unprofiled_step_ms")},
    )


def _run_ranks(spec: ProfileSpec, profiler: Profiler, folder: Path) -> list[dict[str, Any]]:
    """All ranks at once, each under a profiler of its own; what they tell, in order of rank."""
    from k3bench.measure.engines.k3model_ranked import crew_for

    allocation = spec.allocation
    adopt(allocation.builds[spec.arm], allocation.folder.root.absolute())
    builds = allocation.builds
    request = EngineRequest(allocation.plan.recipe, allocation.observation, builds, allocation.folder.root)
    under = tuple(profiler.command([], folder / spec.stem_of("{rank}")))
    with Crew(crew_for(request, RANK, arm=spec.arm, under=under)) as crew:
        asked = {"arm": spec.arm, "level": spec.level, "tool": spec.tool, "stem": str(folder / spec.stem_of("{rank}"))}
        told = crew.ask("run", limit_s=crew.limits.open_s, **asked)
        crew.dismiss(PROFILER_ENDS_S)
    return told


def _run(spec: ProfileSpec, profiler: Profiler, stem: Path) -> dict[str, Any]:
    """Run the program under the profiler; what it tells comes back in a file of its own."""
    folder = spec.allocation.folder.root.absolute()
    program = [sys.executable, "-m", PROGRAM, "--root", str(folder), "--observation", spec.allocation.observation.id]
    program += ["--arm", spec.arm, "--level", str(spec.level), "--tool", spec.tool, "--stem", str(stem)]
    build = spec.allocation.builds[spec.arm]
    adopt(build, folder)
    command, home = profiler.command(program, stem), runnable(build, folder).folder
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home)
    report = stem.with_name("told.json")
    if done.returncode or not report.is_file():
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise MeasureError(
            f"the profiled run under {spec.tool} ended with exit code {done.returncode}: {said[-1][:300]}",
            where="\n".join(said[-15:]),
            fix=_KEPT,
        )
    told: dict[str, Any] = json.loads(report.read_bytes())
    report.unlink()
    return told


def _refuse_without_gpu() -> None:
    """Before torch is imported and a tool is looked for. Creates no context."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        found = not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)) and count.value > 0
    except OSError:
        found = False
    if not found:
        raise MeasureError("a GPU trace needs a CUDA device, and this machine has none", fix=f"use a GPU; {_KEPT}")
