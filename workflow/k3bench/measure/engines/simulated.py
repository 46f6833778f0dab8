"""An engine with a known answer: effect, rack effect, drift, heavy tails and failures as the recipe's `truth` says.

For tests and for learning the tool. Every record it makes carries `simulated: true`. Nothing is decoded;
`wait_s_per_batch` only makes a campaign last long enough to be interrupted.
"""

from __future__ import annotations

import math
import time

import numpy as np

from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.metrics import BatchTimes
from k3bench.records.measurement import Check, Restart

#: Scatter of the batches of one run around the run's own level, and how much slower each further row makes a step.
BATCH_SD = 0.002
ROW_COST = 0.04


class Simulated:
    """Log-normal step times around a known truth; the same plan position always draws the same values."""

    device = "simulated"
    restart: Restart = "none"
    simulated = True

    def __init__(self, request: EngineRequest) -> None:
        truth = request.recipe.engine.truth
        assert truth is not None, "the recipe refuses engine simulated without truth"
        self.truth, self.recipe = truth, request.recipe
        self.zero_change = request.observation.zero_change
        rack = np.random.default_rng(_seed(request.recipe.seed, request.observation.id))
        self.rack_effect = float(rack.normal(0, truth.rack_effect_sd_pct / 100))
        self._draw: np.random.Generator = rack
        self._run_log = 0.0
        self._failed = False

    def start(self, context: RunContext) -> None:
        """Draw the run's own level and whether it fails."""
        truth, place = self.truth, f"{context.observation}/{context.block}/{context.run}/{context.level}"
        self._draw = np.random.default_rng(_seed(self.recipe.seed, place))
        noise = self._draw.standard_t(4) / math.sqrt(2) if truth.heavy_tails else self._draw.normal()
        position = 4 * context.block + context.run
        self._run_log = noise * truth.run_sd_pct / 100 + position * truth.drift_pct_per_run / 100
        if context.arm == "after" and not self.zero_change and not self.recipe.arms.equal:
            self._run_log += math.log1p(truth.effect_pct / 100) + self.rack_effect
        self._failed = bool(self._draw.random() < truth.fail_share)

    def batch(self, context: RunContext) -> BatchTimes:
        """OSL steps whose mean is the run's level with a little scatter between batches."""
        time.sleep(self.truth.wait_s_per_batch)
        base = self.truth.tpot_ms * (1 + ROW_COST * (context.level - 1)) * math.exp(self._run_log)
        step = round(1e6 * base * math.exp(self._draw.normal(0, BATCH_SD)))
        return BatchTimes(step_ns=(step,) * self.recipe.workload.osl_tokens)

    def checks(self, context: RunContext) -> tuple[Check, ...]:
        """The failure that `fail_share` planted."""
        return (
            Check(name="requests_succeeded", ok=not self._failed, detail="planted failure" if self._failed else ""),
        )

    def close(self) -> None:
        """Nothing is held."""


def _seed(seed: int, place: str) -> list[int]:
    return [seed, *place.encode()]


def open_engine(request: EngineRequest) -> Simulated:
    """Open the engine for one observation."""
    return Simulated(request)
