"""What measuring writes: points, blocks, allocations.

A point is on disk before the next begins. A block's closing record is written last and makes its points count; a block
without one was broken off, and its points are superseded by the attempt that measured the block whole.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from k3bench.records.base import Digest, Finite, Model, Name, PositiveMs, Record

Arm = Literal["before", "after"]
Order = Literal["ABBA", "BAAB"]
Restart = Literal["none", "process", "server"]
Instant = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]

#: Both sides, in the order that tables and messages show them.
ARMS: tuple[Arm, Arm] = ("before", "after")
#: run position inside a block -> arm, by order. Pairs are runs (0, 1) and (2, 3).
ARMS_OF: dict[Order, tuple[Arm, Arm, Arm, Arm]] = {
    "ABBA": ("before", "after", "after", "before"),
    "BAAB": ("after", "before", "before", "after"),
}


class Check(Model):
    """One validity criterion, written before the data, and how it went."""

    name: Name
    ok: bool
    detail: str = ""


class PointName(Model):
    """Which planned point, at which attempt. The text form is the file's stem."""

    block: int
    attempt: int
    run: Annotated[int, Field(ge=0, le=3)]
    arm: Arm
    level: Annotated[int, Field(ge=1)]

    def __str__(self) -> str:
        return f"b{self.block:03d}-a{self.attempt}-r{self.run}-{self.arm}-c{self.level}"


class Measurement(Record):
    """One point: one run at one level. Times in ms; per-step or per-request values lie in the raw file named here.

    `batch_tpot_ms` holds one value a batch in process, one a counted request when served; empty only if invalid.
    `calibration` names the load client's own record where a client was in between.
    """

    SCHEMA: ClassVar[str] = "k3bench.measurement/1"
    schema_: Literal["k3bench.measurement/1"] = Field(default="k3bench.measurement/1", alias="schema")
    campaign: Name
    recipe: Digest
    observation: Name
    zero_change: bool
    rack: Name
    pair: Name
    build: Digest
    allocation: Name
    key: Digest
    job: Name
    name: PointName
    order: Order
    engine: Name
    simulated: bool
    device: Name
    restart: Restart
    isl_tokens: int
    osl_tokens: int
    stream_interval: int
    started: Instant
    ended: Instant
    metrics: dict[Name, Finite]
    batch_tpot_ms: tuple[PositiveMs, ...]
    raw: Name
    raw_digest: Digest
    fingerprint: Digest
    calibration: Digest | None = None
    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        """True when every check passed; an invalid run drops its pair."""
        return all(check.ok for check in self.checks)

    @property
    def id(self) -> str:
        """How reports cite this record."""
        return f"{self.observation}/{self.name}"

    @model_validator(mode="after")
    def _arm_fits_order(self) -> Self:
        if ARMS_OF[self.order][self.name.run] != self.name.arm:
            raise ValueError(f"run {self.name.run} of a {self.order} block is not {self.name.arm}")
        if self.valid and not self.batch_tpot_ms:
            raise ValueError("a valid point has values")
        return self


class PointRef(Model):
    """A point by name and content."""

    point: Name
    digest: Digest


class Block(Record):
    """The closing record of a block: all its points of one attempt, and the machine before and after."""

    SCHEMA: ClassVar[str] = "k3bench.block/1"
    schema_: Literal["k3bench.block/1"] = Field(default="k3bench.block/1", alias="schema")
    campaign: Name
    observation: Name
    allocation: Name
    key: Digest
    job: Name
    block: int
    attempt: int
    order: Order
    started: Instant
    ended: Instant
    fingerprint_before: Digest
    fingerprint_after: Digest
    points: tuple[PointRef, ...]
    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        """False drops both pairs of the block."""
        return all(check.ok for check in self.checks)


class Allocation(Record):
    """The measure rule's output: which blocks of one observation were measured whole, and what was superseded."""

    SCHEMA: ClassVar[str] = "k3bench.allocation/1"
    schema_: Literal["k3bench.allocation/1"] = Field(default="k3bench.allocation/1", alias="schema")
    campaign: Name
    observation: Name
    allocation: Name
    key: Digest
    status: Literal["measured", "failed"]
    reason: str = ""
    planned_points: int
    accepted: tuple[PointRef, ...]
    superseded: tuple[PointRef, ...]
