"""The MLA kernels against their twins, and attention against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.cache import LatentCache, Placed
from k3model.kernels import attention, mla

Draw = Callable[..., torch.Tensor]
#: K3's own shapes on a GPU; small ones for the interpreter.
HEADS, N, R, C, V = (6, 128, 64, 512, 128) if torch.cuda.is_available() else (3, 16, 8, 32, 16)
PAGE = 64
CLOSE = {"rtol": 1.6e-2, "atol": 4e-3}


def rows_at(positions: list[int], pages: int, device: torch.device) -> Placed:
    """Rows whose pages lie scattered, with the places of their next token."""
    batch = len(positions)
    order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(5)).view(batch, pages).to(device)
    at = torch.tensor(positions, device=device)
    page = order.gather(1, (at // PAGE).unsqueeze(1)).squeeze(1)
    return Placed(torch.arange(batch, device=device), at, order, False, PAGE, page * PAGE + at % PAGE)


@pytest.mark.gpu
def test_the_latent_row_equals_its_twin(draw: Draw) -> None:
    """Two dimensions of a step and three of a prompt."""
    norm = 1 + draw(C, spread=0.1)
    for projected in (draw(2, C + R), draw(2, 3, C + R)):
        out = mla.latent_row(projected, norm, 1e-6)
        torch.testing.assert_close(out, mla.latent_row_twin(projected, norm, 1e-6), **CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2, 8, 17])
def test_absorb_and_append_write_their_own_columns(draw: Draw, device: torch.device, batch: int) -> None:
    """Together they fill the query; the cache gets the row, lengths count it; all as the twins do."""
    q, latent, kv_b = draw(batch, HEADS, N + R), draw(batch, C + R), draw(HEADS, N + V, C, spread=N**-0.5)
    rows, filled = rows_at([70, 3, *range(batch)][:batch], 2, device), []
    for absorb, append in ((mla.absorb, mla.append), (mla.absorb_twin, mla.append_twin)):
        fused = torch.zeros_like(draw(batch, HEADS, C + R))
        cache = LatentCache(torch.zeros_like(draw(2 * batch, PAGE, C + R)))
        absorb(q, kv_b[:, :N], fused)
        assert not fused[..., C:].any()
        filled.append((fused, append(q, latent, fused, cache, rows, R), cache.pages))
    torch.testing.assert_close(filled[0][0], filled[1][0], **CLOSE)
    assert torch.equal(filled[0][1], filled[1][1])
    assert torch.equal(filled[0][2], filled[1][2])


@pytest.mark.gpu
@pytest.mark.parametrize("page", [64, 24])
def test_attention_over_scattered_pages_equals_its_twin(draw: Draw, device: torch.device, page: int) -> None:
    """Lengths of one token, of a page's end and past it; more shares than one row has blocks; odd page sizes."""
    pages = -(-200 // page)
    table = torch.randperm(3 * pages, generator=torch.Generator().manual_seed(6)).view(3, pages).to(device)
    lengths = torch.tensor([1, 64, 190], device=device)
    rows = Placed(torch.arange(3, device=device), lengths - 1, table, False, page, lengths)
    cache, kv_b = LatentCache(draw(3 * pages, page, C + R)), draw(HEADS, N + V, C, spread=C**-0.5)
    query, gate, W_V = draw(3, HEADS, C + R, spread=0.5), draw(3, HEADS * V), kv_b[:, N:].mT
    scale = (N + R) ** -0.5
    attended = attention.attend(query, cache, rows, lengths, scale, C)
    assert attended.latent.shape[1] > 1
    out = attention.combine(attended, W_V, gate)
    expected = attention.combine_twin(attention.attend_twin(query, cache, rows, lengths, scale, C), W_V, gate)
    torch.testing.assert_close(out, expected, **CLOSE)


@pytest.mark.gpu
def test_shares_of_several_blocks_and_rows_of_any_length(draw: Draw, device: torch.device) -> None:
    """More blocks than shares: each takes several in turn, some fewer than others, some none; twice the same bits."""
    lengths = torch.tensor([1, 33, 64, 1057, 2000, 3169, 4095, 4224], device=device)
    rows = rows_at([int(length) - 1 for length in lengths], 66, device)
    cache, kv_b = LatentCache(draw(8 * 66, PAGE, C + R)), draw(HEADS, N + V, C, spread=C**-0.5)
    query, gate, W_V = draw(8, HEADS, C + R), draw(8, HEADS * V), kv_b[:, N:].mT
    scale, outs = (N + R) ** -0.5, []
    for _ in range(2):
        attended = attention.attend(query, cache, rows, lengths, scale, C)
        outs.append(attention.combine(attended, W_V, gate))
    assert attended.latent.shape[1] * attention.TOKENS * 4 <= 4224
    expected = attention.combine_twin(attention.attend_twin(query, cache, rows, lengths, scale, C), W_V, gate)
    torch.testing.assert_close(outs[0], expected, **CLOSE)
    assert torch.equal(*outs)


@pytest.mark.gpu
def test_a_row_may_leave_the_most_shares(draw: Draw, device: torch.device) -> None:
    """One row, as long as a large GPU has programs for."""
    pages = 2 * attention.MOST_SHARES * attention.TOKENS // PAGE
    lengths = torch.tensor([pages * PAGE - 70], device=device)
    rows = rows_at([int(lengths) - 1], pages, device)
    cache, kv_b = LatentCache(draw(pages, PAGE, C + R)), draw(HEADS, N + V, C, spread=C**-0.5)
    query, gate, W_V = draw(1, HEADS, C + R), draw(1, HEADS * V), kv_b[:, N:].mT
    attended = attention.attend(query, cache, rows, lengths, 0.1, C)
    assert attended.latent.shape[1] == attention.MOST_SHARES
    expected = attention.combine_twin(attention.attend_twin(query, cache, rows, lengths, 0.1, C), W_V, gate)
    torch.testing.assert_close(attention.combine(attended, W_V, gate), expected, **CLOSE)


def test_the_twins_are_plain_attention() -> None:
    """Softmax over the cached rows alone, values of the same rows, gate behind the up-projection; in float64."""
    draw = torch.Generator().manual_seed(9)
    pages, query = torch.randn(2, 4, C + R, generator=draw).double(), torch.randn(1, 2, C + R, generator=draw).double()
    W_V, gate = torch.randn(2, C, V, generator=draw).double(), torch.randn(1, 2 * V, generator=draw).double()
    table, lengths = torch.tensor([[1, 0]]), torch.tensor([6])
    rows = Placed(torch.arange(1), lengths - 1, table, False, 4, lengths)
    out = attention.combine_twin(attention.attend_twin(query, LatentCache(pages), rows, lengths, 0.3, C), W_V, gate)
    cached = torch.cat([pages[1], pages[0]])[:6]
    for head in range(2):
        probs = torch.softmax(cached @ query[0, head] * 0.3, 0)
        expected = (probs @ cached[:, :C]) @ W_V[head] * gate[0, head * V : head * V + V].sigmoid()
        torch.testing.assert_close(out[0, head * V : head * V + V], expected)


def test_shares_are_fixed_by_batch_and_capacity() -> None:
    """A graph's grid: enough programs for a large GPU at every batch, never more than blocks or than combine adds."""
    for batch in (1, 2, 4, 8):
        assert attention.shares_of(batch, 8448) == min(attention.MOST_SHARES, attention.PROGRAMS // batch)
    assert attention.shares_of(1, 64) == 64 // attention.TOKENS
