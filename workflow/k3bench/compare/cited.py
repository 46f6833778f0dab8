"""What records cite, held against what is there: the builds that were timed and probed, fingerprints, raw step times.

In: the records of a campaign. Out: `Outstanding`s, none where every citation holds. Out of scope: whether the arms
differ in what was declared (`machine`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from k3bench.compare.inputs import Inputs
from k3bench.records.comparison import Outstanding
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.residency import Residency

#: Observation and arm -> identities of the builds that its points cite.
Timed = dict[tuple[str, Arm], set[str]]
#: Preset, kind, what, policy and batch of a row of equality evidence.
Probe = tuple[str, str, str, str, int | None]


def timed_builds(given: Inputs) -> Timed:
    """Which builds the points say they are of."""
    timed: Timed = {}
    for point in given.points:
        timed.setdefault((point.observation, point.name.arm), set()).add(point.build)
    return timed


def other_builds(given: Inputs) -> tuple[Outstanding, ...]:
    """Observations whose points are of another build than the record that the report describes."""
    recorded = {(build.pair, build.arm): build.identity for build in given.builds}
    return tuple(
        Outstanding(
            kind="environment",
            what=f"{observation} timed another build of arm {arm} than builds/{pair}/{of}.json describes",
            fix="restore the build record that its points cite, or measure the observation again",
        )
        for observation, arm, pair, of, cited in _by_place(given)
        if (pair, of) in recorded and cited != {recorded[pair, of]}
    )


def unrecorded(given: Inputs) -> tuple[Outstanding, ...]:
    """Builds and fingerprints that points and blocks cite and nobody kept."""
    return (*_builds_not_kept(given), *_fingerprints_not_kept(given))


def _builds_not_kept(given: Inputs) -> Iterator[Outstanding]:
    there = {(build.pair, build.arm) for build in given.builds}
    missing = dict.fromkeys((pair, of) for _, _, pair, of, _ in _by_place(given) if (pair, of) not in there)
    for pair, arm in missing:
        yield Outstanding(
            kind="environment",
            what=f"builds/{pair}/{arm}.json is missing: what was timed as that arm is not known",
            fix="restore the build record",
        )


def _fingerprints_not_kept(given: Inputs) -> Iterator[Outstanding]:
    there = {fingerprint.digest() for fingerprint in given.fingerprints}
    cited = {(point.observation, point.fingerprint) for point in given.points}
    for block in given.blocks:
        cited |= {(block.observation, digest) for digest in (block.fingerprint_before, block.fingerprint_after)}
    missing = {observation for observation, digest in cited if digest not in there}
    if missing:
        yield Outstanding(
            kind="environment",
            what=f"fingerprints that {', '.join(sorted(missing))} cite are missing: the machine is not known",
            fix="restore observations/OBSERVATION/fingerprints/",
        )


def raw_not_kept(given: Inputs) -> tuple[Outstanding, ...]:
    """Raw step times that points cite by digest and that are gone or other bytes; nothing where nobody looked."""
    if given.raw is None:
        return ()
    cited = Counter(point.observation for point in given.points)
    gone = Counter(point.observation for point in given.points if point.id not in given.raw)
    other = Counter(p.observation for p in given.points if given.raw.get(p.id, p.raw_digest) != p.raw_digest)
    return tuple(
        Outstanding(
            kind="time",
            what=f"raw step times of {observation}: of {n} files that its points cite, "
            + _listed({"missing": gone[observation], "with other bytes": other[observation]}),
            fix=f"restore observations/{observation}/raw/ from a copy, or measure the observation again",
        )
        for observation, n in cited.items()
        if gone[observation] or other[observation]
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items() if n)


def _by_place(given: Inputs) -> Iterator[tuple[str, Arm, str, Arm, set[str]]]:
    """Observation and arm of the points, pair and arm of the build record they belong to, builds they cite."""
    timed = timed_builds(given)
    for planned in given.plan.observations:
        for arm in ARMS:
            if (planned.id, arm) in timed:
                yield planned.id, arm, planned.pair, planned.arm(arm), timed[planned.id, arm]


def probed_elsewhere(records: Iterable[Equivalence], timed: Timed) -> dict[str, tuple[Arm, ...]]:
    """Observation -> arms whose probes are of other builds than it timed, for records that hold a probe that ran."""
    arms = {
        record.observation: tuple(a for a in ARMS if timed.get((record.observation, a)) != {record.builds.get(a)})
        for record in records
        if any(row.status != "not_run" for row in record.rows)
    }
    return {observation: found for observation, found in arms.items() if found}


def not_of_these_builds(elsewhere: Mapping[str, tuple[Arm, ...]]) -> tuple[Outstanding, ...]:
    """Sameness of other builds is none of these."""
    return tuple(
        Outstanding(
            kind="equality",
            what=f"the probes of {observation} are not of the builds that it timed ({', '.join(arms)})",
            fix=f"k3bench verify PLAN {observation}",
        )
        for observation, arms in elsewhere.items()
    )


def probed_less(given: Inputs) -> tuple[Outstanding, ...]:
    """Timed observations of the change that lack probes which ran for another of them."""
    timed = {point.observation for point in given.points}
    wanted = [o.id for o in given.plan.observations if o.id in timed and not o.zero_change]
    records = {record.observation: record for record in given.equivalence if record.observation in wanted}
    asked: set[Probe] = set()
    for record in records.values():
        asked |= {probe_of(row) for row in record.rows if row.status != "not_run"}
    short = {observation: _short_of(records.get(observation), asked) for observation in wanted if asked}
    return tuple(
        Outstanding(kind="equality", what=f"{observation}: {what}", fix=f"k3bench verify PLAN {observation}")
        for observation, what in short.items()
        if what
    )


def probe_of(row: EquivalenceRow) -> Probe:
    """What was asked, whatever came of it."""
    return row.preset, row.kind, row.what, row.policy, row.batch


def _short_of(record: Equivalence | None, asked: set[Probe]) -> str:
    """What one record lacks, by preset; empty where nothing. A row that says why it did not run is there."""
    if record is None:
        return "outputs of its builds were not probed, those of others were"
    total, lacking = (Counter(preset for preset, *_ in probes) for probes in (asked, asked - _probes(record)))
    short = [f"{n} of {total[preset]} on {preset}" for preset, n in sorted(lacking.items())]
    return f"lacks probes that another observation has ({', '.join(short)})" if short else ""


def _probes(record: Equivalence) -> set[Probe]:
    return {probe_of(row) for row in record.rows}


def traced_elsewhere(records: Mapping[str, Residency], timed: Timed) -> dict[str, str]:
    """Observation -> what its traces are instead of its own: of other builds than it timed, or another observation's.

    A trace shown by two observations counts for the first of them whose builds it can be of.
    """
    found: dict[str, str] = {}
    shown_by: dict[str, str] = {}
    for observation, record in records.items():
        arms = _traced_other_builds(observation, record, timed)
        if arms:
            found[observation] = f"not of the builds that it timed ({', '.join(arms)})"
            continue
        others = {shown_by.setdefault(trace.sha256, observation) for trace in record.traces} - {observation}
        if others:
            found[observation] = f"those that lie in the folder of {', '.join(sorted(others))} too"
    return found


def not_its_own(traced: Mapping[str, str]) -> tuple[Outstanding, ...]:
    """Traces that say nothing of the observation in whose folder they lie; its mechanism is made without them."""
    return tuple(
        Outstanding(
            kind="residency",
            what=f"the traces of {observation} do not count: they are {why}",
            fix="restore its residency.json, or k3bench profile, then k3bench trace",
        )
        for observation, why in traced.items()
    )


def _traced_other_builds(observation: str, record: Residency, timed: Timed) -> list[Arm]:
    """Arms whose traces name another build; a trace that names none, as older records do, is taken for its own."""
    return [
        arm
        for arm in ARMS
        if (observation, arm) in timed
        and {t.build for t in record.traces if t.arm == arm and t.build} - timed[observation, arm]
    ]
