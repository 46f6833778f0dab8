"""Where the numbers come from: inputs by digest, commits, versions, setting, dates.

In: the records of a campaign. Out: `InputRef`s, `Provenance`, the noise `Setting`. Nothing is looked up: what no record
says stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from k3bench.change import difference
from k3bench.compare.inputs import Inputs
from k3bench.compare.machine import environment
from k3bench.compare.table import RunTable
from k3bench.records.base import Record
from k3bench.records.comparison import InputRef, Provenance
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Measurement
from k3bench.records.noise import Noise, Setting
from k3bench.records.plan import Build, Plan


def inputs_of(given: Inputs, noise: Noise | None) -> tuple[InputRef, ...]:
    """Every record that went in, by id and digest. Noise records that were only looked at are none of them."""
    return tuple(_inputs(given, noise))


def _inputs(given: Inputs, noise: Noise | None) -> Iterator[InputRef]:
    name = given.plan.recipe.name
    yield InputRef(kind="plan", record_id=name, digest=given.plan.digest())
    for build in given.builds:
        yield InputRef(kind="build", record_id=f"{build.pair}/{build.arm}", digest=build.digest())
    for allocation in given.allocations:
        where = f"{allocation.observation}/{allocation.allocation}"
        yield InputRef(kind="allocation", record_id=where, digest=allocation.digest())
    for observation, residency in given.residency.items():
        yield InputRef(kind="residency", record_id=f"{observation}/residency", digest=residency.digest())
    for same in given.equivalence:
        yield InputRef(kind="equivalence", record_id=f"{same.observation}/equivalence", digest=same.digest())
    if noise is not None:
        yield InputRef(kind="noise", record_id=noise.campaign, digest=_digest(noise))


def _digest(record: Record) -> str:
    return record.digest()


def setting_of(plan: Plan, points: Sequence[Measurement], fingerprints: Sequence[Fingerprint] = ()) -> Setting:
    """Engine, hardware class and workload: noise of another setting says nothing here."""
    recipe, ranks = plan.recipe, plan.recipe.engine.ranks
    return Setting(
        engine=recipe.engine.name,
        preset=recipe.engine.preset + (f" on {ranks} ranks" if ranks > 1 else ""),
        hardware_class=_hardware_class(points, fingerprints),
        restart="+".join(sorted({p.restart for p in points})) or "unknown",
        isl_tokens=recipe.workload.isl_tokens,
        osl_tokens=recipe.workload.osl_tokens,
        stream_interval=recipe.workload.stream_interval,
    )


def _hardware_class(points: Sequence[Measurement], fingerprints: Sequence[Fingerprint]) -> str:
    """Device and model, e.g. `cuda: NVIDIA H200`; the device alone where no fingerprint names a model."""
    devices = "+".join(sorted({p.device for p in points})) or "unknown"
    gpus = {g.name for f in fingerprints for g in f.stable.gpus if g.name} if "cuda" in devices else set()
    models = gpus or {f.stable.host.cpu_model for f in fingerprints if f.stable.host.cpu_model}
    return f"{devices}: {', '.join(sorted(models))}" if models else devices


def dates_of(table: RunTable, observations: Iterable[int]) -> tuple[str, ...]:
    """Days (UTC) on which runs of these observations started."""
    chosen = set(observations)
    return tuple(sorted({p.started[:10] for (_, o, _), p in table.points.items() if o in chosen}))


def provenance_of(given: Inputs) -> Provenance:
    """The summary a report prints; values that differ are all listed."""
    recipe, points, setting = given.plan.recipe, given.points, setting_of(given.plan, given.points, given.fingerprints)
    work = recipe.workload
    return Provenance(
        engine=setting.engine,
        preset=setting.preset,
        hardware_class=setting.hardware_class,
        restart=setting.restart,
        commits={arm: _distinct(_commit(b) for b in given.builds if b.arm == arm) for arm in ("before", "after")},
        versions=_versions(given.builds),
        environment=environment(given.fingerprints),
        workload={
            "isl_tokens": str(work.isl_tokens),
            "osl_tokens": str(work.osl_tokens),
            "levels": ", ".join(map(str, work.levels)),
            "stream_interval": str(work.stream_interval),
            "batches": str(work.batches),
            "warmup_batches": str(work.warmup_batches),
        },
        declared_change=_change(given),
        first_started_at=min((p.started for p in points), default=None),
        last_ended_at=max((p.ended for p in points), default=None),
        seed=recipe.seed,
        notes=tuple(f"builds: {history}" for history in _distinct(b.history for b in given.builds if b.history)),
    )


def _change(given: Inputs) -> str:
    """What the locks differ in; without locks, or where they are alike, the policies."""
    recipe, policies = given.plan.recipe, given.plan.recipe.arms
    both = {build.arm: build for build in given.builds}
    found = difference(recipe, both["before"], both["after"]) if len(both) == 2 else {}
    named = found or {"policy": (policies.before.policy, policies.after.policy)}
    return "; ".join(f"{field} {before} -> {after}" for field, (before, after) in named.items())


def _commit(build: Build) -> str:
    if build.git_commit is None:
        return f"no commit, sources {build.source_digest[:12]}"
    return build.git_commit + ("+changes" if build.git_dirty else "")


def _versions(builds: Sequence[Build]) -> dict[str, tuple[str, ...]]:
    names = sorted({name for b in builds for name in b.versions})
    return {name: _distinct(b.versions[name] for b in builds if name in b.versions) for name in names}


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))
