"""A campaign goes in, a comparison comes out: every planned observation counted, nothing chosen by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from campaigns import noisy, plan, points

from k3bench.compare.campaign import campaign, noise_record
from k3bench.errors import StatisticsError
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Check, Measurement


def test_a_real_improvement_is_called_with_its_size_and_agreement() -> None:
    """Four percent on three racks at one percent run noise."""
    of = plan()
    seen = campaign(of, points(of, noisy(-0.04)))
    assert seen.headline.word == "improvement"
    assert seen.headline.concurrency == 1
    assert seen.headline.delta_pct == pytest.approx(-4.0, abs=1.2)
    assert seen.headline.agreement == "agree"
    assert seen.headline.n_observations == seen.headline.n_planned == 3
    assert seen.headline.regresses_nothing is True
    assert seen.simulated
    assert Comparison.from_bytes(seen.to_bytes()) == seen


def test_a_missing_observation_is_a_row_and_the_verdict_says_incomplete() -> None:
    """Leaving one out cannot be done quietly."""
    of = plan()
    seen = campaign(of, [p for p in points(of, noisy(-0.04)) if p.observation != "obs2"])
    row = next(o for o in seen.observations if o.observation == "obs2")
    assert (row.status, row.n_runs_valid, row.levels) == ("missing", 0, ())
    assert row.reason
    assert all("incomplete" in level.flags for level in seen.levels)
    assert (seen.headline.n_observations, seen.headline.n_planned) == (2, 3)
    assert any(o.kind == "observation" and "obs2" in o.what for o in seen.outstanding)


def test_nothing_measured_at_all_is_a_verdict_too() -> None:
    """No points: the primary metric cannot even be named, and the error says so."""
    of = plan()
    seen = campaign(of, [])
    assert seen.headline.word == "insufficient_replication"
    assert {o.status for o in seen.observations} == {"missing"}


def test_one_block_an_observation_is_insufficient_replication() -> None:
    """Two pairs show nothing, however large their ratio."""
    of = plan(blocks=1)
    seen = campaign(of, points(of, noisy(-0.3)))
    assert {level.word for level in seen.levels} == {"insufficient_replication"}
    assert seen.headline.delta_pct is None
    assert all(level.set_aside for o in seen.observations for level in o.levels)


def test_an_invalid_run_drops_its_pair_and_no_other() -> None:
    """The reason and the arm are kept; the verdict carries the flag."""
    of = plan()
    seen = campaign(of, points(of, noisy(-0.04), failing=lambda o, i, a: (o, i) == ("obs2", 5)))
    row = next(o for o in seen.observations if o.observation == "obs2")
    assert {(d.pair, d.reason) for d in row.dropped_pairs} == {(3, "requests_succeeded: planted failure")}
    assert [level.n_pairs for level in row.levels] == [7, 7, 7, 7]
    assert row.n_runs_valid == 15
    assert all("dropped_runs" in level.flags and "incomplete" not in level.flags for level in seen.levels)
    lost = [r for r in seen.runs if not r.valid]
    assert [(r.position, r.value) for r in lost] == [(6, None)] * 4


def test_an_arm_that_fails_more_often_is_reported_first() -> None:
    """Three failures on one side and none on the other."""
    of = plan()
    pairs = {("obs1", "after"), ("obs2", "after"), ("obs3", "after")}
    seen = campaign(of, points(of, noisy(), failing=lambda o, i, a: i < 2 and (o, a) in pairs))
    assert seen.health.n_invalid_after == 3
    assert seen.health.findings[0].kind == "missing_not_at_random"
    assert all("missing_not_at_random" in level.flags for level in seen.levels)


def test_a_void_block_drops_both_its_pairs() -> None:
    """A block whose closing record failed a check counts for nothing, and says why."""
    from campaigns import DIGEST, STAMP

    from k3bench.records.measurement import Block

    of = plan()
    void = Block(
        campaign="made-up", observation="obs1", allocation="alloc1", key=DIGEST, job="job1", block=2, attempt=1,
        order=of.observation("obs1").blocks[2].order, started=STAMP, ended=STAMP, fingerprint_before=DIGEST,
        fingerprint_after=DIGEST, points=(), checks=(Check(name="same_clocks", ok=False, detail="1.9 GHz"),),
    )  # fmt: skip
    row = campaign(of, points(of, noisy()), blocks=[void]).observations[0]
    assert {d.pair for d in row.dropped_pairs} == {5, 6}
    assert {d.reason for d in row.dropped_pairs} == {"block 2: same_clocks: 1.9 GHz"}


def test_one_rack_out_of_line_headlines_no_number() -> None:
    """Two racks gain four percent, the third loses two."""
    of = plan()
    gains = {"obs1": noisy(-0.04, 0.006, 1), "obs2": noisy(-0.04, 0.006, 2), "obs3": noisy(0.02, 0.006, 3)}
    seen = campaign(of, points(of, lambda o, i, a, c: gains[o](o, i, a, c)))
    assert seen.headline.word == "disagreement"
    assert seen.headline.delta_pct is None
    assert seen.headline.agreement == "disagree"
    assert any(o.kind == "replication" for o in seen.outstanding)


def test_zero_change_observations_never_enter_agreement() -> None:
    """Wild zero-change observations leave the real ones' numbers alone; only floor and bands move."""
    quiet, of = plan(), plan(zero_change=4)
    model = noisy(-0.04)
    shared: dict[tuple[str, int, str, int], float] = {}

    def remembered(o: str, i: int, a: str, c: int) -> float:
        return shared.setdefault((o, i, a, c), model(o, i, a, c))

    with_zero = campaign(of, points(of, remembered))
    alone = campaign(quiet, points(quiet, remembered))
    for a, b in zip(with_zero.levels, alone.levels, strict=True):
        assert a.estimate_log == pytest.approx(b.estimate_log)
        assert a.n_observations == b.n_observations == 3
        assert a.agreement.spread_pct == pytest.approx(b.agreement.spread_pct)
    assert with_zero.zero_change is not None
    assert with_zero.zero_change.n_observations == 4
    assert alone.zero_change is None


