"""Readings and their places in; one `k3bench.reported/1` record that grows import by import, out.

The record is a function of its runs: importing the same file again changes nothing, and the order of imports does not
matter. Run n of `before` and run n of `after` are pair n; which of them ran first is told by the files' own clocks.
Out of scope: pull-request figures (`pr_figures.py`), the verdict (`compare/`).
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import RecordError, StoreError
from k3bench.imports.foreign import ForeignFile
from k3bench.imports.likeness import label, other_arm_in_name, refuse_other_arm, refuse_unlike
from k3bench.imports.place import Place
from k3bench.imports.reading import Reading
from k3bench.metrics import HEADLINE
from k3bench.records.base import digest_of
from k3bench.records.measurement import Arm
from k3bench.records.reported import Imported, Reported, ReportedObservation, ReportedRun, Source
from k3bench.store import CampaignFolder, read_record, write_record

ARMS: tuple[Arm, Arm] = ("before", "after")


@dataclass(frozen=True)
class Incoming:
    """One run of a file, and where it is to go. `level` is the user's word where the file has none."""

    path: Path
    file: ForeignFile
    entry: int
    reading: Reading
    place: Place
    level: int | None = None


def import_into(folder: Path, name: str, incoming: Sequence[Incoming]) -> tuple[Reported, list[ReportedRun]]:
    """Add runs to a folder's record, all or none. Returns the record and the runs as they lie in it."""
    target = CampaignFolder(folder)
    if target.plan.exists():
        raise StoreError(
            "the folder holds a measured campaign; imported runs are kept apart",
            where=str(folder),
            fix="--into another folder",
        )
    with _locked(folder):
        existing = _existing(target.reported)
        runs, placed = _placed(existing.runs if existing else (), incoming)
        record = build_record(existing.name if existing else name, runs)
        if existing != record:
            write_record(target.reported, record)
    lying = {label(run): run for run in record.runs}
    return record, [lying[label(run)] for run in placed]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two imports at once wait for one another; the lock is the folder itself and leaves no file behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", where=str(folder), fix="--into another folder") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _existing(path: Path) -> Reported | None:
    if not path.exists():
        return None
    found = read_record(path, Reported)
    if found.deltas or any(run.imported is None for run in found.runs):
        raise StoreError(
            "the record holds published figures, no imported runs", where=str(path), fix="--into another folder"
        )
    return found


def _placed(old: Sequence[ReportedRun], incoming: Sequence[Incoming]) -> tuple[list[ReportedRun], list[ReportedRun]]:
    """All runs, old and new; a file that is in its place already stays what it was."""
    runs, placed = list(old), []
    for one in incoming:
        known = next((r for r in runs if _is(r, one)), None)
        if known is None:
            known = _run(one, runs)
            refuse_unlike(known, runs)
            runs.append(known)
        placed.append(known)
    return runs, placed


def _is(run: ReportedRun, one: Incoming) -> bool:
    """The same run of the same file in the same place."""
    source, place = run.imported, one.place
    assert source is not None
    return (source.digest, source.entry, run.observation, run.arm) == (
        one.file.digest,
        one.entry,
        place.observation,
        place.arm,
    ) and place.run in (None, source.run)


def _run(one: Incoming, others: Sequence[ReportedRun]) -> ReportedRun:
    place = one.place
    refuse_other_arm(one.reading.facts.arm, place.arm, one.file.name)
    level = _level(one)
    metrics, missing = one.reading.usable()
    return ReportedRun(
        observation=place.observation,
        arm=place.arm,
        level=level,
        pair=None,
        position=None,
        metrics=metrics,
        missing=missing,
        imported=_imported(one, place.run or _next_run(place, level, others)),
    )


def _imported(one: Incoming, number: int) -> Imported:
    reading, facts = one.reading, one.reading.facts
    remark = other_arm_in_name(one.path, one.place.arm)
    return Imported(
        file=one.file.name,
        digest=one.file.digest,
        entry=one.entry,
        format=reading.format,
        tool=reading.tool,
        run=number,
        started_s=facts.started_s,
        model=facts.model,
        rack=facts.rack,
        build=facts.build,
        isl_tokens=facts.isl_tokens,
        osl_tokens=facts.osl_tokens,
        stream_interval=facts.stream_interval,
        token_source=facts.token_source,
        simulated=facts.simulated,
        valid=reading.valid,
        flags=(*reading.flags, *([remark] if remark else [])),
    )


def _level(one: Incoming) -> int:
    found = one.reading.facts.level
    if found is None and one.level is None:
        why = [r for r in one.reading.remarks if r.startswith("open loop")]
        lacks = [f"{HEADLINE} is null: {one.reading.missing[HEADLINE]}"] if HEADLINE in one.reading.missing else []
        raise RecordError(
            "; ".join(["the file states no concurrency", *why, *lacks]),
            where=f"{one.file.name}: level",
            fix="say what was held with --level N",
        )
    if found is not None and one.level not in (None, found):
        raise RecordError(
            f"--level {one.level}, but the file says {found}", where=f"{one.file.name}: level", fix="leave --level out"
        )
    return found or one.level or 1


def _next_run(place: Place, level: int, others: Sequence[ReportedRun]) -> int:
    """The lowest free number of this observation, arm and level."""
    taken = {
        r.imported.run
        for r in others
        if r.imported and (r.observation, r.arm, r.level) == (place.observation, place.arm, level)
    }
    return next(n for n in range(1, len(taken) + 2) if n not in taken)


