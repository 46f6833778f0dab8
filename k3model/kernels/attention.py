"""Attention of one token a row over its cached pages, and what follows up to the output projection.

    attend (M5, a share of the tokens a program)   combine (M5 over the shares, M6 up to values, output gate of M7)

The shares of `attend` are fixed by the batch and the cache's size, their tokens by the row's length; `combine` adds
them in order, so that the same inputs give the same bits. Out of scope: what makes the query (`mla.py`), FP8 caches.
"""

# Triton reads the kernels' bodies, not Python: tuples grow by adding.
# mypy: disable-error-code="assignment"

from __future__ import annotations

from typing import NamedTuple

import torch

from k3model.cache import LatentCache, Rows
from k3model.kernels.language import (
    EARLY,
    LATE,
    gdc_launch_dependents,
    gdc_wait,
    interpreted,
    jit,
    launch,
    power_of_two,
    tl,
)
from k3model.pointwise import wide

#: Cached tokens a program of `attend` reads at once, the fewest heads that a matrix unit takes, and warps for these.
TOKENS, HEADS, WARPS = 32, 16, 4
#: One more than the blocks under way.
STAGES = 3
#: Columns of the latent whose products are summed apart: each sum is a chain of dependent steps.
PIECE = 256
#: Programs that fill a large GPU (132 multiprocessors of two), and the most partial sums a row.
PROGRAMS, MOST_SHARES = 264, 132
#: Rows of the values a program of `combine` makes, and half of them up to so many rows of the batch: more programs.
VALUES, FEW = 32, 2
#: Shares that `combine` adds at once, and one more than such blocks under way.
ADDED, ADDED_STAGES = 16, 4
#: Exponentials are powers of two.
LOG2_E = 1.4426950408889634


