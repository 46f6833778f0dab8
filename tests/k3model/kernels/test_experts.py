"""Routing and expert kernels against their twins, and the twins against the model's own loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.kernels import moe
from k3model.kernels.packed import Hits, Packed, known_hits
from k3model.mxfp4 import dequantise
from k3model.pointwise import situ

Draw = Callable[..., torch.Tensor]
HELD = 3
#: ||difference|| / ||expected||: the interpreter cuts off where a GPU rounds to bfloat16, five times on the way.
LIMIT = 6e-3 if torch.cuda.is_available() else 2.5e-2
#: Whole chunks for the tensor cores; the interpreter has none and takes a tenth of a second a program.
LATENT, INNER = (768, 512) if torch.cuda.is_available() else (64, 32)


def packed_experts(device: torch.device, latent: int = LATENT, inner: int = INNER) -> Packed:
    """Uniform codes, so that every value and both signs occur, and scales that keep outputs near one."""
    draw = torch.Generator().manual_seed(5)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8).to(device)

    def scales(*shape: int) -> torch.Tensor:
        return torch.randint(121, 125, shape, generator=draw, dtype=torch.uint8).to(device)

    return Packed(
        codes(HELD, 2, inner, latent // 2), scales(HELD, 2, inner, latent // 32),
        codes(HELD, latent, inner // 2), scales(HELD, latent, inner // 32),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (8, 2), (20, 5)])
def test_pick_equals_its_twin(draw: Draw, experts: int, top_k: int) -> None:
    """The same experts in the same order, weights to the last bits; scores differ, so ties play no part."""
    logits, bias = draw(3, experts, dtype=torch.float32), draw(experts, dtype=torch.float32, spread=0.05)
    picks, mix = moe.pick(logits, bias, top_k, 2.5)
    expected_picks, expected_mix = moe.pick_twin(logits, bias, top_k, 2.5)
    assert torch.equal(picks, expected_picks)
    torch.testing.assert_close(mix, expected_mix, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (24, 2), (8, 2)])
@pytest.mark.parametrize("values", [1, 3], ids=["all equal", "three values"])
def test_of_equal_scores_the_lower_number_is_picked_first(
    device: torch.device, values: int, experts: int, top_k: int, batch: int
) -> None:
    """As a stable sort does, below zero too; equal scores in one group, in several, and more of them than picks."""
    generator = torch.Generator().manual_seed(values)
    logits = torch.randint(values, (batch, experts), generator=generator).float().to(device)
    bias = (torch.randint(values, (experts,), generator=generator) * 0.05 - 0.75).to(device)
    picks, mix = moe.pick(logits, bias, top_k, 2.5)
    expected = (logits.sigmoid() + bias).sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    assert torch.equal(picks, expected)
    scores = logits.sigmoid().gather(1, expected)
    torch.testing.assert_close(mix, 2.5 * scores / scores.sum(-1, keepdim=True))


@pytest.mark.gpu
@pytest.mark.parametrize("stride", [1, 4, 16, 64])
def test_pick_finds_the_best_wherever_they_lie(draw: Draw, stride: int) -> None:
    """All picks in one group, or each in its own, worst first in memory."""
    logits, bias = draw(2, 896, dtype=torch.float32) * 0.1 - 3, torch.zeros(896, device=draw(1).device)
    logits[:, : 14 * stride : stride] = torch.arange(14.0, device=logits.device) / 8
    picks, _ = moe.pick(logits, bias, 16, 1.0)
    assert torch.equal(picks, moe.pick_twin(logits, bias, 16, 1.0)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("table", [[[1]], [[2], [0], [2]], [[0, 2], [-1, 1]]], ids=["one", "repeated", "two slots"])
def test_experts_equal_their_twin(draw: Draw, device: torch.device, table: list[list[int]]) -> None:
    """One row; rows that share an expert; slots that hit nothing here."""
    packed, hits = packed_experts(device), known_hits(table, device)
    z, mix = draw(len(table), LATENT), draw(*hits.table.shape, dtype=torch.float32).abs()
    expected = moe.experts_twin(z, mix, hits, packed, 4.0, 25.0)
    # Known before the step, or decided on the device: one path in the interpreter, two on a GPU.
    for given in (hits, Hits(hits.table))[: 2 if z.is_cuda else 1]:
        out = moe.experts(z, mix, given, packed, 4.0, 25.0)
        assert (out - expected).norm() < LIMIT * expected.norm()


def test_the_twin_sums_weighted_experts() -> None:
    """In float64, row by row: sum over held slots of mix W2 situ(W13 z)."""
    packed, hits = packed_experts(torch.device("cpu")), known_hits([[0, 2], [-1, 1]], torch.device("cpu"))
    draw = torch.Generator().manual_seed(6)
    z, mix = torch.randn(2, LATENT, generator=draw).double(), torch.rand(2, 2, generator=draw).double()
    out = moe.experts_twin(z, mix, hits, packed, 4.0, 25.0)
    for row in range(2):
        expected = torch.zeros(LATENT, dtype=torch.float64)
        for weight, expert in zip(mix[row], hits.table[row].tolist(), strict=True):
            if expert >= 0:
                w13 = dequantise(packed.w13[expert], packed.w13_scale[expert], torch.float64).flatten(0, 1)
                w2 = dequantise(packed.w2[expert], packed.w2_scale[expert], torch.float64)
                expected += weight * (w2 @ situ(w13 @ z[row], 4.0, 25.0))
        torch.testing.assert_close(out[row], expected)


def test_the_twin_picks_by_biased_scores_and_weighs_without_the_bias() -> None:
    """A bias pulls an expert to the front; weights are shares of the picked scores times the scale."""
    logits, bias = torch.tensor([[0.0, 1.0, 2.0, -1.0]]), torch.tensor([0.0, 0.0, 0.0, 5.0])
    picks, mix = moe.pick_twin(logits, bias, 2, 3.0)
    assert picks.tolist() == [[3, 2]]
    scores = logits.sigmoid()[0, [3, 2]]
    torch.testing.assert_close(mix[0], 3 * scores / scores.sum())


def test_known_hits_list_every_expert_once() -> None:
    """Ascending, with the slot each row hits it with; a slot that hits nothing here is in no list."""
    hits = known_hits([[4, 1], [-1, 4]], torch.device("cpu"))
    assert hits.experts is not None
    assert hits.slots is not None
    assert hits.experts.tolist() == [1, 4]
    assert hits.slots.tolist() == [[1, 0], [-1, 1]]
