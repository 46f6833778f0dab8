"""All imported runs in; their `k3bench.reported/1` record out, whatever order they came in.

Out of scope: whether a run may join (`likeness.py`), files (`accumulate.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from k3bench.imports.likeness import label
from k3bench.imports.pairing import Paired, order_contradicted, pair_runs, source_of
from k3bench.records.base import digest_of
from k3bench.records.measurement import ARMS
from k3bench.records.reported import Imported, Reported, ReportedObservation, ReportedRun, Source


def build_record(name: str, runs: Sequence[ReportedRun]) -> Reported:
    """The record of a set of runs, whatever order they came in."""
    paired = pair_runs(runs)
    ordered = [p.run for p in paired]
    sources = [source_of(run) for run in ordered]
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
        runs=tuple(ordered),
    )


def _shared(sources: Sequence[Imported], field: str) -> Any:
    """What the files say, if one says it: unlike ones were refused."""
    return next((value for s in sources if (value := getattr(s, field)) is not None), None)


def _observation(name: str, runs: Sequence[ReportedRun]) -> ReportedObservation:
    mine = [r for r in runs if r.observation == name]
    builds = {arm: _shared([source_of(r) for r in mine if r.arm == arm], "build") for arm in ARMS}
    told = builds["before"] is not None or builds["after"] is not None
    return ReportedObservation(
        id=name,
        job=None,
        rack=_shared([source_of(r) for r in mine], "rack"),
        build=f"before {builds['before'] or '?'}, after {builds['after'] or '?'}" if told else None,
    )


def _note(paired: Sequence[Paired]) -> str:
    """What a reader must know about how these runs were put together."""
    runs = [p.run for p in paired]
    split = [r for r in runs if source_of(r).apart and r.arm == "before"]
    named = {
        "not valid": [r for r in runs if not source_of(r).valid],
        "without a partner": [p.run for p in paired if p.partner is None],
        "not measured side by side, so drift is not cancelled": split,
        "clocks contradict the declared order": list(order_contradicted(paired)),
    }
    guessed = any(p.partner is not None and not p.order_known for p in paired)
    parts = [
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} imported from files; their environments were not recorded",
        *(f"{what}: {', '.join(label(r) for r in found)}" for what, found in named.items() if found),
        "order inside pairs is not shown by the files: before is taken as first" if guessed else None,
        _sources_differ(runs),
        *_same_build(runs),
        *_remarks(runs),
    ]
    return "; ".join(p for p in parts if p)


def _sources_differ(runs: Sequence[ReportedRun]) -> str | None:
    found = sorted({f"{source_of(r).tool} ({source_of(r).token_source})" for r in runs})
    return f"observations were measured by different tools: {', '.join(found)}" if len(found) > 1 else None


def _same_build(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """Arms that name one and the same build differ by nothing, or the label was not changed."""
    for name in sorted({r.observation for r in runs}):
        named = {arm: {source_of(r).build for r in runs if (r.observation, r.arm) == (name, arm)} for arm in ARMS}
        if named["before"] == named["after"] != {None}:
            yield f"both arms of {name} name the same build"


def _remarks(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """What the readers remarked on valid runs, counted: details are with each run in the record."""
    heads = Counter(
        re.split(r"[:(]", flag)[0].strip() for r in runs if source_of(r).valid for flag in source_of(r).flags
    )
    for head, count in sorted(heads.items()):
        yield f"{count} of {len(runs)}: {head}"
