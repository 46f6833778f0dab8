"""Parameter counts and bytes per step."""

from __future__ import annotations

import pytest
import torch

from k3model.config import preset
from k3model.decode import build
from k3model.footprint import bytes_by_op, bytes_per_step, count_parameters, expert_bytes
from k3model.hits import seeded_hits


def test_full_counts_the_published_parameters() -> None:
    """2.7795e12 in all within 0.01 %, 1.042e11 active per token."""
    counted = count_parameters(preset("full"))
    assert abs(counted.total / 2.7795e12 - 1) < 1e-4
    assert f"{counted.active:.3e}" == "1.042e+11"


def test_rank_93_moves_the_known_bytes() -> None:
    """At 8192 tokens of context and batch 1, 2, 4, 8."""
    config = preset("rank-93")
    moved = [sum(bytes_per_step(config, batch, 8192).values()) / 1e9 for batch in (1, 2, 4, 8)]
    assert [round(gigabytes, 1) for gigabytes in moved] == [19.6, 21.3, 24.2, 28.4]


def test_an_mxfp4_expert_takes_its_checkpoint_size() -> None:
    """4.25 bits a weight."""
    assert round(expert_bytes(preset("rank-93")) / 1e6, 2) == 17.55


def test_the_seeded_table_lies_near_its_expectation() -> None:
    """Distinct hits over 92 layers are within two of what uniform routing to 8 experts gives."""
    config = preset("rank-93")
    for batch in (1, 2, 4, 8):
        distinct = sum(len(set(seeded_hits(config, layer, batch))) for layer in range(1, 93))
        assert abs(distinct - 92 * 8 * (1 - (7 / 8) ** batch)) < 2


def test_weight_bytes_are_those_of_the_built_model() -> None:
    """The formula agrees with the storage that a rank really holds, part by part."""
    config = preset("rank-93")
    model = build(config, device="meta", dtype=torch.bfloat16, max_batch=1, context=1)
    held = {"kda": 0, "mla": 0, "moe": 0}
    for layer in model.layers:
        for part in model.weights.parts.values():
            if f".layers.{layer.index}." not in part.name or ".experts." in part.name:
                continue
            kind = layer.self_attn.family.lower() if ".self_attn." in part.name else "moe"
            if ".self_attn." in part.name or ".block_sparse_moe." in part.name:
                held[kind] += part.parameters * part.base.element_size()
    moved = bytes_per_step(config, 1, 0)
    for name, size in held.items():
        assert abs(moved[name] / size - 1) < 3e-3, name


@pytest.mark.parametrize(
    ("name", "options"), [("rank-93", {}), ("rank-93", {"variant": "A", "kda_weights": "fp8"}), ("nano", {})]
)
def test_ops_share_out_the_bytes_of_a_step(name: str, options: dict[str, str]) -> None:
    """Op by op and by kind of weight, the same total: nothing is counted twice or left out."""
    config = preset(name, **options)
    by_op = sum(row.layers * row.bytes_each for row in bytes_by_op(config, 4, 8192))
    assert by_op == pytest.approx(sum(bytes_per_step(config, 4, 8192).values()), abs=len(bytes_by_op(config, 4, 8192)))
