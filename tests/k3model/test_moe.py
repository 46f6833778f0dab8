"""Router, experts and activation against loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.config import preset
from k3model.decode import K3, build
from k3model.hits import seeded_hits
from k3model.moe import MoE
from k3model.mxfp4 import deinterleave, dequantise, interleave, quantise
from k3model.pointwise import situ
from k3model.policy import policy
from k3model.streams import Forks

SERIAL = Forks(policy("serial"), None)


def a_moe(model: K3, layer: int = 1) -> MoE:
    """The MoE of a layer."""
    moe = model.layers[layer].mlp
    assert isinstance(moe, MoE)
    return moe


def test_situ_is_bounded_and_close_to_swish_for_small_inputs() -> None:
    """4 tanh(a/4) sigmoid(a) * 25 tanh(u/25), never past 100, and a sigmoid(a) u near zero."""
    gate, up = torch.tensor([[0.01, 1e6]]), torch.tensor([[0.02, 1e6]])
    out = situ(torch.cat([gate, up], dim=-1), 4.0, 25.0)
    assert out[0, 0].item() == pytest.approx(0.01 * 0.50250 * 0.02, rel=1e-4)
    assert out[0, 1].item() == pytest.approx(100.0)


def test_the_bias_selects_and_does_not_weigh(nano: Callable[..., K3]) -> None:
    """A large bias pulls an expert in; its weight still comes from its own score, and weights sum to one."""
    moe = a_moe(nano())
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    moe.bias.zero_()
    moe.bias[6] = 10.0
    picks, mix = moe.pick(moe.score(x))
    scores = (x @ moe.gate.T).sigmoid()
    assert (picks == 6).any(dim=1).all()
    torch.testing.assert_close(mix.sum(-1), torch.ones(5))
    picked = scores.gather(1, picks)
    torch.testing.assert_close(mix, picked / picked.sum(-1, keepdim=True))


@pytest.mark.parametrize("weights", ["bf16", "mxfp4"])
def test_all_ways_to_visit_experts_equal_a_loop(nano: Callable[..., K3], weights: str) -> None:
    """Gathered for a step, grouped for a prefill: both are sum over picks of w_e W2 situ(W1 z, W3 z)."""
    moe = a_moe(nano(expert_weights=weights))
    bank, z = moe.experts, torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    picks, mix = moe.pick(moe.score(torch.randn(6, 64, generator=torch.Generator().manual_seed(3))))
    expected = torch.zeros_like(z)
    for row in range(6):
        for pick, weight in zip(picks[row].tolist(), mix[row], strict=True):
            w13, w2 = bank.matrices(pick)
            expected[row] += weight * (w2 @ situ(w13 @ z[row], 4.0, 25.0))
    torch.testing.assert_close(bank.gathered(z, picks, mix), expected)
    torch.testing.assert_close(bank.grouped(z, picks, mix), expected)


def test_step_and_prefill_agree(nano: Callable[..., K3]) -> None:
    """The whole block, many rows at once or few."""
    moe, x = a_moe(nano()), torch.randn(9, 64, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(moe.step(x, SERIAL), moe.prefill(x, SERIAL))


def test_seeded_hits_are_one_held_expert_a_row_and_do_not_depend_on_the_batch() -> None:
    """Bytes per step are known before the step, and row 0 hits the same expert alone or in company."""
    config = preset("rank-93")
    alone, company = seeded_hits(config, 5, 1), seeded_hits(config, 5, 8)
    assert company[:1] == alone
    assert all(0 <= hit < 8 for hit in company)
    assert seeded_hits(config, 6, 8) != company


def test_seeded_experts_run_each_row_through_its_hit() -> None:
    """Each row's output is its hit expert's, times its weight; nano's widths, rank-93's kind of routing."""
    config = preset("nano", routing="seeded", held_experts=4, expert_weights="mxfp4")
    moe = a_moe(build(config, max_batch=6, context=64))
    z, mix = torch.randn(6, 32, generator=torch.Generator().manual_seed(5)), torch.rand(6)
    out = moe.experts.seeded(z, mix, moe.hits.groups(6, z.device))  # type: ignore[union-attr]
    for row, hit in enumerate(seeded_hits(config, 1, 6)):
        w13, w2 = moe.experts.matrices(hit)
        torch.testing.assert_close(out[row], mix[row] * (w2 @ situ(w13 @ z[row], 4.0, 25.0)))


def test_mxfp4_restores_exact_values_low_nibble_first() -> None:
    """Byte 0x2D is -3 (low nibble, even column) then 1; scale byte 128 doubles."""
    packed = torch.full((1, 16), 0x2D, dtype=torch.uint8)
    restored = dequantise(packed, torch.tensor([[128]], dtype=torch.uint8), torch.bfloat16)
    assert restored[0, :2].tolist() == [-6.0, 2.0]


def test_mxfp4_survives_a_round_trip() -> None:
    """Values on the grid come back bit for bit; others by less than two scales, as 6 is the largest."""
    matrix = torch.randn(4, 64, generator=torch.Generator().manual_seed(6))
    packed, scale = quantise(matrix)
    restored = dequantise(packed, scale, torch.float32)
    again = dequantise(*quantise(restored), torch.float32)
    assert torch.equal(restored, again)
    assert ((restored - matrix).abs() < 2 * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)).all()


def test_interleaved_codes_come_back() -> None:
    """Every pair of codes in every byte of a group, scales up to two, any shape; in another order, so bytes differ."""
    packed = ((torch.arange(256)[:, None] + 37 * torch.arange(192)[None, :]) % 256).to(torch.uint8).view(4, 64, 192)
    scale = (torch.arange(4 * 64 * 12) % 129).to(torch.uint8).view(4, 64, 12)
    laid_out = interleave(packed, scale)
    for before, after in zip((packed, scale), laid_out, strict=True):
        assert after.shape == before.shape
        assert not torch.equal(after, before)
    for picked in (slice(None), slice(1, None, 2), 3):
        codes, scales = deinterleave(laid_out[0][picked], laid_out[1][picked])
        assert torch.equal(codes, packed[picked])
        assert torch.equal(scales, scale[picked])


def test_an_interleaved_bank_restores_the_same_matrices(nano: Callable[..., K3]) -> None:
    """In place; prompts and the twins read them either way."""
    bank = a_moe(nano("small", expert_weights="mxfp4")).experts
    before, storage = [bank.matrices(expert) for expert in range(bank.count)], bank.w2_packed.data_ptr()
    bank.interleaved = True
    bank.prepare()
    assert bank.w2_packed.data_ptr() == storage
    for expert, (w13, w2) in enumerate(before):
        found = bank.matrices(expert)
        assert torch.equal(found[0], w13)
        assert torch.equal(found[1], w2)
