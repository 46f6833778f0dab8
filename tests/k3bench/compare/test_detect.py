"""What it takes to find an effect: the table of `plan --detect`."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaigns import plan, points, recipe

from k3bench.cli import main
from k3bench.compare.campaign import noise_record
from k3bench.compare.detect import describe, detect, run_length
from k3bench.errors import StatisticsError
from k3bench.records.recipe import EngineSpec, Resources

SIMULATED = Path(__file__).parents[3] / "recipes/simulated.yaml"


def _on_gpus(**how: object):  # type: ignore[no-untyped-def]
    base = recipe(**how)  # type: ignore[arg-type]
    return base.model_copy(
        update={
            "engine": EngineSpec(name="k3model", preset="nano"),
            "resources": Resources(minutes=60, nodes=4, gpus_per_node=4),
        }
    )


def test_hours_come_from_the_recipe_and_the_start() -> None:
    """Blocks times four runs, each with its warm-up and load; engines in one process start once an allocation."""
    of = _on_gpus(levels=(1,))
    length = run_length(of, tpot_ms=100.0, start_s=600.0)
    work = of.workload
    assert length.load_s == pytest.approx(work.batches * work.osl_tokens * 0.1)
    assert length.shares_start
    found = detect(of, 2.0, length)
    for row in found.rows:
        assert row.blocks is not None
        assert row.node_h is not None
        assert row.gpu_h == pytest.approx(4 * row.node_h)
        one = (row.blocks * 600.0 + 4 * row.blocks * (length.warmup_s + length.load_s)) / 3600.0
        assert row.wall_h_side_by_side == pytest.approx(one)
        assert row.wall_h_one_rack == pytest.approx(row.observations * one)
        assert row.runs == 4 * row.blocks * row.observations


def test_the_cheapest_designs_reach_ninety_percent() -> None:
    """One of all designs, one of those that another rack replicates; both are in the table."""
    found = detect(_on_gpus(), 2.0, run_length(_on_gpus(), tpot_ms=13.2))
    assert found.cheapest in found.rows
    assert found.cheapest_replicated in found.rows
    assert found.cheapest_replicated is not None
    assert found.cheapest_replicated.observations >= 2
    assert "run sd 1.50 % (assumed)" in describe(found)


def test_measured_noise_replaces_the_assumed_one() -> None:
    """Run sd and floor of the zero-change observations, and the text says whose they are."""
    of = plan(zero_change=3)
    quiet = noise_record(of, points(of, lambda o, i, a, c: 2.5 + 0.002 * ((i * 7919) % 13 - 6) / 6))
    found = detect(recipe(), 2.0, run_length(recipe()), noise=quiet)
    assert found.run_sd_pct < 0.5
    assert "3 zero-change observations of made-up" in describe(found)


def test_an_unknown_run_length_is_asked_for() -> None:
    """Nothing is assumed about how long a token takes."""
    with pytest.raises(StatisticsError) as caught:
        run_length(_on_gpus())
    assert "--tpot-ms" in caught.value.fix


@pytest.mark.parametrize("effect", [-3.0, 0.0, 100.0])
def test_an_effect_that_is_none_is_refused(effect: float) -> None:
    """Less than zero, zero and a hundred percent are nothing to look for."""
    with pytest.raises(StatisticsError):
        detect(recipe(), effect, run_length(recipe()))


@pytest.mark.parametrize(
    "options", [["--detect=-3%"], ["--detect", "0%"], ["--detect=2%", "--tpot-ms=-13"], ["--detect=2", "--start-s=-1"]]
)
def test_what_cannot_be_is_refused_before_the_plan_is_printed(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No table of negative hours, and no plan above the refusal."""
    assert main(["plan", str(SIMULATED), *options]) != 0
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err


def test_an_effect_below_the_floor_has_no_design() -> None:
    """The table says so instead of naming thousands of blocks."""
    found = detect(recipe(), 0.2, run_length(recipe()))
    assert found.cheapest is None
    assert "none reaches it" in describe(found)
