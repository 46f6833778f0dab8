"""The vectorised statistics against the libraries' own one-sample functions, on small samples of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.meta_analysis import combine_effects
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from k3bench.compare import crosscheck, health, noise
from k3bench.compare.agreement import agreement
from k3bench.compare.interval import per_observation
from k3bench.compare.meta import meta_line
from k3bench.compare.multiplicity import gatekept, holm
from k3bench.compare.next_rack import next_rack
from k3bench.compare.pairs import Pairs, log_of, pair_up
from k3bench.compare.pooled import pool
from k3bench.errors import StatisticsError


def _pairs(seed: int = 3, shape: tuple[int, ...] = (3, 8), mean: float = -0.02) -> Pairs:
    rng = np.random.default_rng(seed)
    order = np.where(rng.integers(0, 2, shape) == 1, 1.0, -1.0)
    order[..., :4] = [1, -1, -1, 1]
    return Pairs(rng.normal(mean, 0.015, shape), order)


def test_an_observation_has_the_one_sample_t_interval() -> None:
    """Mean, interval and p equal scipy's, with a dropped pair too."""
    pairs = _pairs()
    pairs.log_ratio[1, 2] = np.nan
    each = per_observation(pairs)
    low, high = each.plain.interval(0.95)
    for i, row in enumerate(pairs.log_ratio):
        test = stats.ttest_1samp(row[~np.isnan(row)], 0.0)
        interval = test.confidence_interval(0.95)
        assert each.plain.p()[i] == pytest.approx(test.pvalue, rel=1e-12)
        assert (low[i], high[i]) == pytest.approx((interval.low, interval.high), rel=1e-12)


def test_the_order_check_is_welch_and_the_adjustment_least_squares() -> None:
    """Order p, adjusted estimate, error and degrees of freedom equal scipy's and statsmodels'."""
    pairs = _pairs()
    pairs.log_ratio[2, 0] = np.nan
    each = per_observation(pairs)
    for i in range(3):
        ok = ~np.isnan(pairs.log_ratio[i])
        d, order = pairs.log_ratio[i][ok], pairs.order[i][ok]
        fit = OLS(d, np.column_stack([np.ones(len(d)), order])).fit()
        welch = stats.ttest_ind(d[order > 0], d[order < 0], equal_var=False)
        assert each.order_p[i] == pytest.approx(welch.pvalue, rel=1e-10)
        assert each.adjusted.mean[i] == pytest.approx(fit.params[0], rel=1e-10)
        assert math.sqrt(each.adjusted.variance[i]) == pytest.approx(fit.bse[0], rel=1e-10)
        assert each.adjusted.df[i] == fit.df_resid


def test_agreement_without_a_floor_is_the_analysis_of_variance() -> None:
    """For equal numbers of pairs and no floor, F is the classical one."""
    pairs = _pairs(seed=5)
    each = per_observation(pairs)
    seen = agreement(each.plain, each.n >= 4, 0.0)
    assert float(seen.f) == pytest.approx(stats.f_oneway(*pairs.log_ratio).statistic, rel=1e-10)


def test_equivalence_is_the_two_one_sided_tests() -> None:
    """One observation without floor gives statsmodels' TOST p."""
    pairs = _pairs(shape=(1, 8), mean=0.001)
    each = per_observation(pairs)
    pooled = pool(each.plain, each.n >= 4, 0.0)
    bound = math.log1p(0.02)
    p, lower, upper = DescrStatsW(pairs.log_ratio[0]).ttost_mean(-bound, bound)
    assert max(pooled.p_not_above(bound), pooled.p_not_below(-bound)) == pytest.approx(p, rel=1e-9)
    assert pooled.p_not_below(-bound) == pytest.approx(lower[1], rel=1e-9)
    assert pooled.p_not_above(bound) == pytest.approx(upper[1], rel=1e-9)


def test_holm_is_that_of_statsmodels_and_leaves_out_untested_levels() -> None:
    """Rows go through together; a level without a p is no member of the family."""
    p = np.array([[0.01, 0.04, 0.03, 0.5], [0.2, 0.001, 0.02, 0.02]])
    for row, adjusted in zip(p, holm(p), strict=True):
        assert adjusted == pytest.approx(multipletests(row, method="holm")[1])
    gap = holm(np.array([0.01, np.nan, 0.03]))
    assert gap[[0, 2]] == pytest.approx(multipletests([0.01, 0.03], method="holm")[1])
    assert np.isnan(gap[1])


