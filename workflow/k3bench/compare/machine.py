"""What the machine did beside the numbers: clocks, throttling, and differences that nobody declared.

In: fingerprints, the blocks that cite them, the builds. Out: findings (not flagged by value: the validity checks judged
them already), environment summary, undeclared differences between the arms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from k3bench.change import mismatch
from k3bench.records.comparison import Finding, Outstanding
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Block
from k3bench.records.plan import Build
from k3bench.records.recipe import Recipe


def clocks(blocks: Sequence[Block], fingerprints: Sequence[Fingerprint]) -> tuple[Finding, ...]:
    """SM clocks and throttle reasons of every observation, before and after its blocks."""
    by_digest = {f.digest(): f for f in fingerprints}
    seen: dict[str, list[Fingerprint]] = {}
    for block in blocks:
        looks = (by_digest.get(d) for d in (block.fingerprint_before, block.fingerprint_after))
        seen.setdefault(block.observation, []).extend(f for f in looks if f is not None)
    return tuple(finding for name, looks in seen.items() for finding in _of_observation(name, looks))


def _of_observation(name: str, looks: Sequence[Fingerprint]) -> Iterable[Finding]:
    mhz = [g.sm_clock_mhz for f in looks for g in f.moving.gpus if g.sm_clock_mhz is not None and not g.idle]
    if mhz:
        yield Finding(
            kind="clocks",
            flagged=False,
            observation=name,
            statistic="lowest SM clock in MHz against the highest, beside the blocks",
            value=float(min(mhz)),
            threshold=float(max(mhz)),
        )
    reasons = sorted({r for f in looks for g in f.moving.gpus for r in g.throttle_reasons or () if r != "gpu_idle"})
    if reasons:
        yield Finding(
            kind="throttle",
            flagged=True,
            observation=name,
            where=", ".join(reasons),
            statistic="throttle reasons seen beside the blocks",
        )


def environment(fingerprints: Sequence[Fingerprint]) -> dict[str, tuple[str, ...]]:
    """Distinct values of what may not change within an observation; more than one value of a field shows here."""
    rows: dict[str, set[str]] = {}
    for f in fingerprints:
        for key, value in _stable(f):
            if value:
                rows.setdefault(key, set()).add(value)
    return {key: tuple(sorted(values)) for key, values in sorted(rows.items())}


def _stable(f: Fingerprint) -> Iterable[tuple[str, str | None]]:
    stable = f.stable
    yield "host", stable.host.name
    yield "cpu", stable.host.cpu_model
    yield "kernel", stable.host.kernel
    yield "device", stable.device
    yield "gpu", ", ".join(sorted({g.name for g in stable.gpus if g.name}))
    yield "driver", stable.driver
    yield "cuda_driver", stable.cuda_driver
    yield "python", stable.python


def undeclared(builds: Sequence[Build], recipe: Recipe) -> tuple[Outstanding, ...]:
    """Where the locks of a pair differ in more, or in less, than the recipe declares, or pairs are not built alike."""
    by_pair: dict[str, dict[str, Build]] = {}
    for build in builds:
        by_pair.setdefault(build.pair, {})[build.arm] = build
    return (*_within(by_pair, recipe), *_between(builds))


def _within(by_pair: Mapping[str, Mapping[str, Build]], recipe: Recipe) -> Iterable[Outstanding]:
    for pair, both in sorted(by_pair.items()):
        if set(both) != {"before", "after"}:
            continue
        found = mismatch(recipe, both["before"], both["after"])
        if found.undeclared:
            yield Outstanding(
                kind="environment",
                what=f"the arms of build pair {pair} differ in {', '.join(found.undeclared)}, which the recipe does "
                "not declare",
                fix="build both arms from the same sources, or declare the difference in the recipe",
            )
        if found.missing:
            yield Outstanding(
                kind="environment",
                what=f"the arms of build pair {pair} do not differ in {', '.join(found.missing)}, which the recipe "
                "declares",
                fix="build the arms from what the change is, or declare what it is",
            )


def _between(builds: Sequence[Build]) -> Iterable[Outstanding]:
    """Pairs may differ in how they came out, never in what they were made from."""
    for arm in ("before", "after"):
        origins = {build.source_digest: build.pair for build in builds if build.arm == arm}
        if len(origins) > 1:
            named = ", ".join(f"{digest[:12]} in {pair}" for digest, pair in origins.items())
            yield Outstanding(
                kind="environment",
                what=f"arm {arm} is made from different sources in different build pairs ({named})",
                fix="name a full commit instead of a branch that moves, and build the pairs again",
            )
