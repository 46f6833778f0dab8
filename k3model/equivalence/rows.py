"""What a probe says: an outcome, and the row that names what was probed. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["fork", "greedy", "control"]
Status = Literal["pass", "fail", "not_run"]


@dataclass(frozen=True)
class Outcome:
    """How a probe ended. `measures` are further fields of the row."""

    status: Status
    reason: str = ""
    measures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One question, not yet asked. `run` may raise: the suite turns that into a row.

    `left_out` says why it is never asked here, however much time there is.
    """

    kind: Kind
    what: str
    policy: str
    batch: int | None
    run: Callable[[], Outcome]
    needs_cuda: bool = True
    left_out: str = ""


@dataclass(frozen=True)
class Row:
    """One probe with its answer. A control that was caught is a pass."""

    kind: Kind
    status: Status
    what: str
    preset: str
    batch: int | None
    policy: str
    reason: str = ""
    steps: int | None = None
    prompts: int | None = None
    tokens: int | None = None
    distinct_tokens: int | None = None
    first_difference: int | None = None
    top2_margin_min: float | None = None
    top2_margin_median: float | None = None


def passed(reason: str = "", **measures: Any) -> Outcome:
    """Same bits; or, for a control, caught."""
    return Outcome("pass", reason, measures)


def failed(reason: str, **measures: Any) -> Outcome:
    """Other bits, or a control that slipped through."""
    return Outcome("fail", reason, measures)


def not_run(reason: str) -> Outcome:
    """No answer, and why."""
    return Outcome("not_run", reason)


def caught(difference: str, **measures: Any) -> Outcome:
    """A control's outcome from the difference it made: none means that the probe is blind to this fault."""
    return passed(f"caught: {difference}", **measures) if difference else failed("not caught: same bits", **measures)
