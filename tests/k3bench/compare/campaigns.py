"""Campaigns for tests: a recipe's own plan, filled with measurement records whose times the test chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from k3bench.plan import make_plan
from k3bench.records.measurement import ARMS_OF, Check, Measurement, PointName
from k3bench.records.plan import Plan
from k3bench.records.recipe import Recipe

DIGEST = "0" * 64
STAMP = "2026-11-29T10:00:00Z"


def recipe(
    *,
    observations: int = 3,
    blocks: int = 4,
    levels: Sequence[int] = (1, 2, 4, 8),
    zero_change: int = 0,
    primary: int | None = None,
    looks: int = 1,
    equal_arms: bool = False,
    metric: str = "tpot_median_ms",
) -> Recipe:
    """A simulated recipe; tests choose the numbers themselves, so its truth is never drawn from."""
    return Recipe.model_validate(
        {
            "schema": "k3bench.recipe/1",
            "name": "made-up",
            "title": "Made-up campaign",
            "engine": {"name": "simulated", "truth": {"tpot_ms": 10.0}},
            "arms": {"before": {"policy": "before"}, "after": {"policy": "before" if equal_arms else "after"}},
            "workload": {"isl_tokens": 8, "osl_tokens": 8, "levels": tuple(levels), "stream_interval": 10},
            "observations": tuple({"id": f"obs{i + 1}", "rack": f"rack{i + 1}"} for i in range(observations)),
            "blocks": blocks,
            "zero_change": zero_change,
            "primary_level": primary or levels[0],
            "primary_metric": metric,
            "looks": looks,
            "seed": 7,
        }
    )


def plan(**how: object) -> Plan:
    """The plan of such a recipe."""
    return make_plan(recipe(**how))  # type: ignore[arg-type]


#: observation, position of the run in it, arm, level -> log of TPOT
Model = Callable[[str, int, str, int], float]


def points(of: Plan, log_tpot: Model, *, failing: Callable[[str, int, str], bool] | None = None) -> list[Measurement]:
    """One measurement for every planned point; `failing` says which runs fail a validity check."""
    rows = []
    for observation in of.observations:
        for j, block in enumerate(observation.blocks):
            for run, arm in enumerate(ARMS_OF[block.order]):
                position = 4 * j + run
                bad = failing is not None and failing(observation.id, position, arm)
                for level in block.levels:
                    tpot = math.exp(log_tpot(observation.id, position, arm, level))
                    name = PointName(block=block.number, attempt=1, run=run, arm=arm, level=level)
                    rows.append(_point(of, observation.id, observation.zero_change, name, block.order, tpot, bad))
    return rows


def _point(of: Plan, observation: str, zero: bool, name: PointName, order: str, tpot: float, bad: bool) -> Measurement:
    return Measurement(
        campaign=of.recipe.name,
        recipe=DIGEST,
        observation=observation,
        zero_change=zero,
        rack="rack",
        pair="p1",
        build=DIGEST,
        allocation="alloc1",
        key=DIGEST,
        job="job1",
        name=name,
        order=order,  # type: ignore[arg-type]
        engine="simulated",
        simulated=True,
        device="simulated",
        restart="none",
        isl_tokens=8,
        osl_tokens=8,
        stream_interval=10,
        started=STAMP,
        ended=STAMP,
        metrics={
            "tpot_median_ms": tpot,
            "ttft_median_ms": 30.0 + 3.0 * math.sin(7919.0 * tpot),
            "itl_median_ms": 10.0 * tpot,
            "tps_user": 1000.0 / tpot,
        },
        batch_tpot_ms=(tpot,) * 5,
        raw="raw.jsonl.gz",
        raw_digest=DIGEST,
        fingerprint=DIGEST,
        checks=(Check(name="requests_succeeded", ok=not bad, detail="planted failure" if bad else ""),),
    )


def noisy(effect: float = 0.0, sd: float = 0.01, seed: int = 1, base: float = 13.0) -> Model:
    """Normal run noise around a true effect; zero-change observations have none."""
    rng = np.random.default_rng(seed)

    def log_tpot(observation: str, position: int, arm: str, level: int) -> float:
        change = math.log1p(effect) if arm == "after" and not observation.startswith("zero") else 0.0
        return math.log(base + level) + change + float(rng.normal(0.0, sd))

    return log_tpot
