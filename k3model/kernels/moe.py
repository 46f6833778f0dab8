"""Routing and routed experts of a decode step: logits to picks in one launch, MXFP4 experts in two.

    pick      sigmoid, bias, top-k, weights                 one program a row
    experts   h = situ(z W13^T), then sum of mix * (h W2^T)   W stays packed in memory and is restored in registers

Rows hit held experts as a table [B, S] says: S slots a row, each a held expert or -1. Here every slot is read for
itself; `moe_mma.py` reads each expert once for all its rows. Out of scope: who decides the table (`hits.py`, `moe.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from k3model.kernels.gemv import situ_rounded
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.mxfp4 import dequantise
from k3model.pointwise import situ, wide


class Packed(NamedTuple):
    """The experts that one rank holds, as `mxfp4.py` lays them out: bytes of two codes, bytes of scales."""

    w13: torch.Tensor  # [E, 2, I, L / 2], gate then up
    w13_scale: torch.Tensor  # [E, 2, I, L / 32]
    w2: torch.Tensor  # [E, L, I / 2]
    w2_scale: torch.Tensor  # [E, L, I / 32]


def pick_twin(logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [n, E] wide -> picked experts [n, k], best first, and their weights [n, k]. The bias does not weigh."""
    scores = logits.sigmoid()
    picks = (scores + bias).topk(top_k, dim=-1).indices
    picked = scores.gather(1, picks)
    return picks, picked / (picked.sum(-1, keepdim=True) + 1e-20) * scale


