"""Which MLflow is meant: a local sqlite file by default, or what MLFLOW_TRACKING_URI names. No MLflow imported here.

In: a folder and the environment. Out: `Target`. Out of scope: talking to it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import TrackingError

SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Target:
    """An MLflow store. `home` is where our lock lies, and our artifacts where the store has no server to keep them."""

    uri: str
    home: Path

    @property
    def database(self) -> Path | None:
        """The sqlite file, or None for anything else."""
        return Path(self.uri.removeprefix(SQLITE)) if self.uri.startswith(SQLITE) else None

    @property
    def lock(self) -> Path:
        """The single writer's lock: beside the database, or in our results folder for a server."""
        return Path(f"{self.database}.lock") if self.database else self.home / ".mlflow.lock"

    @property
    def shown(self) -> str:
        """The address without user and password."""
        return without_password(self.uri)

    def artifacts_of(self, experiment: str) -> str | None:
        """Where an experiment's artifacts go; None lets a server decide."""
        if self.uri.startswith(("http://", "https://")):
            return None
        return str((self.home / "mlartifacts" / experiment).absolute())

    def exists(self) -> bool:
        """False for a sqlite file that nobody has made yet."""
        return self.database is None or self.database.exists()

    def beside(self, suffix: str) -> Target:
        """The same store under another file name."""
        return Target(self.uri + suffix, self.home)

    def refuse_unusable(self) -> None:
        """Say at once what MLflow would say after minutes of retries."""
        if self.uri.startswith(("file:", "/", "./")) or "://" not in self.uri:
            raise TrackingError(
                "a folder is no MLflow store any more",
                where=self.shown,
                fix="use sqlite:////path/to/mlflow.db, an http:// server or postgresql://",
            )
        if self.database is not None:
            _refuse_unwritable(self.database)


def without_password(text: str) -> str:
    """An address, or a message that holds one, without user and password."""
    return re.sub(r"(?<=//)[^/\s]+@", "…@", text)


def _refuse_unwritable(database: Path) -> None:
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(database if database.exists() else database.parent, os.W_OK):
            raise PermissionError(13, "not writable")
        if database.exists() and database.stat().st_size:
            with sqlite3.connect(f"file:{database}?mode=rw", uri=True, timeout=20) as found:
                found.execute("PRAGMA schema_version").fetchone()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"the MLflow database cannot be used: {error}",
            where=str(database),
            fix="make it writable, or move it away: k3bench publish --rebuild makes a new one from the records",
        ) from None


def target_for(results: Path, *, environment: Mapping[str, str] | None = None) -> Target:
    """The store for reports under `results`: MLFLOW_TRACKING_URI if set, `results/mlflow.db` otherwise."""
    environment = os.environ if environment is None else environment
    uri = environment.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{(results / 'mlflow.db').absolute()}"
    return Target(uri, results)
