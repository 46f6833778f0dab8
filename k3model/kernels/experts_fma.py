"""MXFP4 experts on the plain cores, every slot of every row for itself. In, out: as `moe.experts`.

A program has a few rows of a weight and restores its codes in registers. It serves what `experts_mma.py` does not: hits
that the router decides on the device, other dtypes, and Triton's interpreter.
"""

from __future__ import annotations

import torch

from k3model.kernels.choices import Choice
from k3model.kernels.gemv_fma import situ_rounded
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, tl
from k3model.kernels.packed import Packed


def experts(
    z: torch.Tensor,
    mix: torch.Tensor,
    table: torch.Tensor,
    packed: Packed,
    beta: float,
    linear_beta: float,
    choices: tuple[Choice, Choice],
    *,
    pdl: bool,
) -> torch.Tensor:
    """Two launches: gate and up with SiTU, then down with the weighted sum over slots."""
    (batch, slots), (_, _, inner, _), latent = table.shape, packed.w13.shape, z.shape[1]
    h = torch.empty(batch, slots, inner, device=z.device, dtype=z.dtype)
    out = torch.empty(batch, latent, device=z.device, dtype=z.dtype)
    first, second = choices
    _gate_up[(-(-inner // first.block_n), batch * slots)](
        z, packed.w13.view(torch.int32), packed.w13_scale, table, h, z.stride(0), beta, linear_beta,
        SLOTS=slots, K=latent, N=inner, BLOCK_N=first.block_n, WORDS=first.block_k // 8, num_warps=first.warps,
        **launch(pdl),
    )  # fmt: skip
    _down[(-(-latent // second.block_n), batch)](
        h, packed.w2.view(torch.int32), packed.w2_scale, table, mix, out, mix.stride(0), mix.stride(1),
        SLOTS=slots, K=inner, N=latent, BLOCK_N=second.block_n, WORDS=second.block_k // 8, num_warps=second.warps,
        **launch(pdl),
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
