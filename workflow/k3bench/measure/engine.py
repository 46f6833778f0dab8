"""The engine protocol: what a thing must do to be measured, and how a recipe's engine is opened.

Out of scope: the schedule (`allocation.py`) and what makes a point valid (`k3bench.validity`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from k3bench.errors import MeasureError
from k3bench.metrics import BatchTimes
from k3bench.records.fingerprint import RankPlace
from k3bench.records.measurement import Arm, Check, Restart
from k3bench.records.plan import Build, PlannedObservation
from k3bench.records.recipe import Recipe


@dataclass(frozen=True)
class RunContext:
    """Which run of the plan a batch belongs to: real engines ignore it, the simulated one draws from it."""

    observation: str
    block: int
    run: int
    arm: Arm
    level: int


class Engine(Protocol):
    """Both arms of one observation, runnable in turn."""

    device: str
    restart: Restart
    simulated: bool

    def start(self, context: RunContext) -> None:
        """Begin a run at a level: restart, or reset to the stored cache snapshot."""

    def batch(self, context: RunContext) -> BatchTimes:
        """Decode one closed-loop batch of `level` rows, OSL tokens each, from the stored snapshot."""

    def checks(self, context: RunContext) -> tuple[Check, ...]:
        """What the engine itself knows about the validity of the run at hand."""

    def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True)
class PointData:
    """What one point came to. Without usable requests `metrics` and `tpot_ms` are empty and a check says why."""

    metrics: dict[str, float]
    tpot_ms: tuple[float, ...]
    raw: tuple[Mapping[str, Any], ...]
    checks: tuple[Check, ...]
    calibration: str | None = None


@runtime_checkable
class ServedEngine(Protocol):
    """An engine behind a server: it runs a whole point (warm-up and load) and hands back requests, not batches."""

    def point(self, context: RunContext) -> PointData:
        """Load the served arm at a level. A failure becomes a failed check, never an exception."""


@runtime_checkable
class RankedEngine(Protocol):
    """An engine over several processes: where each of them runs belongs to the machine."""

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Every rank's place."""


@dataclass(frozen=True)
class EngineRequest:
    """What an engine is opened with: `builds[arm]` is the build a run of that arm uses."""

    recipe: Recipe
    observation: PlannedObservation
    builds: Mapping[Arm, Build]
    folder: Path


def open_engine(request: EngineRequest) -> Engine:
    """Import the recipe's engine and open it. Raises `MeasureError` when it cannot run on this machine."""
    name = request.recipe.engine.name
    kind = "k3model_ranked" if request.recipe.engine.ranks > 1 else name.replace("-", "_")
    try:
        module = importlib.import_module(f"k3bench.measure.engines.{kind}")
    except ModuleNotFoundError as error:
        raise MeasureError(
            f"engine {name} needs the package {error.name!r}, which is not installed",
            where=request.observation.id,
            fix="./k3 setup installs it; K3_TORCH chooses the torch wheel",
        ) from None
    engine: Engine = module.open_engine(request)
    return engine
