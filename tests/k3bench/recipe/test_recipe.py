"""The recipe: what is refused, where it points, what it proposes."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3bench.errors import RecipeError
from k3bench.recipe import load_recipe, parse_recipe

RECIPES = Path(__file__).parents[3] / "recipes"
GOOD = (RECIPES / "laptop.yaml").read_text()


def refuse(old: str, new: str) -> str:
    """The message for the laptop recipe with one passage changed."""
    assert old in GOOD
    with pytest.raises(RecipeError) as caught:
        parse_recipe(GOOD.replace(old, new), where="laptop.yaml", name="laptop")
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_of_the_project_loads(path: Path) -> None:
    """A recipe that ships is valid and named as its file."""
    assert load_recipe(path).name == path.stem


def test_an_unknown_key_names_its_line_the_nearest_key_and_all_valid_ones() -> None:
    """`levls` is answered with `levels`, on the right line."""
    message = refuse("levels: [1, 2, 4]", "levls: [1, 2, 4]")
    line = GOOD.splitlines().index("  levels: [1, 2, 4]") + 1
    assert f"laptop.yaml:{line}" in message
    assert "did you mean `levels`?" in message
    assert "osl_tokens" in message


@pytest.mark.parametrize("value", ["2 %", "'2'", "2pct"])
def test_a_number_with_a_unit_is_refused_because_the_unit_is_in_the_name(value: str) -> None:
    """Units are never guessed."""
    assert "write a bare number" in refuse("margin_pct: 2.0", f"margin_pct: {value}")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("primary_level: 1", "primary_level: 3", "valid choices: 1, 2, 4"),
        ("primary_level: 1\n", "", "`primary_level` is missing"),
        ("id: obs2", "id: obs1", "used twice"),
        ("id: obs2", "id: zero9", "kept for zero_change"),
        ("id: obs2", "id: ../up", "should match pattern"),
        ("blocks_per_allocation: 2", "blocks_per_allocation: 3", "use at most 2"),
        ("levels: [1, 2, 4]", "levels: [1, 2, 2]", "twice"),
        ("levels: [1, 2, 4]", "levels: []", "at least 1 item"),
        ("osl_tokens: 33", "osl_tokens: 1", "greater than or equal to 2"),
        ("batches: 5", "batches: 4", "4 batches of 33 tokens are too little"),
        ("preset: nano", "preset: nanu", "valid presets: "),
        ("policy: after", "policy: afterwards", "valid policies: "),
        ("name: k3model", "name: k3modell", "k3model"),
        ("name: k3model", "name: simulatd", "did you mean `simulated`? choose from: k3model, simulated, openai"),
        ("name: laptop\n", "", "the file's name without .yaml"),
        ("osl_tokens: 33", "osl_tokens: 1.0e+20", "write a whole number"),
        ("seed: 17103", "builds: {new: {kind: wheel, wheel: x}}", "unknown key `builds.new.wheel`"),
        ("seed: 17103", "builds: {new: {kind: wheel, wheel: x}}", "valid keys here: kind, path"),
        ("seed: 17103", "builds: {new: {kind: wheel}}", "`builds.new.path` is missing"),
        ("seed: 17103", "builds: {new: {kind: gti, ref: x}}", "did you mean `git`? choose from: git, wheel, image, in"),
        ("seed: 17103", "builds: {new: {ref: x}}", "`builds.new.kind` is missing"),
        ("seed: 17103", "builds: {new: {kind: image, image: a/b}}", "named by digest: repo/name@sha256:<64 hex>"),
        ("schema: k3bench.recipe/1", "schema: k3bench.recipe/9", "write `schema: k3bench.recipe/1`"),
        ("name: laptop", "name: desktop", "rename the file"),
        ("zero_change: 2", "zero_change: 2\nzero_change: 3", "given twice"),
        ("seed: 17103", "seed: [", "not valid YAML"),
        ("seed: 17103", "looks: 9", "a look needs at least one new block"),
        ("isl_tokens: 32", "isl_tokens: 2000000", "positions"),
        ("seed: 17103", "seed: 17103\ntrace: {tool: nsys, level: 3}", "valid choices: 1, 2, 4"),
        ("seed: 17103", "seed: &a 1\nlooks: *a", "no YAML anchors"),
        ("blocks: 2\n", "blocks: 2000000000\n", "points are more than anyone will measure"),
        ("name: laptop", "name: recorded", "is not a campaign's to take"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_anything_runs(old: str, new: str, expected: str) -> None:
    """Every refusal says what is wrong or how to mend it."""
    message = refuse(old, new)
    assert expected in message
    assert "where: laptop.yaml" in message


def test_a_simulated_engine_needs_its_truth_and_no_other_engine_may_have_one() -> None:
    """A known answer is only known where it was planted."""
    assert "needs `truth:`" in refuse("name: k3model", "name: simulated")
    assert "belongs to engine simulated" in refuse("device: auto", "device: auto\n  truth: {effect_pct: -4.0}")


def test_a_file_that_is_not_text_is_refused_by_name(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 give one clear error."""
    path = tmp_path / "laptop.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot read the recipe"):
        load_recipe(path)
