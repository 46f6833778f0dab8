"""Figures that others published or other tools wrote: never called measured, null where the source shows nothing."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Finite, Model, Name, PositiveMs, Record
from k3bench.records.measurement import Arm

Pct = Finite
Count = Annotated[int, Field(ge=0)]


class Source(Model):
    """Where the figures come from, and the digest of the file that was read."""

    title: str
    url: str | None
    state: str | None
    note: str
    digest: Digest


class Imported(Model):
    """The result file a run was read from: what it says of itself, and what is wrong with it.

    `run` is the number the run was declared under. `apart` says that by the clocks another run lay between the two of
    its pair. `flags` are failed checks first (`check: what`), then remarks.
    """

    file: Annotated[str, Field(max_length=255)]
    digest: Digest
    entry: Count
    format: Name
    tool: Name
    run: Annotated[int, Field(ge=1)]
    started_s: Finite | None
    model: str | None
    rack: str | None
    build: str | None
    isl_tokens: int | None
    osl_tokens: int | None
    stream_interval: int | None
    token_source: Name
    simulated: bool
    valid: bool
    apart: bool = False
    flags: tuple[str, ...] = ()


class ReportedRun(Model):
    """One run of one arm at one level, where the source shows them. `pair` and `position` give the declared order."""

    observation: Name
    arm: Arm
    level: int
    pair: int | None
    position: int | None
    metrics: dict[Name, Finite]
    missing: dict[Name, str] = {}
    imported: Imported | None = None


class ReportedDelta(Model):
    """A before/after row as published."""

    observation: Name
    level: int
    before_tpot_ms: PositiveMs | None
    after_tpot_ms: PositiveMs | None
    delta_pct: Pct | None


class ReportedObservation(Model):
    """What the source says about one observation."""

    id: Name
    job: str | None
    rack: str | None
    build: str | None


class ReportedResidency(Model):
    """Busy time and overlap of one family, per decode step."""

    family: Name
    arm: Arm
    segments_per_step: Count | None
    device_busy_ms_per_step: Finite | None
    two_stream_residency_ms_per_step: Finite | None
    share_of_busy_pct: Pct | None


class ReportedBand(Model):
    """A noise band as published."""

    level: int
    band_pct: Pct
    runs: Count | None


class ReportedAgreement(Model):
    """An agreement claim as published."""

    between: tuple[Name, ...]
    value_pct: Pct


class ReportedEquality(Model):
    """A sameness claim in the source's own terms, and what kind of evidence it is."""

    what: str
    claim: str
    kind: Literal["measured", "argued", "not_run"]


class Reported(Record):
    """Everything one source shows. Flagged `environment_unverified` wherever it is used."""

    SCHEMA: ClassVar[str] = "k3bench.reported/1"
    schema_: Literal["k3bench.reported/1"] = Field(default="k3bench.reported/1", alias="schema")
    name: Name
    title: str
    source: Source
    simulated: bool = False
    model: str | None
    hardware: str | None
    parallelism: str | None
    isl_tokens: int | None
    osl_tokens: int | None
    stream_interval: int | None
    primary_level: int
    margin_pct: Pct = 2.0
    observations: tuple[ReportedObservation, ...]
    runs: tuple[ReportedRun, ...] = ()
    deltas: tuple[ReportedDelta, ...] = ()
    residency: tuple[ReportedResidency, ...] = ()
    bands: tuple[ReportedBand, ...] = ()
    band_rule: str | None = None
    agreement: tuple[ReportedAgreement, ...] = ()
    equality: tuple[ReportedEquality, ...] = ()
    metric_dependence: str | None = None