def test_a_zero_change_that_is_called_is_flagged_and_blocked_when_absurd() -> None:
    """Zero-change observations that differ by four percent cannot calibrate anything."""
    of = plan(zero_change=3)
    model = noisy(0.0, 0.004)
    seen = campaign(of, points(of, lambda o, i, a, c: model(o, i, a, c) - 0.04 * (a == "after" and "zero" in o)))
    assert seen.zero_change is not None
    assert seen.zero_change.called
    assert seen.zero_change.blocked
    assert seen.floor.assumed
    assert all("zero_change_called" in level.flags for level in seen.levels)
    assert all(level.range_band is None for level in seen.levels)


def test_a_calibrated_floor_is_named_and_picked_up_by_the_same_setting_only() -> None:
    """The record of one campaign serves the next of that engine, hardware and workload, and no other."""
    of = plan(zero_change=4)
    record = noise_record(of, points(of, noisy(seed=8)))
    assert record is not None
    assert record.n_observations == 4
    later = plan()
    seen = campaign(later, points(later, noisy()), noise=[record])
    assert (seen.floor.assumed, seen.floor.n_zero_change_observations, seen.floor.source) == (False, 4, "made-up")
    assert seen.levels[0].range_band == record.levels[0].range_band
    assert seen.levels[0].delta_band is not None
    assert seen.levels[0].delta_band.n_observations == 4
    assert [i.record_id for i in seen.inputs if i.kind == "noise"] == ["made-up"]
    other = record.model_copy(update={"setting": record.setting.model_copy(update={"osl_tokens": 9})})
    unmoved = campaign(later, points(later, noisy()), noise=[other])
    assert unmoved.floor.assumed
    assert unmoved.to_bytes() == campaign(later, points(later, noisy())).to_bytes()


def test_restated_metrics_are_found_from_the_data_and_are_no_witnesses() -> None:
    """ITL and tps/user are TPOT again; TTFT is another matter."""
    of = plan()
    seen = campaign(of, points(of, noisy(-0.04)))
    assert seen.witnesses is not None
    at_primary = {r.metric: r for r in seen.witnesses.restatements if r.concurrency == 1}
    assert at_primary["itl_median_ms"].factor == pytest.approx(10.0)
    assert at_primary["tps_user"].kind == "exact_product"
    assert all(r.declared for r in at_primary.values())
    assert "ttft_median_ms" not in at_primary
    assert seen.witnesses.contradicted == ()
    assert {m.metric: m.restates for m in seen.other_metrics}["itl_median_ms"] == "tpot_median_ms"
    assert not {"itl_median_ms", "tps_user"} & set(seen.witnesses.corroborating)
    assert seen.witnesses.n_replications == 2


