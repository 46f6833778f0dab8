"""Attention of one token a row over its cached pages, and what follows up to the output projection.

    attend (M5, a share of the tokens a program)   combine (M5 over the shares, M6 up to values, output gate of M7)

The shares of `attend` are fixed by the batch and the cache's size, their tokens by the row's length; `combine` adds
them in order, so that the same inputs give the same bits. Out of scope: what makes the query (`mla.py`), FP8 caches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from k3model.cache import LatentCache, Rows
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, interpreted, jit, launch, power_of_two, tl
from k3model.pointwise import wide

#: Cached tokens a program of `attend` reads at once, and the fewest heads that a matrix unit takes.
TOKENS, HEADS = 32, 16
#: Two blocks under way: finding a page costs a stage of its own.
STAGES = 5
#: Programs that keep the memory of a large GPU busy; more would only mean more partial sums to add.
PROGRAMS, MOST_SHARES = 128, 64
#: Rows of the values a program of `combine` makes, and shares it adds at once.
VALUES, SUMMED = 32, 8


class Attended(NamedTuple):
    """What attention hands on. A tuple, so that the fork sees the tensors that cross streams."""

    latent: torch.Tensor  # twin: [B, h, C]; kernel: [B, shares, h, C] wide, not yet divided
    largest: torch.Tensor | None  # kernel: [B, shares, 2, h] largest score and sum of exponentials


def attend_twin(
    query: torch.Tensor, cache: LatentCache, rows: Rows, lengths: torch.Tensor, scale: float, values: int
) -> Attended:
    """M5: query [B, h, C + R] against all cached rows, softmax wide; values are the first columns of the same rows."""
    cached = cache.read(rows.table, rows.consecutive, query.dtype)
    scores = scores_of(query, cached) * scale
    past = torch.arange(cached.shape[1], device=cached.device) >= lengths[:, None, None]
    probs = scores.masked_fill_(past, float("-inf")).softmax(-1).to(cached.dtype)
    return Attended(torch.bmm(probs, cached[..., :values]), None)


def scores_of(query: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
    """query [B, n, 576] against rows [B, T, 576] -> wide [B, n, T]. Half precision would round them before softmax."""
    if query.is_cuda and query.dtype == torch.bfloat16:
        return torch.bmm(query, cached.mT, out_dtype=torch.float32)
    return wide(torch.bmm(query, cached.mT))


def shares_of(batch: int, capacity: int) -> int:
    """Programs a row: by what is known before a capture, never by the length that a replay finds."""
    return max(1, min(MOST_SHARES, PROGRAMS // batch, -(-capacity // TOKENS)))


def attend(
    query: torch.Tensor, cache: LatentCache, rows: Rows, lengths: torch.Tensor, scale: float, values: int,
    *, pdl: bool = False,
) -> Attended:  # fmt: skip
    """The same, split over the tokens of a row: every program leaves its part of the sums."""
    B, h, size = query.shape
    shares = shares_of(B, rows.table.shape[1] * rows.page_tokens)
    latent = torch.empty(B, shares, h, values, device=query.device, dtype=torch.float32)
    largest = torch.empty(B, shares, 2, h, device=query.device, dtype=torch.float32)
    _attend[(shares, B)](
        query, cache.pages, rows.table, lengths, latent, largest, scale, query.stride(0), query.stride(1),
        rows.table.stride(0), HEADS=h, PADDED=max(HEADS, power_of_two(h)), C=values, R=size - values,
        R_BLOCK=max(16, power_of_two(size - values)), PAGE=rows.page_tokens, TOKENS=TOKENS, SHARES=shares,
        WIDE=query.dtype == torch.float32 or interpreted(), num_warps=8, num_stages=STAGES, **launch(pdl),
    )  # fmt: skip
    return Attended(latent, largest)


@jit
def _attend(  # type: ignore[no-untyped-def]
    query, pages, table, lengths, latent, largest, scale, query_row, query_head, table_row,
    HEADS: tl.constexpr, PADDED: tl.constexpr, C: tl.constexpr, R: tl.constexpr, R_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, TOKENS: tl.constexpr, SHARES: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    share, row = tl.program_id(0), tl.program_id(1)
    head, c, r, t = tl.arange(0, PADDED), tl.arange(0, C), tl.arange(0, R_BLOCK), tl.arange(0, TOKENS)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    length = tl.load(lengths + row).to(tl.int32)
    each = tl.cdiv(tl.cdiv(length, TOKENS), SHARES) * TOKENS
    first = share * each
    end = tl.minimum(first + each, length)
    real = head < HEADS
    at = query + row * query_row + head[:, None] * query_head
    q = tl.load(at + c[None, :], mask=real[:, None], other=0.0)
    q_tail = tl.load(at + C + r[None, :], mask=real[:, None] & (r < R)[None, :], other=0.0)
    most = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    sums = tl.zeros([PADDED, C], tl.float32)
    for start in range(first, end, TOKENS):
        token = start + t
        there = token < end
        if PAGE % TOKENS == 0:
            page = tl.load(table + row * table_row + start // PAGE)
            cached = pages + (page * PAGE + start % PAGE) * (C + R) + t[:, None] * (C + R)
        else:
            page = tl.load(table + row * table_row + token // PAGE, mask=there, other=0).to(tl.int64)
            cached = pages + (page * PAGE + token % PAGE)[:, None] * (C + R)
        k = tl.load(cached + c[None, :], mask=there[:, None], other=0.0)
        k_tail = tl.load(cached + C + r[None, :], mask=there[:, None] & (r < R)[None, :], other=0.0)
        score = _product(q, tl.trans(k), tl.zeros([PADDED, TOKENS], tl.float32), WIDE)
        score = _product(q_tail, tl.trans(k_tail), score, WIDE) * scale
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        p, fade = tl.exp(score - higher[:, None]), tl.exp(most - higher)
        total = total * fade + tl.sum(p, 1)
        sums = _product(p.to(k.dtype), k, sums * fade[:, None], WIDE)
        most = higher
    to = (row * SHARES + share) * HEADS
    tl.store(latent + (to + head[:, None]) * C + c[None, :], sums, mask=real[:, None])
    tl.store(largest + 2 * to + head, most, mask=real)
    tl.store(largest + 2 * to + HEADS + head, total, mask=real)


@jit
def _product(a, b, acc, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """a b + acc, acc in float32. Triton's interpreter cannot multiply bfloat16 matrices, so there they are widened."""
    if WIDE:  # noqa: SIM108
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