class Attended(NamedTuple):
    """What attention hands on. A tuple, so that the fork sees the tensors that cross streams."""

    latent: torch.Tensor  # twin: [B, h, C]; kernel: [B, shares, h, C], each share's own average
    weights: torch.Tensor | None  # kernel: [B, shares, h] wide, log2 of a share's sum of exponentials


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
    capacity = rows.table.shape[1] * rows.page_tokens
    shares, padded = shares_of(B, capacity), max(HEADS, power_of_two(h))
    latent = query.new_empty(B, shares, h, values)
    weights = torch.empty(B, shares, h, device=query.device, dtype=torch.float32)
    _attend[(shares, B)](
        query, cache.pages, rows.table, lengths, latent, weights, scale * LOG2_E, query.stride(0), query.stride(1),
        rows.table.stride(0), capacity, shares, HEADS=h, PADDED=padded, C=values, R=size - values,
        R_BLOCK=max(16, power_of_two(size - values)), PAGE=rows.page_tokens, TOKENS=TOKENS, PIECE=min(PIECE, values),
        WIDE=query.dtype == torch.float32 or interpreted(),
        num_warps=min(8, WARPS * padded // HEADS), num_stages=STAGES, **launch(pdl, B),
    )  # fmt: skip
    return Attended(latent, weights)


@jit
def _attend(  # type: ignore[no-untyped-def]
    query, pages, table, lengths, latent, weights, scale, query_row, query_head, table_row, capacity, shares,
    HEADS: tl.constexpr, PADDED: tl.constexpr, C: tl.constexpr, R: tl.constexpr, R_BLOCK: tl.constexpr,
    PAGE: tl.constexpr, TOKENS: tl.constexpr, PIECE: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    share, row = tl.program_id(0), tl.program_id(1)
    head, c, r, t = tl.arange(0, PADDED), tl.arange(0, PIECE), tl.arange(0, R_BLOCK), tl.arange(0, TOKENS)
    PIECES: tl.constexpr = C // PIECE
    if PDL:
        if PDL == EARLY:
            gdc_launch_dependents()
        gdc_wait()
    length = tl.minimum(tl.load(lengths + row).to(tl.int32), capacity)  # a wrong length must not leave the table
    # Blocks are dealt out one by one, so that where the first one lies depends on no length.
    table += row * table_row
    page = _page(table, share * TOKENS, t, capacity, PAGE, TOKENS)
    real = head < HEADS
    at = query + row * query_row + head[:, None] * query_head
    q_tail = tl.load(at + C + r[None, :], mask=real[:, None] & (r < R)[None, :], other=0.0)
    q, sums = (), ()
    for i in tl.static_range(PIECES):
        q += (tl.load(at + i * PIECE + c[None, :], mask=real[:, None], other=0.0),)
        sums += (tl.zeros([PADDED, PIECE], tl.float32),)
    most = tl.full([PADDED], float("-inf"), tl.float32)
    exps = tl.zeros([PADDED, TOKENS], tl.float32)
    for start in range(share * TOKENS, length, shares * TOKENS):
        token = start + t
        there = (token < length)[:, None]
        if PAGE % TOKENS == 0:
            cached = pages + (page * PAGE + start % PAGE) * (C + R) + t[:, None] * (C + R)
        else:
            cached = pages + (page * PAGE + token % PAGE)[:, None] * (C + R)
        page = _page(table, start + shares * TOKENS, t, length, PAGE, TOKENS)
        k_tail = tl.load(cached + C + r[None, :], mask=there & (r < R)[None, :], other=0.0)
        k = ()
        for i in tl.static_range(PIECES):
            k += (tl.load(cached + i * PIECE + c[None, :], mask=there, other=0.0),)
        none = tl.zeros([PADDED, TOKENS], tl.float32)
        score = product(q_tail, tl.trans(k_tail), none, WIDE) * scale
        for i in tl.static_range(PIECES):
            score += product(q[i], tl.trans(k[i]), none, WIDE) * scale
        score = tl.where((token < length)[None, :], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        p, fade = tl.exp2(score - higher[:, None]), tl.exp2(most - higher)
        exps = exps * fade[:, None] + p
        before, sums = sums, ()
        for i in tl.static_range(PIECES):
            sums += (product(p.to(k[i].dtype), k[i], before[i] * fade[:, None], WIDE),)
        most = higher
    if PDL == LATE:
        gdc_launch_dependents()
    total = tl.sum(exps, 1)
    # A share without tokens leaves zeros and the logarithm of none.
    inverse = tl.where(total > 0, 1 / total, 0.0)[:, None]
    to = (row * shares + share) * HEADS + head
    for i in tl.static_range(PIECES):
        average = (sums[i] * inverse).to(latent.dtype.element_ty)
        tl.store(latent + to[:, None] * C + i * PIECE + c[None, :], average, mask=real[:, None])
    tl.store(weights + to, most + tl.log2(total), mask=real)


@jit
def _page(table, start, t, end, PAGE: tl.constexpr, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The page of a block of tokens, or of each of them where a block may lie on two."""
    if PAGE % TOKENS == 0:
        page = tl.load(table + start // PAGE, mask=start < end, other=0).to(tl.int64)
    else:
        page = tl.load(table + (start + t) // PAGE, mask=start + t < end, other=0).to(tl.int64)
    return page


@jit
def product(a, b, acc, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
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
    out, rows = gate.new_empty(B, h * V), min(VALUES if B > FEW else VALUES // 2, V)
    _combine[(V // rows, h, B)](
        attended.latent, attended.weights, W_V, gate, out, W_V.stride(0), W_V.stride(2), gate.stride(0),
        HEADS=h, C=C, V=V, ROWS=rows, SHARES=shares, PADDED=power_of_two(shares), ADDED=ADDED, FEWEST=HEADS,
        WIDE=gate.dtype == torch.float32 or interpreted(), num_warps=4, num_stages=ADDED_STAGES, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _combine(  # type: ignore[no-untyped-def]
    latent, weights, W_V, gate, out, w_head, w_value, gate_row,
    HEADS: tl.constexpr, C: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, SHARES: tl.constexpr,
    PADDED: tl.constexpr, ADDED: tl.constexpr, FEWEST: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The shares' weights are a matrix of one row, which the tensor cores multiply: what a weight loses by rounding is
    a second row.
    """
    head, row, c = tl.program_id(1), tl.program_id(2), tl.arange(0, C)
    v = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    # The twin's W_V is a transposed view: a value's C columns lie together.
    w = tl.load(W_V + head * w_head + v[:, None] * w_value + c[None, :])
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    opened = tl.load(gate + row * gate_row + head * V + v).to(tl.float32)
    s = tl.arange(0, PADDED)
    first = row * SHARES * HEADS + head  # of this row's and head's parts, which lie HEADS apart
    logs = tl.load(weights + first + s * HEADS, mask=s < SHARES, other=float("-inf"))
    top = tl.max(logs, 0)
    whole, sums = tl.sum(tl.exp2(logs - top), 0), tl.zeros([FEWEST, C], tl.float32)
    kind, added = tl.arange(0, FEWEST)[:, None], tl.arange(0, ADDED)
    at = first + added * HEADS
    log = tl.load(weights + at, mask=added < SHARES, other=float("-inf"))
    for start in range(0, SHARES, ADDED):
        there = start + added < SHARES
        part = tl.load(latent + at[:, None] * C + c[None, :], mask=there[:, None], other=0.0)
        exact = tl.exp2(log - top)
        at += ADDED * HEADS
        log = tl.load(weights + at, mask=start + ADDED + added < SHARES, other=float("-inf"))
        weight = exact.to(part.dtype)
        lost = (exact - weight.to(tl.float32)).to(part.dtype)
        both = tl.where(kind == 0, weight[None, :], tl.where(kind == 1, lost[None, :], 0.0))
        sums = product(both.to(part.dtype), part, sums, WIDE)
    mixed = tl.sum(sums, 0) / whole
    # Rounded where the twin rounds: the latent, the values, and what the gate leaves.
    dtype: tl.constexpr = out.dtype.element_ty
    o = tl.sum(w.to(tl.float32) * mixed.to(dtype).to(tl.float32)[None, :], 1).to(dtype).to(tl.float32)
    tl.store(out + row * HEADS * V + head * V + v, (o * tl.sigmoid(opened)).to(dtype))