def build_record(name: str, runs: Sequence[ReportedRun]) -> Reported:
    """The record of a set of runs, whatever order they came in."""
    ordered = sorted(runs, key=lambda r: (r.observation, r.level, _source(r).run, r.arm != "before"))
    paired = tuple(_paired(run, ordered) for run in ordered)
    sources = [_source(run) for run in ordered]
    return Reported(
        name=name,
        title=f"Imported runs: {name}",
        source=Source(
            title=", ".join(sorted({s.format for s in sources})),
            url=None,
            state=None,
            note=_note(paired),
            digest=digest_of(sorted((s.digest, s.entry) for s in sources)),
        ),
        simulated=any(s.simulated for s in sources),
        model=_shared(sources, "model"),
        hardware=None,
        parallelism=None,
        isl_tokens=_shared(sources, "isl_tokens"),
        osl_tokens=_shared(sources, "osl_tokens"),
        stream_interval=_shared(sources, "stream_interval"),
        primary_level=min(run.level for run in ordered),
        observations=tuple(_observation(o, ordered) for o in sorted({r.observation for r in ordered})),
        runs=paired,
    )


def _source(run: ReportedRun) -> Imported:
    assert run.imported is not None, "runs of an imported record carry their file"
    return run.imported


def _shared(sources: Sequence[Imported], field: str):  # type: ignore[no-untyped-def]
    """What the files say, if one says it: unlike ones were refused."""
    return next((value for s in sources if (value := getattr(s, field)) is not None), None)


def _observation(name: str, runs: Sequence[ReportedRun]) -> ReportedObservation:
    mine = [r for r in runs if r.observation == name]
    builds = {arm: _shared([_source(r) for r in mine if r.arm == arm], "build") for arm in ARMS}
    told = builds["before"] is not None or builds["after"] is not None
    return ReportedObservation(
        id=name,
        job=None,
        rack=_shared([_source(r) for r in mine], "rack"),
        build=f"before {builds['before'] or '?'}, after {builds['after'] or '?'}" if told else None,
    )


def _paired(run: ReportedRun, runs: Sequence[ReportedRun]) -> ReportedRun:
    """With its pair and its position in the observation, from 1: the clocks' order, else before first."""
    number, partner = _source(run).run, partner_of(run, runs)
    first = run.arm == "before"
    if partner is not None and clock_order(run, partner) is not None:
        first = clock_order(run, partner) == "first"
    return run.model_copy(update={"pair": number - 1, "position": 2 * number - (1 if first else 0)})


def partner_of(run: ReportedRun, runs: Sequence[ReportedRun]) -> ReportedRun | None:
    """The run of the other arm with the same number, observation and level."""
    wanted = (run.observation, run.level, _source(run).run)
    found = (r for r in runs if r.arm != run.arm and (r.observation, r.level, _source(r).run) == wanted)
    return next(found, None)


def clock_order(run: ReportedRun, partner: ReportedRun) -> str | None:
    """`first` or `second` by the clocks of one tool; None where they do not tell."""
    mine, other = _source(run), _source(partner)
    if mine.started_s is None or other.started_s is None or mine.started_s == other.started_s:
        return None
    return "first" if mine.started_s < other.started_s else "second"


def _note(runs: Sequence[ReportedRun]) -> str:
    """What a reader must know about how these runs were put together."""
    invalid = [label(r) for r in runs if not _source(r).valid]
    alone = [label(r) for r in runs if partner_of(r, runs) is None]
    unordered = [label(r) for r in runs if (p := partner_of(r, runs)) and clock_order(r, p) is None]
    apart = [label(r) for r in runs if _not_neighbours(r, runs)]
    parts = [
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} imported from files; their environments were not recorded",
        f"not valid: {', '.join(invalid)}" if invalid else None,
        f"without a partner: {', '.join(alone)}" if alone else None,
        "order inside pairs is not shown by the files: before is taken as first" if unordered else None,
        f"not measured side by side, so drift is not cancelled: {', '.join(apart)}" if apart else None,
        _sources_differ(runs),
        *_same_build(runs),
        *_remarks(runs),
    ]
    return "; ".join(p for p in parts if p)


def _not_neighbours(run: ReportedRun, runs: Sequence[ReportedRun]) -> bool:
    """Another run of the observation and level started between the two runs of this pair."""
    partner = partner_of(run, runs)
    if run.arm != "before" or partner is None:
        return False
    ends = [_source(run).started_s, _source(partner).started_s]
    if ends[0] is None or ends[1] is None:
        return False
    low, high = sorted((ends[0], ends[1]))
    others = (r for r in runs if (r.observation, r.level) == (run.observation, run.level) and r not in (run, partner))
    return any(low < (at if (at := _source(r).started_s) is not None else low) < high for r in others)


def _sources_differ(runs: Sequence[ReportedRun]) -> str | None:
    found = sorted({f"{_source(r).tool} ({_source(r).token_source})" for r in runs})
    return f"observations were measured by different tools: {', '.join(found)}" if len(found) > 1 else None


def _same_build(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Arms that name one and the same build differ by nothing, or the label was not changed."""
    for name in sorted({r.observation for r in runs}):
        named = {arm: {_source(r).build for r in runs if (r.observation, r.arm) == (name, arm)} for arm in ARMS}
        if named["before"] == named["after"] != {None}:
            yield f"both arms of {name} name the same build"


def _remarks(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """What the readers remarked on valid runs, counted: details are with each run in the record."""
    heads = Counter(re.split(r"[:(]", flag)[0].strip() for r in runs if _source(r).valid for flag in _source(r).flags)
    for head, count in sorted(heads.items()):
        yield f"{count} of {len(runs)}: {head}"