def _with(rows: list[Measurement], **metrics: Callable[[float], float]) -> list[Measurement]:
    """The same runs with metrics made from their TPOT."""
    made = [{name: of(row.metrics["tpot_median_ms"]) for name, of in metrics.items()} for row in rows]
    return [r.model_copy(update={"metrics": {**r.metrics, **m}}) for r, m in zip(rows, made, strict=True)]


ITL = "itl = stream_interval x tpot"


def test_an_itl_that_goes_its_own_way_is_no_restatement() -> None:
    """Ten times TPOT on average, the same change, noise of the same size but of its own: the data contradict it."""
    of, rng = plan(), np.random.default_rng(3)
    rows = points(of, noisy(-0.30, sd=0.01))
    arm = {"before": 1.0, "after": 0.7}
    metrics = [{**r.metrics} for r in rows]
    for row, found in zip(rows, metrics, strict=True):
        own = 10 * (13 + row.name.level) * (1.0 if row.zero_change else arm[row.name.arm])
        found["itl_median_ms"], found["itl_mean_ms"] = (own * math.exp(rng.normal(0.0, 0.01)) for _ in range(2))
    planted = [r.model_copy(update={"metrics": m}) for r, m in zip(rows, metrics, strict=True)]
    seen = campaign(of, planted).witnesses
    assert seen is not None
    assert not {"itl_median_ms", "itl_mean_ms"} & {r.metric for r in seen.restatements}
    assert seen.contradicted == (ITL,)
    assert not {"itl_median_ms", "itl_mean_ms"} & set(seen.corroborating)


def test_on_a_busy_machine_the_mean_gap_shows_what_the_median_gap_hides() -> None:
    """Stalls scatter the median gap about ten TPOT: no restatement by itself, and still none that speaks twice."""
    of, rng = plan(), np.random.default_rng(4)
    rows = points(of, noisy(-0.04))
    stalled = _with(rows, itl_mean_ms=lambda t: 10 * t, itl_median_ms=lambda t: 9.5 * t * math.exp(rng.normal(0, 0.01)))
    seen = campaign(of, stalled).witnesses
    assert seen is not None
    exact = {r.concurrency: r for r in seen.restatements if r.metric == "itl_mean_ms"}
    assert set(exact) == set(of.recipe.workload.levels)
    assert all(r.kind == "exact_ratio" and r.factor == pytest.approx(10.0) and r.declared for r in exact.values())
    assert "itl_median_ms" not in {r.metric for r in seen.restatements}
    assert seen.contradicted == ()
    assert "itl_median_ms" not in seen.corroborating


def test_chunks_of_another_size_than_the_recipe_says_contradict_it() -> None:
    """A server that streams every token although ten were asked for: ITL restates TPOT, but not ten times."""
    of = plan()
    seen = campaign(of, _with(points(of, noisy()), itl_mean_ms=lambda t: t)).witnesses
    assert seen is not None
    assert {r.factor for r in seen.restatements if r.metric == "itl_mean_ms"} == {1.0}
    assert seen.contradicted == (ITL,)


def test_levels_that_move_together_count_as_one() -> None:
    """All levels of a run share its luck here: no level corroborates another."""
    of = plan()
    model, luck = noisy(-0.04, 0.0), np.random.default_rng(2).normal(0, 0.01, (9, 99))
    seen = campaign(of, points(of, lambda o, i, a, c: model(o, i, a, c) + luck[int(o[-1]), i]))
    assert seen.witnesses is not None
    assert all(r.counts_as_one for r in seen.witnesses.level_correlations)
    assert seen.witnesses.n_corroborations == 0


def test_more_is_better_turns_the_word_and_not_the_number() -> None:
    """Throughput per user of a faster decode: a gain in percent, an improvement in words."""
    of = plan()
    seen = campaign(of, points(of, noisy(-0.04)))
    tps = next(m for m in seen.other_metrics if m.metric == "tps_user")
    assert tps.levels[0].word == "improvement"
    assert tps.levels[0].delta_pct == pytest.approx(4.0, abs=1.3)
    assert tps.levels[0].ci95 is not None
    assert 0 < tps.levels[0].ci95.low_pct < tps.levels[0].ci95.high_pct


