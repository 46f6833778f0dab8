"""`observation.arm[.run]` in; where an imported run belongs out. Out of scope: whether it may (`likeness.py`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from k3bench.errors import RecordError
from k3bench.records.base import NAME_PATTERN
from k3bench.records.measurement import Arm

#: Blocks hold four runs; nobody repeats a point ten thousand times.
MAX_RUN = 9999
_SHAPE = re.compile(r"^(?P<observation>.+)\.(?P<arm>before|after)(?:\.(?P<run>[0-9]{1,9}))?$")


@dataclass(frozen=True)
class Place:
    """`run` counts an observation's runs of one arm from 1; run n of `before` and run n of `after` are pair n."""

    observation: str
    arm: Arm
    run: int | None


def parse_place(text: str) -> Place:
    """Read `--as`. Raises `RecordError` with the shape that is wanted."""
    found = _SHAPE.match(text)
    run = None if found is None or found["run"] is None else int(found["run"])
    ok = found is not None and len(found["observation"]) <= 120 and re.match(NAME_PATTERN, found["observation"])
    if not ok or (run is not None and not 1 <= run <= MAX_RUN):
        raise RecordError(
            f"{text[:80]!r} is no place for a run",
            where="--as",
            fix="observation.arm[.run] with arm before or after and run from 1, e.g. rack1.before.2",
        )
    assert found is not None
    return Place(found["observation"], "before" if found["arm"] == "before" else "after", run)