def pick(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float, *, pdl: bool = False, warps: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same; of equal scores the expert of the lower number goes first."""
    n, experts = logits.shape
    picks = torch.empty(n, top_k, device=logits.device, dtype=torch.int64)
    mix = torch.empty(n, top_k, device=logits.device, dtype=torch.float32)
    _pick[(n,)](
        logits, bias, picks, mix, scale, E=experts, BLOCK=power_of_two(experts), TOP=top_k, SLOTS=power_of_two(top_k),
        num_warps=warps, **launch(pdl),
    )  # fmt: skip
    return picks, mix


@jit
def _pick(  # type: ignore[no-untyped-def]
    logits, bias, picks, mix, scale,
    E: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One warp: a search costs two warp-wide integer reductions, with no barrier."""
    n, e, slot = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, SLOTS)
    offset = tl.load(bias + e, mask=e < E, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    biased = tl.sigmoid(tl.load(logits + n * E + e, mask=e < E, other=0.0)) + offset
    # Integers in the order of the floats.
    bits = biased.to(tl.int32, bitcast=True)
    order = tl.where(e < E, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)
    found = tl.zeros([SLOTS], tl.int32)
    for i in tl.static_range(TOP):
        best = tl.min(tl.where(order == tl.max(order, 0), e, BLOCK), 0)
        order = tl.where(e == best, -0x80000000, order)
        found = tl.where(slot == i, best, found)
    score = tl.sigmoid(tl.load(logits + n * E + found))
    score = tl.where(slot < TOP, score, 0.0)
    tl.store(picks + n * TOP + slot, found.to(tl.int64), mask=slot < TOP)
    tl.store(mix + n * TOP + slot, score / (tl.sum(score, 0) + 1e-20) * scale, mask=slot < TOP)


def experts_twin(
    z: torch.Tensor, mix: torch.Tensor, table: torch.Tensor, packed: Packed, beta: float, linear_beta: float
) -> torch.Tensor:
    """z [B, L], mix and table [B, S] -> [B, L]: each expert's output is rounded, weighted and summed wide, rounded."""
    total = torch.zeros_like(z, dtype=mix.dtype)
    for slot in range(table.shape[1]):
        hit, held = table[:, slot].clamp_min(0), table[:, slot] >= 0
        w13 = dequantise(packed.w13[hit], packed.w13_scale[hit], z.dtype).flatten(1, 2)
        w2 = dequantise(packed.w2[hit], packed.w2_scale[hit], z.dtype)
        h = situ(torch.bmm(w13, z.unsqueeze(-1)).squeeze(-1), beta, linear_beta)
        total += wide(torch.bmm(w2, h.unsqueeze(-1)).squeeze(-1)) * (mix[:, slot] * held).unsqueeze(-1)
    return total.to(z.dtype)


#: Rows of a weight in one program, words of eight columns taken at a time, warps.
BLOCK_N, WORDS, WARPS = 4, 64, 4


def experts(
    z: torch.Tensor,
    mix: torch.Tensor,
    table: torch.Tensor,
    packed: Packed,
    beta: float,
    linear_beta: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The same in two launches. z and mix contiguous in their last dimension, table int32."""
    (batch, slots), (_, _, inner, _), latent = table.shape, packed.w13.shape, z.shape[1]
    h = torch.empty(batch, slots, inner, device=z.device, dtype=z.dtype)
    out = torch.empty(batch, latent, device=z.device, dtype=z.dtype)
    blocks = {"BLOCK_N": BLOCK_N, "WORDS": WORDS, "num_warps": WARPS}
    _gate_up[(-(-inner // BLOCK_N), batch * slots)](
        z, packed.w13.view(torch.int32), packed.w13_scale, table, h, z.stride(0), beta, linear_beta,
        SLOTS=slots, K=latent, N=inner, **blocks, **launch(pdl),
    )  # fmt: skip
    _down[(-(-latent // BLOCK_N), batch)](
        h, packed.w2.view(torch.int32), packed.w2_scale, table, mix, out, mix.stride(0), mix.stride(1),
        SLOTS=slots, K=inner, N=latent, **blocks, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _gate_up(  # type: ignore[no-untyped-def]
    z, packed, scale, table, out, z_row, beta, linear_beta,
    SLOTS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    hit, row = tl.program_id(1), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert = tl.load(table + hit).to(tl.int64)
    if expert >= 0:
        first = packed + expert * (2 * N * K // 8)
        scales = scale + expert * (2 * N * K // 32)
        x = z + (hit // SLOTS) * z_row
        gate = _restored_dot(x, first, scales, row, K, N, BLOCK_N, WORDS)
        up = _restored_dot(x, first + N * K // 8, scales + N * K // 32, row, K, N, BLOCK_N, WORDS)
        dtype: tl.constexpr = out.dtype.element_ty
        h = situ_rounded(gate, up, beta, linear_beta, dtype)
        tl.store(out + hit * N + row, h.to(dtype), mask=row < N)


@jit
def _down(  # type: ignore[no-untyped-def]
    h, packed, scale, table, mix, out, mix_row, mix_slot,
    SLOTS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    b, row = tl.program_id(1), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dtype: tl.constexpr = out.dtype.element_ty
    total = tl.zeros([BLOCK_N], tl.float32)
    for slot in range(SLOTS):
        expert = tl.load(table + b * SLOTS + slot).to(tl.int64)
        if expert >= 0:
            first, scales = packed + expert * (N * K // 8), scale + expert * (N * K // 32)
            y = _restored_dot(h + (b * SLOTS + slot) * K, first, scales, row, K, N, BLOCK_N, WORDS)
            total += y.to(dtype).to(tl.float32) * tl.load(mix + b * mix_row + slot * mix_slot)
    tl.store(out + b * N + row, total.to(dtype), mask=row < N)


@jit
def _restored_dot(  # type: ignore[no-untyped-def]
    x, packed, scale, row,
    K: tl.constexpr, N: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Rows of a packed matrix [N, K / 8 words] times x [K] -> float32 [BLOCK_N].

    A code's three magnitude bits, moved to bits 22 to 24, are a float32 of 2^-126 times its value, so x is scaled up
    to keep products away from the smallest floats: 2^100 here, the other 2^26 with the group's scale.
    """
    word, inside = tl.arange(0, WORDS), (row < N)[:, None]
    total = tl.zeros([BLOCK_N, WORDS], tl.float32)
    for start in tl.static_range(0, K // 8, WORDS):
        here = start + word < K // 8
        at = packed + row[:, None] * (K // 8) + (start + word)[None, :]
        w = tl.load(at, mask=inside & here[None, :], other=0, eviction_policy="evict_first")
        s_at = scale + row[:, None] * (K // 32) + ((start + word) // 4)[None, :]
        s = tl.load(s_at, mask=inside & here[None, :], other=0)
        part = tl.zeros([BLOCK_N, WORDS], tl.float32)
        for i in tl.static_range(8):
            v = tl.load(x + (start + word) * 8 + i, mask=here, other=0.0).to(tl.float32) * 1.2676506002282294e30
            magnitude = (w << (22 - 4 * i)) if i <= 5 else (w >> (4 * i - 22))
            code = (magnitude & 0x01C00000) | ((w << (28 - 4 * i)) & -0x80000000)
            part += code.to(tl.float32, bitcast=True) * v[None, :]
        total += part * ((s.to(tl.int32) << 23).to(tl.float32, bitcast=True) * 67108864.0)
    return tl.sum(total, 1)