def test_a_primary_metric_of_which_more_is_better_is_judged_in_its_own_direction() -> None:
    """Headline, observations and zero-change observations all show the metric's own sign."""
    of = plan(metric="tps_user", zero_change=3)
    model = noisy(-0.04, 0.006)
    seen = campaign(of, points(of, lambda o, i, a, c: model(o, i, a, c) - 0.02 * (a == "after" and "zero" in o)))
    assert (seen.better, seen.headline.word) == ("higher", "improvement")
    assert seen.headline.delta_pct == pytest.approx(4.2, abs=0.8)
    assert seen.levels[0].worst_case_pct is not None
    assert 0 < seen.levels[0].worst_case_pct < seen.headline.delta_pct
    real = [o for o in seen.observations if not o.zero_change]
    assert all(level.delta_pct and level.delta_pct > 0 for o in real for level in o.levels)
    assert seen.zero_change is not None
    assert {level.word for level in seen.zero_change.levels} == {"improvement"}
    assert all(level.delta_pct and level.delta_pct > 0 for level in seen.zero_change.levels)


def test_the_side_that_moved_is_named() -> None:
    """A third observation whose before was slow: the extra gain is not the change's."""
    of = plan()
    model = noisy(-0.04, 0.001)
    seen = campaign(of, points(of, lambda o, i, a, c: model(o, i, a, c) + 0.022 * ((o, a) == ("obs3", "before"))))
    third = seen.observations[2].levels[0]
    assert third.moved == "before"
    assert third.before_moved_pct == pytest.approx(2.2, abs=0.2)
    assert abs(third.after_moved_pct or math.nan) < 0.2


def test_an_inconclusive_level_says_how_many_blocks_would_settle_it() -> None:
    """Noise of three percent in two blocks decides nothing."""
    of = plan(blocks=2)
    seen = campaign(of, points(of, noisy(-0.01, 0.03, seed=5)))
    open_levels = [level for level in seen.levels if level.word == "inconclusive"]
    assert open_levels
    assert all(level.blocks_to_settle and level.blocks_to_settle > 2 for level in open_levels)
    assert all(level.half_width_pct for level in open_levels)


def test_other_levels_are_called_only_behind_the_primary_level() -> None:
    """Large gains elsewhere stay inconclusive while the declared level shows none."""
    of = plan()
    flat, gain = noisy(0.0, 0.012, seed=12), noisy(-0.02, 0.012, seed=13)
    seen = campaign(of, points(of, lambda o, i, a, c: (flat if c == 1 else gain)(o, i, a, c)))
    assert seen.headline.word in ("within_noise", "inconclusive")
    others = [level for level in seen.levels if not level.is_primary]
    assert all(level.p is not None and level.p < 0.05 for level in others)
    assert {level.word for level in others} == {"inconclusive"}
    assert {level.inconclusive_because for level in others} == {"primary_not_called"}
    assert {level.blocks_to_settle for level in others} == {None}
    assert [(open_.what, open_.fix) for open_ in seen.outstanding if open_.kind == "time"] == [
        (
            "inconclusive at concurrency 2, 4, 8: significant alone, but the primary level was not called",
            "a recipe with a primary_level that is one of them, named before it is measured",
        )
    ]


def test_behind_an_open_primary_level_that_one_is_settled_first() -> None:
    """More blocks may call the primary level, and with it the others: no new recipe is needed yet."""
    of = plan()
    wide, gain = noisy(-0.02, 0.04, seed=16), noisy(-0.04, 0.006, seed=13)
    seen = campaign(of, points(of, lambda o, i, a, c: (wide if c == 1 else gain)(o, i, a, c)))
    primary = next(level for level in seen.levels if level.is_primary)
    assert (primary.word, bool(primary.blocks_to_settle)) == ("inconclusive", True)
    [cure] = [open_.fix for open_ in seen.outstanding if "primary level was not called" in open_.what]
    assert cure.startswith(f"settle the primary level first (blocks: {primary.blocks_to_settle}), or a recipe with")


def test_behind_a_primary_level_that_was_called_more_blocks_can_settle_a_level() -> None:
    """Holm over the other levels is what fails, and that is a matter of how much was measured."""
    of = plan()
    gain, weak, flat = noisy(-0.04, 0.006, seed=1), noisy(-0.007, 0.012, seed=8), noisy(0.0, 0.006, seed=3)
    seen = campaign(of, points(of, lambda o, i, a, c: {1: gain, 2: weak}.get(c, flat)(o, i, a, c)))
    level = next(r for r in seen.levels if r.concurrency == 2)
    assert seen.headline.word == "improvement"
    assert (level.word, level.inconclusive_because) == ("inconclusive", "significant_alone")
    assert level.p is not None
    assert level.p_holm is not None
    assert 0.02 < level.p < 0.05 < level.p_holm
    assert level.blocks_to_settle is not None
    assert level.blocks_to_settle > of.recipe.blocks
    assert [(open_.what, open_.fix) for open_ in seen.outstanding if open_.kind == "time"] == [
        ("inconclusive at concurrency 2: significant alone, not over the sweep", f"blocks: {level.blocks_to_settle}")
    ]


