"""What the ledger of submitted jobs holds: every attempt of a key, and what its worker left behind.

In: plain data. Out: validated records. Out of scope: locks, processes and Slurm (`submit/`).
A token is written here before its job is submitted; whatever carries another token is not ours to believe.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from k3bench.records.base import Model, Name, Record
from k3bench.records.measurement import Instant

Token = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
ExecutorName = Literal["here", "debug", "local", "slurm"]
#: `intended` is on disk before submission, `submitted` knows its job; all others have ended.
State = Literal["intended", "submitted", "finished", "failed", "lost", "cancelled", "refused", "voided"]
LIVE_STATES: frozenset[State] = frozenset({"intended", "submitted"})


class Process(Model):
    """One process, told apart from a later one of the same number by host, boot and start time."""

    host: str
    boot: str
    pid: Annotated[int, Field(ge=1)]
    start: str


class Attempt(Model):
    """One submission. `job` is Slurm's job id; `process` a local job's controller or, in process, the head itself."""

    number: Annotated[int, Field(ge=1)]
    token: Token
    executor: ExecutorName
    state: State
    name: Name
    time_limit_min: Annotated[int, Field(ge=1)]
    intended_at: Instant
    submitted_at: Instant | None = None
    ended_at: Instant | None = None
    job: Annotated[str, StringConstraints(pattern=r"^[0-9]+$")] | None = None
    process: Process | None = None
    reason: str = ""

    @property
    def live(self) -> bool:
        """True until the head has written down how it ended."""
        return self.state in LIVE_STATES


class Ledger(Record):
    """All attempts of one key, in order; only the last can be live."""

    SCHEMA: ClassVar[str] = "k3bench.ledger/1"
    schema_: Literal["k3bench.ledger/1"] = Field(default="k3bench.ledger/1", alias="schema")
    key: Name
    attempts: tuple[Attempt, ...] = ()

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        numbers = [attempt.number for attempt in self.attempts]
        if numbers != sorted(set(numbers)):
            raise ValueError("attempt numbers must rise")
        if any(attempt.live for attempt in self.attempts[:-1]):
            raise ValueError("only the last attempt can be live")
        return self

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    def with_attempt(self, attempt: Attempt) -> Ledger:
        """This ledger with the attempt of that number replaced or appended."""
        others = tuple(a for a in self.attempts if a.number != attempt.number)
        ordered = tuple(sorted((*others, attempt), key=lambda a: a.number))
        return Ledger(key=self.key, attempts=ordered)


class Request(Record):
    """What a worker shall call: an importable function and plain arguments."""

    SCHEMA: ClassVar[str] = "k3bench.request/1"
    schema_: Literal["k3bench.request/1"] = Field(default="k3bench.request/1", alias="schema")
    number: int
    token: Token
    function: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    arguments: dict[str, JsonValue]
    #: a local job sees the devices its head saw; submitit would hide them all
    visible_devices: str | None = None


class Started(Record):
    """The first thing a worker writes: who it is and, under Slurm, where (rack, nodes, restarts)."""

    SCHEMA: ClassVar[str] = "k3bench.started/1"
    schema_: Literal["k3bench.started/1"] = Field(default="k3bench.started/1", alias="schema")
    number: int
    token: Token
    process: Process
    started_at: Instant
    slurm: dict[str, str] = {}


class ErrorNote(Model):
    """An error that crosses from worker to head as data."""

    kind: str
    what: str
    where: str = ""
    fix: str = ""


class Ended(Record):
    """The last thing a worker writes. `over` ended without blame (time limit near); the next attempt does the rest."""

    SCHEMA: ClassVar[str] = "k3bench.ended/1"
    schema_: Literal["k3bench.ended/1"] = Field(default="k3bench.ended/1", alias="schema")
    number: int
    token: Token
    state: Literal["finished", "failed", "over"]
    ended_at: Instant
    result: dict[str, JsonValue] | None = None
    error: ErrorNote | None = None
