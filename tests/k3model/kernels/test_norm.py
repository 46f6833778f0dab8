"""Norm kernels against their twins."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.kernels import language, norm
from k3model.kernels.norm import Kept
from k3model.pointwise import rms_norm

Draw = Callable[..., torch.Tensor]
CLOSE = {"rtol": 1.6e-2, "atol": 2e-3}


@pytest.mark.gpu
@pytest.mark.parametrize("addends", [0, 1, 2])
@pytest.mark.parametrize("top", [0, 1, 3, 8])
def test_add_mix_norm_equals_its_twin(draw: Draw, top: int, addends: int) -> None:
    """Any number of snapshots, an empty running sum and a full one; the bank ends up with the same bits."""
    # The interpreter cuts to bfloat16 where a GPU rounds.
    dtype, n, size = (torch.float32, 2, 96) if language.interpreted() else (torch.bfloat16, 2, 7168)
    bank = draw(9, 4, size, dtype=dtype)[:, :2]
    others = tuple(draw(n, size, dtype=dtype) for _ in range(addends))
    directions, weight = draw(3, size, dtype=torch.float32), 1 + draw(size, spread=0.1, dtype=dtype)
    empty = bool(addends) and top % 2 == 1
    one, other, kept = bank.clone(), bank.clone(), Kept.of(bank, len(directions))
    kept.squares.copy_(bank.float().square().sum(-1))
    for row in range(top):
        norm.keep(kept, bank, row, directions)
    out = norm.add_mix_norm(one, top, others, empty, directions, 1, weight, 1e-5, kept)
    expected = norm.add_mix_norm_twin(other, top, others, empty, directions, 1, weight, 1e-5, kept)
    assert torch.equal(one, other)
    torch.testing.assert_close(kept.squares[top], one[top].float().square().sum(-1))
    torch.testing.assert_close(out, expected, **CLOSE)


@pytest.mark.gpu
def test_without_a_direction_the_running_sum_is_normed_alone(draw: Draw) -> None:
    """Layer 0 has no snapshot to mix."""
    bank, weight = draw(2, 1, 64), 1 + draw(64, spread=0.1)
    out = norm.add_mix_norm(bank, 0, (), False, draw(1, 64, dtype=torch.float32), None, weight, 1e-5, Kept.of(bank, 1))
    torch.testing.assert_close(out, rms_norm(bank[0], weight, 1e-5), **CLOSE)


def test_the_twin_adds_before_it_mixes() -> None:
    """Two addends are summed, an empty running sum is replaced, the mix sees the result."""
    bank = torch.tensor([[[1.0, -1.0]], [[9.0, 9.0]]])
    addends = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    out = norm.add_mix_norm_twin(bank, 1, addends, True, torch.zeros(1, 2), 0, torch.ones(2), 0.0, Kept.of(bank, 1))
    assert bank[1].tolist() == [[2.0, 2.0]]
    mixed = torch.tensor([1.5, 0.5])  # equal scores, equal shares
    torch.testing.assert_close(out[0], mixed / mixed.square().mean().sqrt())
