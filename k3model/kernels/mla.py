"""The MLA decode step between its projections and its attention: latent row, absorb, append.

    latent_row (M2 norm, cat)   absorb (M3)   append (M4)

FP8 caches run on the twins. Out of scope: projections and forks (`k3model/mla.py`), pages (`cache.py`), M5 and what
follows (`attention.py`).
"""

from __future__ import annotations

import torch

from k3model.cache import LatentCache, Placed
from k3model.kernels.attention import product
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, interpreted, jit, launch, power_of_two, tl
from k3model.pointwise import rms_norm

#: Columns of the latent that a program of `absorb` makes, and the fewest rows that a matrix unit takes.
ABSORBED, ROWS = 32, 16


def latent_row_twin(projected: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """The cached row [..., C + R] of kv_a's output: only the latent is normed, the tail neither normed nor rotated."""
    latent, tail = projected.split([norm.shape[0], projected.shape[-1] - norm.shape[0]], dim=-1)
    return torch.cat([rms_norm(latent, norm, eps), tail], dim=-1)


def latent_row(projected: torch.Tensor, norm: torch.Tensor, eps: float, *, pdl: bool = False) -> torch.Tensor:
    """The same, a program a row."""
    rows, C = projected.flatten(0, -2), norm.shape[0]
    out = projected.new_empty(projected.shape)
    tail = projected.shape[-1] - C
    _latent_row[(rows.shape[0],)](
        rows, norm, out, rows.stride(0), eps,
        C=C, C_BLOCK=power_of_two(C), R=tail, R_BLOCK=power_of_two(tail), num_warps=4, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _latent_row(  # type: ignore[no-untyped-def]
    projected, norm, out, row_stride, eps,
    C: tl.constexpr, C_BLOCK: tl.constexpr, R: tl.constexpr, R_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, c, r = tl.program_id(0), tl.arange(0, C_BLOCK), tl.arange(0, R_BLOCK)
    w = tl.load(norm + c, mask=c < C, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    v = tl.load(projected + row * row_stride + c, mask=c < C, other=0.0).to(tl.float32)
    tail = tl.load(projected + row * row_stride + C + r, mask=r < R, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / C + eps)
    tl.store(out + row * (C + R) + c, (v * scale * w).to(out.dtype.element_ty), mask=c < C)
    tl.store(out + row * (C + R) + C + r, tail, mask=r < R)


def absorb_twin(q: torch.Tensor, W_K: torch.Tensor, fused: torch.Tensor) -> None:
    """M3: q [B, h, N + R], W_K [h, N, C] taken into the query, written into the first C columns of fused."""
    _, N, C = W_K.shape
    if torch.compiler.is_compiling():  # Dynamo knows no product into a strided view
        fused[..., :C].copy_(torch.bmm(q[..., :N].transpose(0, 1), W_K).transpose(0, 1))
    else:
        torch.bmm(q[..., :N].transpose(0, 1), W_K, out=fused[..., :C].transpose(0, 1))


def absorb(q: torch.Tensor, W_K: torch.Tensor, fused: torch.Tensor, *, pdl: bool = False) -> None:
    """The same; a program reads its part of W_K once and multiplies it with all rows at once."""
    (h, N, C), B = W_K.shape, q.shape[0]
    columns = min(ABSORBED, C)
    _absorb[(C // columns, h)](
        q, W_K, fused, q.stride(0), q.stride(1), W_K.stride(0), W_K.stride(1), fused.stride(0), fused.stride(1),
        B, PADDED=max(ROWS, power_of_two(B)), N=N, COLUMNS=columns,
        WIDE=q.dtype == torch.float32 or interpreted(), num_warps=4, **launch(pdl),
    )  # fmt: skip


@jit
def _absorb(  # type: ignore[no-untyped-def]
    q, W_K, fused, q_row, q_head, w_head, w_row, fused_row, fused_head, rows,
    PADDED: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, n, row = tl.program_id(1), tl.arange(0, N), tl.arange(0, PADDED)[:, None]
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    w = tl.load(W_K + head * w_head + n[:, None] * w_row + c[None, :])
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(q + row * q_row + head * q_head + n[None, :], mask=row < rows, other=0.0)
    y = product(x, w, tl.zeros([PADDED, COLUMNS], tl.float32), WIDE)
    to = fused + row * fused_row + head * fused_head + c[None, :]
    tl.store(to, y.to(fused.dtype.element_ty), mask=row < rows)


def append_twin(
    q: torch.Tensor, latent: torch.Tensor, fused: torch.Tensor, cache: LatentCache, rows: Placed, tail: int
) -> torch.Tensor:
    """M4: the last `tail` columns of q into fused, the cache row; -> lengths [B]. Engines also fill tile counters."""
    fused[..., -tail:].copy_(q[..., -tail:])
    cache.append(rows.places, latent)
    return rows.positions + 1


def append(
    q: torch.Tensor, latent: torch.Tensor, fused: torch.Tensor, cache: LatentCache, rows: Placed, tail: int,
    *, pdl: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The same, a program a row. Its columns of fused are those that absorb leaves alone."""
    (B, h, width), size = q.shape, fused.shape[-1]
    lengths = torch.empty_like(rows.positions)
    _append[(B,)](
        q, latent, fused, cache.pages, rows.places, rows.positions, lengths,
        q.stride(0), q.stride(1), latent.stride(0), fused.stride(0), fused.stride(1),
        HEADS=h, PADDED=power_of_two(h), FIRST=width - tail, TAIL=tail, TAIL_BLOCK=power_of_two(tail),
        SIZE=size, BLOCK=power_of_two(size), num_warps=4, **launch(pdl),
    )  # fmt: skip
    return lengths


@jit
def _append(  # type: ignore[no-untyped-def]
    q, latent, fused, pages, places, positions, lengths,
    q_row, q_head, latent_row, fused_row, fused_head,
    HEADS: tl.constexpr, PADDED: tl.constexpr, FIRST: tl.constexpr, TAIL: tl.constexpr, TAIL_BLOCK: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, head, t, c = tl.program_id(0), tl.arange(0, PADDED), tl.arange(0, TAIL_BLOCK), tl.arange(0, BLOCK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tl.store(lengths + row, tl.load(positions + row) + 1)
    real = (head < HEADS)[:, None] & (t < TAIL)[None, :]
    moved = tl.load(q + row * q_row + head[:, None] * q_head + FIRST + t[None, :], mask=real)
    tl.store(fused + row * fused_row + head[:, None] * fused_head + (SIZE - TAIL) + t[None, :], moved, mask=real)
    place = tl.load(places + row).to(tl.int64)
    tl.store(pages + place * SIZE + c, tl.load(latent + row * latent_row + c, mask=c < SIZE), mask=c < SIZE)
