"""What verifying writes: one row per probe of sameness, controls included."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Model, Name, Record
from k3bench.records.measurement import Instant
from k3bench.records.recipe import Recipe


class EquivalenceRow(Model):
    """One probe. A control that was caught is a pass; a probe that could not run says why, and is never a pass."""

    kind: Literal["fork", "greedy", "control", "accuracy"]
    status: Literal["pass", "fail", "not_run"]
    what: str
    preset: str
    batch: int | None = None
    policy: str
    reason: str = ""
    steps: int | None = None
    prompts: int | None = None
    tokens: int | None = None
    distinct_tokens: int | None = None
    first_difference: int | None = None
    top2_margin_min: float | None = None
    top2_margin_median: float | None = None


class Equivalence(Record):
    """All probes of one observation's builds, with what decides whether bits can be equal."""

    SCHEMA: ClassVar[str] = "k3bench.equivalence/1"
    schema_: Literal["k3bench.equivalence/1"] = Field(default="k3bench.equivalence/1", alias="schema")
    campaign: Name
    observation: Name
    builds: dict[Name, Digest]
    device: str
    versions: dict[Name, str]
    settings: dict[Name, str | None]
    measured: Instant
    rows: tuple[EquivalenceRow, ...]


def nothing_to_probe(recipe: Recipe, observation: str, *, reason: str, measured: str) -> Equivalence:
    """What verifying writes for builds that could not be made."""
    row = EquivalenceRow(
        kind="fork",
        status="not_run",
        what="all probes",
        preset=recipe.engine.preset,
        policy=recipe.arms.after.policy,
        reason=reason,
    )
    return Equivalence(
        campaign=recipe.name,
        observation=observation,
        builds={},
        device="none",
        versions={},
        settings={},
        measured=measured,
        rows=(row,),
    )
