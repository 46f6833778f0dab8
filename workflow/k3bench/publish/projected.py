"""What a projected run is: values with step and time, tags, params, artifacts, and one digest of them all.

Pure: no MLflow. Out of scope: which numbers go where (`arms.py`, `projection.py`), writing them (`tracking.py`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from k3bench.evidence import Evidence
from k3bench.metrics import METRICS
from k3bench.records.base import digest_of
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Measurement
from k3bench.records.reported import Reported
from k3bench.records.residency import Residency

#: Short names of the flat columns: the runs table cuts a header at about thirteen characters.
COLUMN = {
    "tpot_median_ms": "tpot_ms",
    "ttft_median_ms": "ttft_ms",
    "itl_median_ms": "itl_ms",
    "step_p99_ms": "p99_ms",
    "output_tok_s": "tok_s",
}
COLOUR = {"before": "#868e98", "after": "#0a4a86", "zero-change": "#b08d3c"}
#: Changes when the same records are projected differently: every run is then written anew.
VERSION = "1"
MAX_PARAMS, MAX_PARAM_CHARS, MAX_TAG_CHARS = 100, 500, 5000


class Point(NamedTuple):
    """One logged value."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class Projected:
    """One MLflow run. `key` says which; `digest` says with what content."""

    key: str
    name: str
    role: str
    start_ms: int
    end_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: tuple[Point, ...]
    artifacts: Mapping[str, bytes] = field(repr=False, default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of everything that is written."""
        files = {name: hashlib.sha256(data).hexdigest() for name, data in self.artifacts.items()}
        return digest_of(
            [VERSION, self.key, self.name, self.start_ms, self.end_ms, dict(self.tags), dict(self.params),
             [list(p) for p in self.points], files]
        )  # fmt: skip


@dataclass(frozen=True)
class Campaign:
    """Everything that a projection reads. `files` are the report's."""

    record: Comparison
    evidence: Evidence | Reported
    superseded: tuple[Measurement, ...] = ()
    raw: Mapping[str, bytes] = field(default_factory=dict)
    residency: Mapping[str, Residency] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    note: str = ""


def shared_tags(record: Comparison, group: str) -> dict[str, str]:
    """What every run of a campaign carries: study, colour, and whether it was measured at all."""
    tags = {"study": record.campaign, "mlflow.source.name": "k3bench", "mlflow.runColor": COLOUR.get(group, "#1f2328")}
    if record.simulated:
        tags["simulated"] = "yes"
    if record.kind == "reported":
        tags["published"] = "yes, not measured here"
    return tags


def bounded(tags: Mapping[str, str]) -> dict[str, str]:
    """MLflow cuts long values without a word: cut them here, visibly."""
    return {k: v if len(v) <= MAX_TAG_CHARS else v[: MAX_TAG_CHARS - 1] + "…" for k, v in tags.items() if v}


def curve(metric: str, value: float, level: int, end: int) -> Iterator[Point]:
    """A value at a level: once on its curve, once as the flat column."""
    section = METRICS[metric].section if metric in METRICS else "other"
    yield Point(f"{section}/{metric}", value, level, end)
    yield Point(f"c{level}_{COLUMN.get(metric, metric)}", value, 0, end)


_UNSAFE = re.compile(r"[^A-Za-z0-9_\-.:/ ]+")


def safe_key(text: str) -> str:
    """A name that MLflow takes: its letters only, at most 250 of them; a name that had to change keeps a digest."""
    clean = re.sub(r"/+", "/", _UNSAFE.sub("_", text)).strip("/")
    if clean == text and len(clean) <= 250:
        return clean
    return f"{clean[:225]}.{digest_of(text)[:12]}"


def time_ms(instant: str) -> int:
    """Milliseconds since the epoch of a record's instant."""
    return round(datetime.fromisoformat(instant).timestamp() * 1000)
