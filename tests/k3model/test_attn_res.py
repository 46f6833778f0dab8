"""Attention residuals: which snapshots every mix sees, and what a mix is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from k3model.attn_res import Residual
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import build
from k3model.kernels import TWINS
from k3model.kernels.norm import mix
from k3model.policy import policy


@pytest.fixture
def seen() -> tuple[int, ...]:
    """Candidates per mix of one step through 93 layers, narrow ones."""
    config = replace(preset("nano"), layers=93, mla_layers=preset("full").mla_layers, attn_res_block=12)
    model = build(config, max_batch=1, context=64)
    Decode(model, policy("serial"), 1).step()
    return model.mixes


def test_93_layers_mix_186_times(seen: tuple[int, ...]) -> None:
    """92 before attention (layer 0 has nothing to mix), 93 before the feed-forward, one at the end."""
    assert len(seen) == 186


def test_each_mix_sees_the_snapshots_taken_so_far_and_the_running_sum(seen: tuple[int, ...]) -> None:
    """ceil(i/12) snapshots on the attention side, floor(i/12)+1 on the other, 8 at the end; plus P."""
    expected = []
    for layer in range(93):
        if layer:
            expected.append(-(-layer // 12) + 1)
        expected.append(layer // 12 + 1 + 1)
    assert seen == (*expected, 8 + 1)


def test_a_mix_weighs_unnormalised_candidates_by_normalised_scores() -> None:
    """probs = softmax_j <V_j / rms(V_j), n p>; result = sum probs_j V_j."""
    draw = torch.Generator().manual_seed(1)
    candidates = torch.randn(3, 2, 16, generator=draw, dtype=torch.float64)
    direction = torch.randn(16, generator=draw, dtype=torch.float64)
    for row in range(2):
        keys = [v * (v.square().mean() + 1e-5) ** -0.5 for v in candidates[:, row]]
        probs = torch.softmax(torch.stack([key @ direction for key in keys]), dim=0)
        expected = sum(p * v for p, v in zip(probs, candidates[:, row], strict=True))
        torch.testing.assert_close(mix(candidates, direction, 1e-5)[row], expected)


def test_a_snapshot_empties_the_running_sum() -> None:
    """The first output after a snapshot replaces P, later ones add; snapshot 0 is the embedding."""
    bank = torch.full((3, 1, 4), 9.0)
    residual, norm = Residual(bank, torch.ones(1, 4), torch.zeros(2, 4), 2, 0.0, TWINS), torch.ones(4)
    assert torch.equal(residual.attention_input(0, norm), torch.ones(1, 4))
    residual.add(torch.full((1, 4), 2.0))
    residual.mix(norm)
    residual.add((torch.full((1, 4), 3.0), torch.full((1, 4), 4.0)))
    residual.mix(norm)
    assert bank[:2, 0, 0].tolist() == [1.0, 9.0]
