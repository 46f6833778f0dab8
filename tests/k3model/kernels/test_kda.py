"""The KDA step kernels against their twins: outputs, states and windows, gathered and in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from k3model.cache import KdaCache
from k3model.kernels import kda
from k3model.kernels.kda import KdaConstants, Projected

Draw = Callable[..., torch.Tensor]
#: K3's own shapes on a GPU; small ones for the interpreter.
HEADS, D = (6, 128) if torch.cuda.is_available() else (2, 32)
SLOTS = 4
WIDTH = HEADS * D


def given(draw: Draw, columns: int, gathered: bool, repack: bool) -> tuple[KdaCache, KdaConstants]:
    """Pools of four slots and the constants of one layer."""
    conv, state = draw(SLOTS, 3 * WIDTH, columns), draw(SLOTS, HEADS, D, D, dtype=torch.float32)
    cache = KdaCache(conv, state, draw(3, SLOTS, WIDTH, 3), gathered, repack)
    wide = {"dtype": torch.float32}
    constants = KdaConstants(
        draw(3, WIDTH, 1, 4, **wide), draw(HEADS, **wide), draw(WIDTH, **wide), 1 + draw(D, **wide), -5.0, 1e-5
    )
    return cache, constants


def projected(draw: Draw, rows: int) -> Projected:
    """Slices of wider rows, as the fused projections leave them."""
    qkvg, fab = draw(rows, 4 * WIDTH), draw(rows, D + 8)
    return Projected(qkvg[:, : 3 * WIDTH], qkvg[:, 3 * WIDTH :], draw(rows, WIDTH), fab[:, D : D + HEADS])


def copy(cache: KdaCache) -> KdaCache:
    """The same pools at other addresses."""
    return replace(cache, conv=cache.conv.clone(), state=cache.state.clone(), dense=cache.dense.clone())


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize(("gathered", "repack"), [(True, True), (False, True), (True, False), (False, False)])
def test_staging_and_step_equal_their_twins(draw: Draw, columns: int, gathered: bool, repack: bool) -> None:
    """Two steps of three rows: the second reads what the first left in the pools."""
    cache, constants = given(draw, columns, gathered, repack)
    twin, slots = copy(cache), torch.arange(3, device=cache.conv.device)
    for _ in range(2):
        new = projected(draw, 3)
        out = kda.kda_step(new, kda.kda_stage(cache, slots), constants, cache, slots)
        expected = kda.kda_step_twin(new, kda.kda_stage_twin(twin, slots), constants, twin, slots)
        torch.testing.assert_close(out, expected, rtol=1.6e-2, atol=2e-3)
        torch.testing.assert_close(cache.state, twin.state, rtol=1e-4, atol=1e-4)
        assert torch.equal(cache.conv, twin.conv)
        assert torch.equal(cache.dense, twin.dense)


@pytest.mark.gpu
def test_an_indexed_pool_is_worked_on_in_place_in_any_order(draw: Draw) -> None:
    """Rows that own scattered slots: nothing is staged, other slots stay as they are, as gathering gives it."""
    cache, constants = given(draw, 3, False, False)
    gathering = replace(copy(cache), gathered=True)
    before, slots, new = cache.state.clone(), torch.tensor([2, 0], device=cache.conv.device), projected(draw, 2)
    staged = kda.kda_stage(cache, slots)
    assert staged.state.data_ptr() == cache.state.data_ptr()
    out = kda.kda_step(new, staged, constants, cache, slots)
    expected = kda.kda_step(new, kda.kda_stage(gathering, slots), constants, gathering, slots)
    assert torch.equal(out, expected)
    assert torch.equal(cache.state, gathering.state)
    assert torch.equal(cache.state[[1, 3]], before[[1, 3]])
    assert not torch.equal(cache.state[[0, 2]], before[[0, 2]])
