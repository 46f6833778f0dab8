"""Published figures: recomputed, never called measured, and never given a verdict they do not carry."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from k3bench.compare.reported import reported_comparison
from k3bench.records.reported import Reported, ReportedDelta, ReportedObservation, ReportedRun, Source

RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "pr-17103" / "reported.json"


@pytest.fixture
def seed() -> Reported:
    """The pull request's own figures, as recorded in this repository."""
    return Reported.from_bytes(RECORDED.read_bytes())


def test_every_published_delta_reproduces(seed: Reported) -> None:
    """-6.02, +1.17, -4.06, -4.22 and -4.025 follow from the printed levels; -3.720 has none to follow from."""
    figures = reported_comparison(seed).reported
    assert figures is not None
    shown = {(f.observation, f.concurrency): f for f in figures.figures}
    deltas = {key: round(f.recomputed_delta_pct, 2) for key, f in shown.items() if f.recomputed_delta_pct is not None}
    assert deltas == {("obs2", 1): -4.02, ("obs3", 1): -6.02, ("obs3", 2): 1.17, ("obs3", 4): -4.06, ("obs3", 8): -4.22}
    assert all(f.reproduces for f in shown.values() if f.recomputed_delta_pct is not None)
    assert shown[("obs1", 1)].reproduces is None


def test_the_ratio_gap_is_that_of_two_observations_and_all_three_spread_more(seed: Reported) -> None:
    """0.317 % for the pair, inside what rounding of its inputs allows; 2.45 % over all three."""
    figures = reported_comparison(seed).reported
    assert figures is not None
    assert figures.published_ratio_gap_between == ("obs1", "obs2")
    assert figures.ratio_gap_pct == pytest.approx(0.317, abs=5e-4)
    assert figures.ratio_gap_range_pct == pytest.approx((0.3153, 0.3179), abs=5e-5)
    assert figures.ratio_gap_range_pct[0] <= 0.316 <= figures.ratio_gap_range_pct[1]
    assert figures.spread_pct == pytest.approx(2.45, abs=5e-3)
    assert figures.spread_over == ("obs1", "obs2", "obs3")


def test_there_is_no_verdict_and_the_t_line_says_what_can_be_said(seed: Reported) -> None:
    """Insufficient replication at every level; the line over observations is labelled, not headlined."""
    seen = reported_comparison(seed)
    assert seen.kind == "reported"
    assert {level.word for level in seen.levels} == {"insufficient_replication"}
    assert seen.headline.delta_pct is None
    assert "environment_unverified" in seen.headline.flags
    assert seen.reported is not None
    assert seen.reported.t_delta_pct == pytest.approx(-4.59, abs=5e-3)
    assert seen.reported.t_p == pytest.approx(0.0251, abs=1e-4)


def test_the_third_observation_gains_on_a_slow_before(seed: Reported) -> None:
    """Before +2.24 %, after +0.11 %: the extra two points are not the change's."""
    third = next(o for o in reported_comparison(seed).observations if o.observation == "obs3").levels[0]
    assert third.before_moved_pct == pytest.approx(2.24, abs=5e-3)
    assert third.after_moved_pct == pytest.approx(0.11, abs=5e-3)
    assert third.moved == "before"


def test_what_is_not_shown_is_listed_and_null(seed: Reported) -> None:
    """Levels of the first observation, rack and build of the third, raw runs, busy times, two equality rows."""
    seen = reported_comparison(seed)
    assert seen.reported is not None
    listed = " ".join(seen.reported.not_shown)
    for part in ("obs1 at concurrency 1", "rack and build of obs3", "zero-change runs", "KDA busy time of after"):
        assert part in listed
    open_kinds = {(o.kind, o.what.partition(":")[0]) for o in seen.outstanding}
    assert ("equality", "fork_3_absorb_rope") in open_kinds
    assert ("equality", "model_greedy_tokens") in open_kinds
    assert seen.observations[0].levels[0].before_median is None
    assert seen.mechanism is not None
    assert seen.mechanism.explained_ms_per_step == pytest.approx(0.492, abs=1e-3)
    assert seen.mechanism.ceiling_ms_per_step == pytest.approx(0.9845)


def _imported(pairs: int, effect: float, *, observations: int = 2, metric: str = "tpot_median_ms") -> Reported:
    """Figures of another tool that shows its runs in declared order."""
    rng, runs = np.random.default_rng(3), []
    for o in range(observations):
        for pair in range(pairs):
            arms = ("before", "after") if pair % 2 else ("after", "before")
            for offset, arm in enumerate(arms):
                value = math.exp(math.log(12.0) + effect * (arm == "after") + rng.normal(0, 0.004))
                runs.append(
                    ReportedRun(
                        observation=f"obs{o + 1}",
                        arm=arm,
                        level=4,
                        pair=pair,
                        position=2 * pair + offset + 1,
                        metrics={metric: value},
                    )
                )
    return Reported(
        name="imported",
        title="Imported",
        model=None,
        hardware=None,
        parallelism=None,
        isl_tokens=None,
        osl_tokens=None,
        stream_interval=None,
        primary_level=4,
        runs=tuple(runs),
        source=Source(title="tool", url=None, state=None, note="", digest="0" * 64),
        observations=tuple(
            ReportedObservation(id=f"obs{o + 1}", job=None, rack=None, build=None) for o in range(observations)
        ),
    )


def test_runs_in_declared_pairs_carry_a_verdict_that_stays_unverified() -> None:
    """Six pairs an observation suffice, and the environment is still nobody's word."""
    seen = reported_comparison(_imported(6, -0.04))
    assert seen.headline.word == "improvement"
    assert seen.headline.n_observations == 2
    assert "environment_unverified" in seen.headline.flags
    assert len(seen.runs) == 24


def test_three_pairs_carry_none() -> None:
    """Below four pairs in every observation nothing is judged."""
    assert reported_comparison(_imported(3, -0.04)).headline.word == "insufficient_replication"


def test_runs_without_declared_order_are_no_pairs() -> None:
    """Figures whose order nobody declared cannot be paired after the fact."""
    shown = _imported(6, -0.04)
    loose = tuple(r.model_copy(update={"pair": None, "position": None}) for r in shown.runs)
    seen = reported_comparison(shown.model_copy(update={"runs": loose}))
    assert seen.headline.word == "insufficient_replication"


def test_a_wrong_published_delta_does_not_reproduce(seed: Reported) -> None:
    """One digit off is seen."""
    rows = tuple(
        ReportedDelta(**{**row.model_dump(), "delta_pct": -4.07}) if row.level == 4 else row for row in seed.deltas
    )
    seen = reported_comparison(seed.model_copy(update={"deltas": rows}))
    assert seen.reported is not None
    assert [f.reproduces for f in seen.reported.figures if f.concurrency == 4] == [False]
