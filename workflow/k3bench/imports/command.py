"""What `k3bench import` was asked for in; a record, or text to print, out. Every format is told by its content.

Out of scope: reading a format (readers), the record's rules (`accumulate.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import RecordError
from k3bench.imports.accumulate import Incoming, import_into
from k3bench.imports.detect import is_pr_figures, read_runs
from k3bench.imports.foreign import read_foreign
from k3bench.imports.place import parse_place
from k3bench.imports.pr_figures import read_pr_figures
from k3bench.imports.show import chosen, line_of, show, show_figures
from k3bench.records.base import NAME_PATTERN
from k3bench.records.reported import Reported
from k3bench.store import write_record


@dataclass(frozen=True)
class Request:
    """The words of one call. `place` is `--as`; `into` defaults to results/<name>."""

    files: tuple[Path, ...]
    place: str | None = None
    show: bool = False
    entry: int | None = None
    level: int | None = None
    name: str | None = None
    into: Path | None = None
    out: Path | None = None


def run(request: Request) -> Iterator[str]:
    """Do it; yields what to print. Raises a `K3Error` naming the file and the field before anything is written."""
    if request.show:
        yield from _show(request)
    elif len(request.files) == 1 and is_pr_figures(read_foreign(request.files[0])):
        yield _figures(request)
    elif request.place is None:
        raise RecordError(
            "where does the run belong?",
            where=str(request.files[0]),
            fix="--as observation.arm[.run], e.g. --as rack1.before.2; or --show to only look",
        )
    else:
        yield from _runs(request, request.place)


def _show(request: Request) -> Iterator[str]:
    for path in request.files:
        file = read_foreign(path)
        if is_pr_figures(file):
            found = show_figures(read_pr_figures(path, name="figures"))
        else:
            found = show(file, chosen(file, read_runs(file), request.entry))
        yield json.dumps(found, indent=2 if len(request.files) == 1 else None, ensure_ascii=False, allow_nan=False)


def _figures(request: Request) -> str:
    """A pull request's published figures: a record of their own."""
    path = request.files[0]
    if request.name is None:
        raise RecordError("a pull request's figures need a name", where=str(path), fix="--name pr-17103")
    reported = read_pr_figures(path, name=_name(request.name))
    out = request.out or (request.into or Path("results") / request.name) / "reported.json"
    write_record(out, reported)
    return f"{out}: {len(reported.deltas)} published rows of {len(reported.observations)} observations"


def _runs(request: Request, where: str) -> Iterator[str]:
    place = parse_place(where)
    name = _name(request.name or (request.into.resolve().name if request.into else "imported"))
    folder = request.into or Path("results") / name
    if request.out is not None:
        raise RecordError("--out is for a pull request's figures", where=str(request.out), fix="--into FOLDER")
    incoming = []
    for path in request.files:
        file = read_foreign(path)
        for entry, reading in chosen(file, read_runs(file), request.entry):
            incoming.append(Incoming(path, file, entry, reading, place, request.level))
    record, placed = import_into(folder, name, incoming)
    for one, run_ in zip(incoming, placed, strict=True):
        number = run_.imported.run if run_.imported else 0
        yield line_of(one.reading, f"{one.file.name}: {place.observation}.{place.arm}.{number}", run_)
    yield _state(record, folder)


def _state(record: Reported, folder: Path) -> str:
    arms = {(r.observation, r.level, r.pair, r.arm) for r in record.runs if r.imported and r.imported.valid}
    pairs = Counter((o, c) for o, c, p, arm in arms if arm == "before" and (o, c, p, "after") in arms)
    spots = sorted({(r.observation, r.level) for r in record.runs})
    counted = ", ".join(f"{o} c={c} {pairs[o, c]}" for o, c in spots)
    return (
        f"{folder / 'reported.json'}: {len(record.runs)} run{'s' * (len(record.runs) != 1)}; "
        f"valid pairs (a verdict needs 4): {counted}\n"
        f"next: k3bench compare {folder} --out {folder / 'comparison.json'}"
    )


def _name(text: str) -> str:
    if not re.match(NAME_PATTERN, text) or len(text) > 120:
        raise RecordError(f"{text[:80]!r} is no name", where="--name", fix="letters, digits, dot, dash, underscore")
    return text