def test_declared_looks_cost_significance() -> None:
    """The same data under four declared looks need p below 0.0125."""
    model, shared = noisy(-0.009, 0.012, seed=22), {}

    def remembered(o: str, i: int, a: str, c: int) -> float:
        return shared.setdefault((o, i, a, c), model(o, i, a, c))  # type: ignore[no-any-return]

    words = {}
    for looks in (1, 4):
        of = plan(levels=(1,), looks=looks)
        seen = campaign(of, points(of, remembered)).levels[0]
        words[looks] = (seen.word, seen.p)
    assert 0.0125 < (words[1][1] or 0) < 0.05
    assert words[1][0] == "improvement"
    assert words[4][0] != "improvement"


def test_recipes_with_equal_arms_are_judged_and_calibrate() -> None:
    """A zero-change campaign is a campaign whose observations are all zero-change."""
    of = plan(equal_arms=True)
    seen = campaign(of, points(of, noisy(0.0)))
    assert seen.headline.word in ("within_noise", "inconclusive")
    assert seen.zero_change is not None
    assert noise_record(of, points(of, noisy(0.0))) is not None


def test_points_that_the_plan_does_not_know_are_refused() -> None:
    """Another plan's points, and a point that comes twice, name themselves."""
    of, larger = plan(observations=2), plan(observations=3)
    with pytest.raises(StatisticsError, match="did not draw"):
        campaign(of, points(larger, noisy()))
    twice = points(of, noisy())
    with pytest.raises(StatisticsError, match="two accepted measurements"):
        campaign(of, [*twice, twice[0]])


def test_a_zero_change_point_cannot_pass_for_a_real_one() -> None:
    """A record that says zero change where the plan says change is not this plan's."""
    of = plan()
    rows = points(of, noisy())
    rows[0] = rows[0].model_copy(update={"zero_change": True})
    with pytest.raises(StatisticsError, match="did not draw"):
        campaign(of, rows)


def test_a_run_without_the_deciding_metric_drops_its_pair() -> None:
    """A valid record that holds no TPOT is said to, not skipped."""
    of = plan(levels=(1,))
    rows = points(of, noisy())
    rows[0] = rows[0].model_copy(update={"metrics": {"ttft_median_ms": 30.0}})
    row = campaign(of, rows).observations[0]
    assert [d.reason for d in row.dropped_pairs] == [
        "no tpot_median_ms: the record holds no value of the metric that decides"
    ]
    assert row.levels[0].n_pairs == 7


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_an_impossible_value_names_its_record(bad: float) -> None:
    """Zero and negative times never reach a logarithm."""
    of = plan()
    rows = points(of, noisy())
    rows[5] = rows[5].model_copy(update={"metrics": {**rows[5].metrics, "tpot_median_ms": bad}})
    with pytest.raises(StatisticsError) as caught:
        campaign(of, rows)
    assert rows[5].id in caught.value.where


def test_an_odd_pair_is_flagged_and_never_dropped() -> None:
    """The verdict counts it, and the one without it stands beside."""
    of = plan()
    model = noisy(-0.04, 0.005)
    seen = campaign(of, points(of, lambda o, i, a, c: model(o, i, a, c) + 0.1 * ((o, i, c) == ("obs1", 3, 2))))
    level = next(r for r in seen.levels if r.concurrency == 2)
    assert "outliers" in level.flags
    assert level.n_pairs == 24
    assert level.without_outliers is not None
    assert level.without_outliers.n_pairs < 24
    assert any(f.kind == "outlier" and f.observation == "obs1" for f in seen.health.findings)


def test_what_zero_change_observations_showed_stands_beside_the_floor() -> None:
    """Quiet ones leave the least floor, and their own smaller spread is kept."""
    of = plan(zero_change=4)
    seen = campaign(of, points(of, noisy(-0.04, 0.004, seed=8)))
    assert seen.zero_change is not None
    assert seen.zero_change.tau_log is not None
    assert 0 <= seen.zero_change.tau_log < seen.floor.tau0_log == 0.003