def test_other_levels_wait_behind_the_primary_level() -> None:
    """The primary keeps its raw p; no other level has a smaller one."""
    p = np.array([0.04, 0.001, 0.01])
    assert gatekept(p, 0, np.array(0.04)) == pytest.approx([0.04, 0.04, 0.04])
    assert gatekept(p, 1, np.array(0.001)) == pytest.approx([0.04, 0.001, 0.02])
    assert gatekept(p, 1, np.array(1.0)) == pytest.approx([1.0, 0.001, 1.0])


def test_exact_tests_equal_scipys_enumeration() -> None:
    """Sign flips and signed ranks, row by row."""
    rows = _pairs(seed=9, shape=(4, 7), mean=-0.01).log_ratio
    for row, flip, rank in zip(rows, crosscheck.sign_flip_p(rows), crosscheck.wilcoxon_p(rows), strict=True):
        full = stats.permutation_test((row,), np.mean, permutation_type="samples", vectorized=True, n_resamples=10**6)
        assert flip == pytest.approx(full.pvalue)
        assert rank == pytest.approx(stats.wilcoxon(row, method="exact").pvalue)


def test_the_next_rack_line_is_statsmodels_paule_mandel() -> None:
    """Where the library has converged, ours is its modified Hartung-Knapp row."""
    means, variances = np.array([-0.038, -0.041, -0.062, -0.03]), np.array([2e-5, 1e-5, 4e-5, 3e-5])
    line = next_rack(means, variances, 0.003)
    fit = combine_effects(means, variances + 0.003**2, method_re="pm", use_t=True)
    assert line is not None
    assert line.mean == pytest.approx(float(fit.mean_effect_re), rel=1e-5)
    assert line.ci95 == pytest.approx(tuple(fit.conf_int()[1]), rel=1e-4)
    assert line.pi95[0] <= line.ci95[0]
    assert line.ci95[1] <= line.pi95[1]


def test_two_observations_have_no_next_rack_line() -> None:
    """With one degree of freedom nobody could use it."""
    assert next_rack(np.array([-0.04, -0.05]), np.array([1e-5, 1e-5]), 0.003) is None


def test_random_effects_never_have_a_negative_variance() -> None:
    """Q below its expectation gives tau2 = 0 by every method."""
    for method in ("DL", "PM", "REML"):
        assert meta_line(np.array([1.0, 1.01, 0.99]), np.array([0.2, 0.3, 0.25]), method, "adhoc").tau2 == 0.0


def test_the_range_of_three_cries_wolf_in_31_percent() -> None:
    """The exact rate, and the multiplier that would make it honest."""
    assert noise.range_exceeded_p(3) == pytest.approx(0.3098, abs=5e-5)
    assert noise.range_multiplier(3) == pytest.approx(3.19, abs=0.005)
    assert noise.range_exceeded_p(11) < 0.05 < noise.range_exceeded_p(10)


def test_fewer_than_three_zero_change_runs_make_no_band() -> None:
    """Two runs have a range and no band."""
    assert noise.range_band_pct([13.2, 13.3]) is None
    assert noise.range_band_pct([13.0, 13.13, 13.26]) == pytest.approx(2.0)


def test_a_trend_over_positions_is_kendalls() -> None:
    """Tau and exact p equal scipy's; absent runs are left out."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 13))
    rows[0, 4] = np.nan
    tau, p = health.trend(rows)
    for row, t, q in zip(rows, tau, p, strict=True):
        ok = ~np.isnan(row)
        expected = stats.kendalltau(np.arange(13)[ok], row[ok])
        assert (t, q) == pytest.approx((expected.statistic, expected.pvalue))


def test_two_states_are_told_from_noise() -> None:
    """Runs that sit on one of two clocks are far apart; honest noise, heavy tails included, hardly ever is."""
    rng = np.random.default_rng(4)
    after = np.zeros((1, 16), dtype=bool)
    states = 0.03 * (np.arange(16) % 3 == 0) + rng.normal(0, 0.002, (200, 1, 16))
    honest = rng.standard_t(4, (4000, 1, 16)) * 0.01
    assert (health.two_states(health.centred(states, after)) > health.TWO_STATE_D).mean() > 0.95
    assert (np.nan_to_num(health.two_states(health.centred(honest, after))) > health.TWO_STATE_D).mean() < 0.005


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_no_impossible_time_gets_through(bad: float) -> None:
    """The error names the value and where it is."""
    with pytest.raises(StatisticsError, match="positive finite"):
        log_of([13.0, bad, 13.1, 13.2], where="obs1")


def test_a_pair_of_one_arm_is_no_pair() -> None:
    """AABB is refused: its neighbours hold one arm twice."""
    with pytest.raises(StatisticsError, match="one arm twice"):
        pair_up(np.log([13.0, 13.1, 13.2, 13.3]), np.array([False, False, True, True]))
