"""The numbers of K3, its presets and options, and what is refused before any work."""

from __future__ import annotations

import subprocess
import sys

import pytest

from k3model.config import OPTIONS, PRESETS, as_plain, preset
from k3model.errors import ConfigError


def test_full_has_the_layers_of_k3() -> None:
    """93 layers, 69 KDA and 24 MLA, every fourth MLA and the last one too, eight snapshots."""
    full = preset("full")
    assert (full.layers, len(full.kda_layers), len(full.mla_layers)) == (93, 69, 24)
    assert full.mla_layers[:2] == (3, 7)
    assert full.mla_layers[-2:] == (91, 92)
    assert full.snapshots == 8
    assert [full.is_dense(layer) for layer in (0, 1)] == [True, False]


def test_rank_shapes_of_variant_b_split_shared_experts_and_keep_six_heads() -> None:
    """The newest layout on one of sixteen ranks."""
    rank = preset("rank-93")
    assert (rank.kda_heads_local, rank.kda_width_local, rank.mla_heads_local) == (6, 768, 6)
    assert (rank.shared_intermediate_local, rank.mlp_intermediate_local, rank.vocab_local) == (384, 2112, 10240)
    assert (rank.kda_bfa_rows, rank.conv_columns, rank.kda_projection_is_fused) == (136, 3, False)


def test_rank_shapes_of_variant_a_pad_heads_and_replicate_shared_experts() -> None:
    """The layout at the time of the pull request."""
    rank = preset("rank-93", variant="A")
    assert (rank.mla_heads_local, rank.shared_intermediate_local, rank.conv_columns) == (8, 6144, 4)
    assert rank.kda_projection_is_fused
    assert 4 * rank.kda_width_local + rank.kda_bfa_rows == 3206


def test_fp8_weights_split_the_projection_of_variant_a() -> None:
    """Only QKVG is read as FP8, so [f_a|b] cannot stay fused to it."""
    assert not preset("rank-93", variant="A", kda_weights="fp8").kda_projection_is_fused


def test_rank_presets_say_that_their_peers_are_absent() -> None:
    """A record can tell a rank alone from a whole model."""
    assert {name: preset(name).collectives for name in PRESETS} == {
        "full": "none_needed",
        "nano": "none_needed",
        "nano-res": "none_needed",
        "small": "none_needed",
        "small-16": "none_needed",
        "layer-kda": "absent",
        "layer-mla": "absent",
        "block-12": "absent",
        "rank-93": "absent",
        "share-12": "none_needed",
        "share-93": "none_needed",
    }


@pytest.mark.parametrize("variant", ["A", "B"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_a_rank_of_shares_has_the_shapes_of_one_rank_of_sixteen(ranks: int, variant: str) -> None:
    """So many sixteenths of K3 on as many ranks, with peers that answer."""
    of_shares, alone = preset("share-12", tp_size=ranks, variant=variant), preset("block-12", variant=variant)
    for name in (
        "kda_heads_local", "mla_heads_local", "kda_bfa_rows", "mlp_intermediate_local", "vocab_local",
        "shared_intermediate_local", "local_experts", "hit_groups",
    ):  # fmt: skip
        assert getattr(of_shares, name) == getattr(alone, name), name
    assert of_shares.collectives == ("none_needed" if ranks == 1 else "distributed")


def test_one_rank_can_hold_all_shares() -> None:
    """What the ranks are compared with; a number of shares that ranks cannot divide is refused."""
    whole = preset("share-12", shares=8)
    assert (whole.tp_size, whole.kda_heads, whole.local_experts, whole.hit_groups) == (1, 48, 32, 8)
    with pytest.raises(ConfigError, match="3 shares cannot be cut into 2 ranks"):
        preset("share-12", tp_size=2, shares=3)


def test_more_ranks_ask_for_real_collectives() -> None:
    """Splitting a whole model means peers that answer."""
    assert preset("nano", tp_size=2).collectives == "distributed"


def test_unknown_preset_lists_the_valid_ones() -> None:
    """The error is the list one needs."""
    with pytest.raises(ConfigError, match=r"unknown preset 'big'[\s\S]*nano-res"):
        preset("big")


def test_unknown_option_lists_the_valid_ones() -> None:
    """A misspelt option never passes silently."""
    with pytest.raises(ConfigError, match=r"unknown option 'kv'[\s\S]*kv_cache"):
        preset("nano", kv="fp8")
    assert "hidden" not in OPTIONS


def test_wrong_choice_lists_the_choices() -> None:
    """Options with few values name them."""
    with pytest.raises(ConfigError, match=r"variant = 'C'[\s\S]*A, B"):
        preset("nano", variant="C")


@pytest.mark.parametrize(("option", "value"), [("layers", "4"), ("layers", 0), ("layers", True), ("tp_size", 2.0)])
def test_a_number_that_is_none_is_refused(option: str, value: object) -> None:
    """Words, truth values and fractions are not counts."""
    with pytest.raises(ConfigError, match=option):
        preset("nano", **{option: value})


@pytest.mark.parametrize("tp_size", [3, 8, 0])
def test_heads_that_do_not_divide_by_the_ranks_are_one_error(tp_size: int) -> None:
    """Four heads on three, eight or no ranks: refused, naming the field."""
    with pytest.raises(ConfigError, match="does not divide by tp_size"):
        preset("nano", tp_size=tp_size)


def test_a_router_without_all_experts_is_refused() -> None:
    """Picks that nobody holds would silently count as nothing."""
    with pytest.raises(ConfigError, match="cannot serve a router"):
        preset("nano", held_experts=4)


def test_plain_form_is_json_ready() -> None:
    """Records take the config as lists, numbers and words."""
    assert as_plain(preset("nano"))["mla_layers"] == [3]


def test_configs_and_policies_import_without_torch() -> None:
    """A plan is read on machines that have no torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import k3model.config, k3model.policy, k3model.footprint as f\n"
        "print(sum(f.bytes_per_step(k3model.config.preset('rank-93'), 1, 8192).values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
