"""The plan: drawn once by a seed, whole blocks, zero-change observations first and last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from k3bench.plan import describe, make_plan, points_planned, spec_digests
from k3bench.recipe import load_recipe
from k3bench.records.measurement import ARMS_OF
from k3bench.records.plan import Plan
from k3bench.records.recipe import Recipe

RECIPES = Path(__file__).parents[3] / "recipes"
SIMULATED = load_recipe(RECIPES / "simulated.yaml")


def with_(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with top-level keys changed, validated again."""
    return Recipe.model_validate(recipe.model_dump(by_alias=True) | changes)


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_another_order() -> None:
    """The schedule is a value."""
    assert make_plan(SIMULATED).to_bytes() == make_plan(SIMULATED).to_bytes()
    other = make_plan(with_(SIMULATED, seed=2))
    orders = [[b.order for o in p.observations for b in o.blocks] for p in (make_plan(SIMULATED), other)]
    assert orders[0] != orders[1]


def test_zero_change_observations_stand_first_and_last() -> None:
    """Drift over a campaign shows between them."""
    flags = [o.zero_change for o in make_plan(SIMULATED).observations]
    assert flags == [True, True, False, False, False, True]


def test_a_recipe_with_equal_arms_is_a_zero_change_campaign() -> None:
    """Every observation of it is a zero-change observation."""
    arms = SIMULATED.arms.model_dump()
    plan = make_plan(with_(SIMULATED, arms={"before": arms["before"], "after": arms["before"]}))
    assert all(o.zero_change for o in plan.observations)


@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 9), per=st.integers(1, 9), zero=st.integers(0, 5))
def test_every_block_is_whole_in_exactly_one_allocation(seed: int, blocks: int, per: int, zero: int) -> None:
    """Whatever the numbers, allocations partition the blocks, and a block holds each arm twice at every level."""
    recipe = with_(SIMULATED, seed=seed, blocks=blocks, blocks_per_allocation=min(per, blocks), zero_change=zero)
    plan = make_plan(recipe)
    assert len(plan.observations) == 3 + zero
    for observation in plan.observations:
        assert [n for a in observation.allocations for n in a.blocks] == list(range(blocks))
        for block in observation.blocks:
            points = block.points(attempt=1)
            assert sorted(block.levels) == sorted(recipe.workload.levels)
            assert len({str(p) for p in points}) == 4 * len(block.levels)
            assert [p.arm for p in points[:: len(block.levels)]] == list(ARMS_OF[block.order])
    assert points_planned(plan) == len(plan.observations) * blocks * 4 * 4


def test_a_plan_survives_its_file() -> None:
    """What is read back is what was drawn."""
    plan = make_plan(SIMULATED)
    assert Plan.from_bytes(plan.to_bytes()) == plan


def test_only_what_is_measured_decides_whether_an_allocation_is_due_again() -> None:
    """A new margin measures nothing again; a new OSL measures everything again."""
    digests = spec_digests(make_plan(SIMULATED))
    assert spec_digests(make_plan(with_(SIMULATED, margin_pct=1.0, title="another"))) == digests
    longer = SIMULATED.workload.model_dump() | {"osl_tokens": 65}
    assert not set(spec_digests(make_plan(with_(SIMULATED, workload=longer))).values()) & set(digests.values())


def test_the_table_names_every_allocation_and_says_simulated() -> None:
    """One row per allocation, in submission order."""
    text = describe(make_plan(SIMULATED))
    assert "(simulated)" in text.splitlines()[0]
    assert sum("alloc" in line and ("d157" in line or "d127" in line) for line in text.splitlines()) == 12


def test_planning_needs_no_torch() -> None:
    """A plan is made on a head node without torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from k3bench.recipe import load_recipe; from k3bench.plan import make_plan; from pathlib import Path\n"
        f"make_plan(load_recipe(Path({str(RECIPES / 'laptop.yaml')!r})))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
