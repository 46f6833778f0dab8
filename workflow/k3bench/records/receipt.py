"""What syncing to MLflow writes: where the runs of a campaign are, and by which links to look at them.

Kept apart from the report, which must not change when a database does.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Model, Name, Record


class SyncedRun(Model):
    """One MLflow run and the content it holds."""

    key: str
    name: str
    role: Literal["measurement", "verdict"]
    run_id: str
    digest: Digest


class Link(Model):
    """A page of the MLflow UI, as the part of the address after the server."""

    name: Name
    fragment: str


class Receipt(Record):
    """`k3bench.receipt/1`: the last complete sync of a campaign."""

    SCHEMA: ClassVar[str] = "k3bench.receipt/1"
    schema_: Literal["k3bench.receipt/1"] = Field(default="k3bench.receipt/1", alias="schema")
    campaign: Name
    comparison: Digest
    #: without user and password
    tracking_uri: str
    mlflow_version: str
    experiments: dict[str, str]
    runs: tuple[SyncedRun, ...]
    superseded: int
    links: tuple[Link, ...]
    warnings: tuple[str, ...] = ()