def combine_twin(attended: Attended, W_V: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """M6 and the gate of M7: latent [B, h, C], W_V [h, C, V] up to values, times sigmoid of gate -> [B, h * V]."""
    o = torch.bmm(attended.latent.transpose(0, 1), W_V).transpose(0, 1).flatten(1)
    return (wide(o) * wide(gate).sigmoid()).to(o.dtype)


def combine(attended: Attended, W_V: torch.Tensor, gate: torch.Tensor, *, pdl: bool = False) -> torch.Tensor:
    """The same from the parts that `attend` left, added in the order of the shares."""
    B, shares, h, C = attended.latent.shape
    V = W_V.shape[-1]
    out, rows = gate.new_empty(B, h * V), min(VALUES, V)
    _combine[(V // rows, h, B)](
        attended.latent, attended.largest, W_V, gate, out, W_V.stride(0), W_V.stride(2), gate.stride(0),
        HEADS=h, C=C, V=V, ROWS=rows, SHARES=shares, PADDED=power_of_two(shares),
        SUMMED=min(SUMMED, power_of_two(shares)), num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _combine(  # type: ignore[no-untyped-def]
    latent, largest, W_V, gate, out, w_head, w_value, gate_row,
    HEADS: tl.constexpr, C: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, SHARES: tl.constexpr,
    PADDED: tl.constexpr, SUMMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, row, c = tl.program_id(1), tl.program_id(2), tl.arange(0, C)
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # The twin's W_V is a transposed view: a value's C columns lie together.
    w = tl.load(W_V + head * w_head + v[:, None] * w_value + c[None, :]).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    s = tl.arange(0, PADDED)
    at = largest + (row * SHARES + s) * 2 * HEADS + head
    most = tl.load(at, mask=s < SHARES, other=float("-inf"))
    total = tl.load(at + HEADS, mask=s < SHARES, other=0.0)
    top = tl.max(most, 0)
    whole = tl.sum(tl.exp(most - top) * total, 0)
    sums = tl.zeros([C], tl.float32)
    for start in tl.static_range(0, SHARES, SUMMED):
        s = start + tl.arange(0, SUMMED)
        part = row * SHARES + s
        most = tl.load(largest + part * 2 * HEADS + head, mask=s < SHARES, other=float("-inf"))
        read = latent + (part * HEADS + head)[:, None] * C + c[None, :]
        sums += tl.sum(tl.load(read, mask=(s < SHARES)[:, None], other=0.0) * tl.exp(most - top)[:, None], 0)
    # Rounded where the twin rounds: the latent, the values, and what the gate leaves.
    dtype: tl.constexpr = out.dtype.element_ty
    mixed = (sums / whole).to(dtype).to(tl.float32)
    o = tl.sum(w * mixed[None, :], 1).to(dtype).to(tl.float32)
    o = o * tl.sigmoid(tl.load(gate + row * gate_row + head * V + v).to(tl.float32))
    tl.store(out + row * HEADS * V + head * V + v, o.to(dtype))
