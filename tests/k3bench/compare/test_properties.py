"""What must hold for any campaign: symmetry, scale, order, and intervals that contain one another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from campaigns import plan, points
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3bench.compare.campaign import campaign
from k3bench.compare.next_rack import next_rack
from k3bench.compare.outliers import judge_sweep
from k3bench.compare.pairs import Pairs, log_of, pair_up
from k3bench.compare.verdict import DISAGREEMENT, IMPROVEMENT, REGRESSION, WORDS, Rule
from k3bench.errors import StatisticsError

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
QUICK = settings(max_examples=200, deadline=None)

effects = st.floats(-0.08, 0.08)
spreads = st.floats(0.001, 0.03)
seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(2, 6))


def _runs(seed: int, shape: tuple[int, int, int], effect: float, sd: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Log values and arms shaped (level, observation, 4 x blocks)."""
    levels, k, blocks = shape
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 2, (k, blocks, 1)).astype(bool)
    after = np.concatenate([first, ~first, ~first, first], axis=2).reshape(k, 4 * blocks)
    racks = rng.normal(0, 0.01, (levels, k, 1)) + np.where(after, effect + rng.normal(0, 0.004, (k, 1)), 0.0)
    return math.log(13.0) + racks + rng.normal(0, sd, (levels, k, 4 * blocks)), after


@QUICK
@given(seeds, shapes, effects, spreads)
def test_swapping_the_arms_flips_the_sign_and_the_words(
    seed: int, shape: tuple[int, int, int], effect: float, sd: float
) -> None:
    """An improvement becomes a regression of the same size; every other word stays."""
    y, after = _runs(seed, shape, effect, sd)
    rule = Rule(primary=0)
    there, back = (judge_sweep(pair_up(y, arms), rule).verdict for arms in (after, ~after))
    flipped = {IMPROVEMENT: REGRESSION, REGRESSION: IMPROVEMENT}
    assert [flipped.get(int(c), int(c)) for c in there.code] == back.code.tolist()
    np.testing.assert_allclose(there.pooled.mean, -back.pooled.mean, atol=1e-12)
    np.testing.assert_allclose(there.pooled.se, back.pooled.se, rtol=1e-9)


@QUICK
@given(seeds, shapes, effects, spreads, st.floats(1e-3, 1e3))
def test_scaling_all_times_changes_nothing(
    seed: int, shape: tuple[int, int, int], effect: float, sd: float, scale: float
) -> None:
    """Milliseconds or microseconds: the same verdict and the same numbers."""
    y, after = _runs(seed, shape, effect, sd)
    a, b = (judge_sweep(pair_up(log_of(x), after), Rule()).verdict for x in (np.exp(y), scale * np.exp(y)))
    assert [WORDS[c] for c in a.code] == [WORDS[c] for c in b.code]
    np.testing.assert_allclose(a.pooled.mean, b.pooled.mean, atol=1e-9)
    np.testing.assert_allclose(a.pooled.df, b.pooled.df, rtol=1e-6)


@QUICK
@given(seeds, shapes, effects, spreads)
def test_permuting_the_observations_changes_nothing(
    seed: int, shape: tuple[int, int, int], effect: float, sd: float
) -> None:
    """Which rack came first has no say."""
    y, after = _runs(seed, shape, effect, sd)
    turn = np.random.default_rng(seed + 1).permutation(shape[1])
    pairs = pair_up(y, after)
    a = judge_sweep(pairs, Rule()).verdict
    b = judge_sweep(
        Pairs(pairs.log_ratio[:, turn], np.broadcast_to(pairs.order, pairs.log_ratio.shape)[:, turn]), Rule()
    )
    assert a.code.tolist() == b.verdict.code.tolist()
    np.testing.assert_allclose(a.pooled.mean, b.verdict.pooled.mean, atol=1e-12)
    np.testing.assert_allclose(a.agreement.p, b.verdict.agreement.p, rtol=1e-6)


@QUICK
@given(
    st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(1e-7, 1e-3)), min_size=3, max_size=8),
    st.floats(-0.1, 0.1),
    st.floats(1e-7, 1e-3),
)
def test_the_prediction_interval_never_lies_inside_the_confidence_interval(
    seen: list[tuple[float, float]], mean: float, variance: float
) -> None:
    """Nor after an observation is added that says the same as the mean."""
    for rows in (seen, [*seen, (mean, variance)]):
        line = next_rack(np.array([m for m, _ in rows]), np.array([v for _, v in rows]), 0.003)
        assert line is not None
        assert line.pi95[0] <= line.ci95[0] + 1e-12
        assert line.ci95[1] <= line.pi95[1] + 1e-12


@QUICK
@given(seeds, shapes, effects, spreads)
def test_the_bounds_stand_in_their_order(seed: int, shape: tuple[int, int, int], effect: float, sd: float) -> None:
    """The 90 percent interval lies inside the 95 percent one; a called level excludes 0; nothing is NaN."""
    y, after = _runs(seed, shape, effect, sd)
    v = judge_sweep(pair_up(y, after), Rule()).verdict
    (low95, high95), (low90, high90) = v.pooled.interval(0.95), v.pooled.interval(0.90)
    assert np.isfinite([low95, high95, low90, high90]).all()
    assert ((low95 <= low90) & (low90 <= high90) & (high90 <= high95)).all()
    called = np.isin(v.code, (IMPROVEMENT, REGRESSION))
    assert ((low95 > 0) | (high95 < 0))[called].all()
    assert (v.p <= v.p_deciding + 1e-12).all()
    if shape[1] == 1:
        assert not (v.code == DISAGREEMENT).any()


@SLOW
@given(seeds, st.floats(-0.05, 0.05), spreads, st.integers(0, 15))
def test_whole_records_turn_with_the_order_of_their_points(seed: int, effect: float, sd: float, turn: int) -> None:
    """Points may come from disk in any order: the same record, to the byte."""
    of = plan(observations=2, blocks=2, levels=(1, 4))
    rng = np.random.default_rng(seed)
    rows = points(of, lambda o, i, a, c: math.log(13.0) + effect * (a == "after") + float(rng.normal(0, sd)))
    turned = [*rows[turn:], *rows[:turn]]
    assert campaign(of, rows).to_bytes() == campaign(of, turned).to_bytes()


@QUICK
@given(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -3.0]), st.integers(0, 15))
def test_no_impossible_number_gets_through(bad: float, at: int) -> None:
    """One bad value among sixteen is a named error, wherever it is."""
    values = np.full(16, 13.0)
    values[at] = bad
    with pytest.raises(StatisticsError):
        log_of(values, where="obs1")
