"""MXFP4 experts on the tensor cores, each expert read once for all rows that hit it. In, out: as `moe.experts`.

Written in Gluon, Triton's language of explicit layouts, because the point is where bytes lie. A thread loads 16 bytes
of a row, which are one group of 32 codes, and restores them in place as its share of a 16 x 16 operand: no trip
through shared memory. Products sum over columns in any order, so columns go in the order in which codes come out of a
word, and x is taken in the same order. Parts of a row are dealt out to the warps and summed at the end.
A program has 16 rows of a weight: for gate and up, eight of each. Scales up to two are restored exactly, and weights
have no larger ones; with one above, results are not finite.
Out of scope: hits that the device decides (`experts_fma.py`), more than eight rows.
"""

# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, arg-type, index, no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from k3model.kernels.choices import Choice
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, interpreted, launch
from k3model.kernels.packed import Hits, Packed

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.ampere import mma_v2

    jit: Callable[..., Any] = gluon.jit
    constexpr: Callable[..., Any] = gl.constexpr
    found = not interpreted()
except ImportError:  # no Triton, or one from before Gluon
    gl = mma_v2 = None
    found = False

    def jit(kernel: Callable[..., Any]) -> Any:
        """Keeps the name."""
        return kernel

    def constexpr(value: Any) -> Any:
        """Keeps the value."""
        return value


if gl is not None:

    @gluon.constexpr_function
    def _mma_layout(parts):
        return gl.NVMMADistributedLayout([2, 0], [parts, 1, 1], [1, 16, 8])

    @gluon.constexpr_function
    def _left(parts):
        return gl.DotOperandLayout(0, _mma_layout(parts), 16)

    @gluon.constexpr_function
    def _by_group(parts):
        """`_left` with its bytes as groups of 16: [part, row, group, byte]."""
        bits = parts.bit_length() - 1
        return gl.DistributedLinearLayout(
            reg_bases=[*([0, 0, 0, 1 << i] for i in range(4)), [0, 8, 0, 0], [0, 0, 4, 0]],
            lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]],
            warp_bases=[[1 << i, 0, 0, 0] for i in range(bits)],
            block_bases=[],
            shape=[parts, 16, 8, 16],
        )


MAX_ROWS = 8
#: Bytes of a row that one warp takes at a time: four threads a row, twice 16 bytes each.
CHUNK = constexpr(128)
#: The same in columns. A row is whole chunks; they need not come out even over the warps.
COLUMNS = 256

#: A word of four bytes (two codes each) and the group's factor, twice -> four bfloat16 pairs: low codes of bytes 0, 2
#: and 1, 3, then the high ones. Magnitude bits go to bits 6 to 8, the sign to bit 15: that is 2^-126 times the value,
#: exact also where it is subnormal, and the factor holds the other 2^126.
RESTORE = constexpr("""
{
.reg .b32 m, s;
shl.b32 m, $4, 6; and.b32 m, m, 0x01c001c0; shl.b32 s, $4, 12; and.b32 s, s, 0x80008000; or.b32 m, m, s;
mul.bf16x2 $0, m, $5;
shr.u32 m, $4, 2; and.b32 m, m, 0x01c001c0; shl.b32 s, $4, 4; and.b32 s, s, 0x80008000; or.b32 m, m, s;
mul.bf16x2 $1, m, $6;
shl.b32 m, $4, 2; and.b32 m, m, 0x01c001c0; shl.b32 s, $4, 8; and.b32 s, s, 0x80008000; or.b32 m, m, s;
mul.bf16x2 $2, m, $5;
shr.u32 m, $4, 6; and.b32 m, m, 0x01c001c0; and.b32 s, $4, 0x80008000; or.b32 m, m, s;
mul.bf16x2 $3, m, $6;
}
""")
#: Four words of two neighbouring columns -> even columns, then odd ones, in the order that RESTORE leaves.
DEAL = constexpr("""
{
prmt.b32 $0, $4, $6, 0x5410; prmt.b32 $1, $5, $7, 0x5410; prmt.b32 $2, $4, $6, 0x7632; prmt.b32 $3, $5, $7, 0x7632;
}
""")


def fits(z: torch.Tensor, hits: Hits, packed: Packed) -> bool:
    """Whether these kernels can run: hits known in advance, bfloat16, whole chunks of columns, at most eight rows."""
    latent, inner = packed.w2.shape[1], packed.w13.shape[2]
    shapes = z.shape[0] <= MAX_ROWS and latent % COLUMNS == 0 and inner % COLUMNS == 0
    return found and shapes and hits.experts is not None and z.dtype == torch.bfloat16


def experts(
    z: torch.Tensor,
    mix: torch.Tensor,
    hits: Hits,
    packed: Packed,
    beta: float,
    linear_beta: float,
    choices: tuple[Choice, Choice],
    *,
    pdl: bool,
) -> torch.Tensor:
    """Two launches: gate and up with SiTU for every expert that is hit, then down with the weighted sum over them."""
    assert hits.experts is not None
    assert hits.slots is not None
    (batch, listed), latent, inner = hits.slots.shape, z.shape[1], packed.w13.shape[2]
    h = torch.empty(listed, batch, inner, device=z.device, dtype=z.dtype)
    out = torch.empty(batch, latent, device=z.device, dtype=z.dtype)
    pairs = z.view(torch.int32)
    first, second = (choice.warps for choice in choices)
    _gate_up[(inner // 8, listed)](
        pairs, packed.w13, packed.w13_scale, hits.experts, h, pairs.stride(0), beta, linear_beta,
        K=latent, N=inner, B=batch, PARTS=first, num_warps=first, **launch(pdl),
    )  # fmt: skip
    _down[(latent // 16,)](
        h.view(torch.int32), packed.w2, packed.w2_scale, hits.experts, hits.slots, mix, out,
        mix.stride(0), mix.stride(1),
        listed, K=inner, N=latent, B=batch, PARTS=second, num_warps=second, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _gate_up(
    z, packed, scale, listed_experts, out, z_row, beta, linear_beta,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    j = gl.program_id(1)
    expert = gl.load(listed_experts + j).to(gl.int64)
    left: gl.constexpr = _left(PARTS)
    r = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, left)))[None, :, None]
    row = (r // 8) * N + gl.program_id(0) * 8 + r % 8
    tiles = _weights(packed + expert * (N * K), row, True, K, PARTS)
    r4 = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, _by_group(PARTS)))))[
        None, :, None
    ]
    row4 = (r4 // 8) * N + gl.program_id(0) * 8 + r4 % 8
    scales = _scales(scale + expert * (N * K // 16), row4, True, K, PARTS)
    if PDL:
        gdc_wait()
    y = _product(z, z_row, tiles, scales, K, B, PARTS)
    halves = gl.reshape(y, [2, 8, 8])
    layout: gl.constexpr = halves.type.layout
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    dtype: gl.constexpr = out.dtype.element_ty
    a = gl.sum(gl.where(half == 0, halves, 0.0), 0).to(dtype).to(gl.float32)
    u = gl.sum(gl.where(half == 1, halves, 0.0), 0).to(dtype).to(gl.float32)
    h = (2.0 * _sigmoid(2.0 * a / beta) - 1.0) * _sigmoid(a) * (2.0 * _sigmoid(2.0 * u / linear_beta) - 1.0)
    at: gl.constexpr = h.type.layout
    n = gl.program_id(0) * 8 + gl.arange(0, 8, layout=gl.SliceLayout(1, at))[:, None]
    b = gl.arange(0, 8, layout=gl.SliceLayout(0, at))[None, :]
    gl.store(out + (j * B + b) * N + n, (h * (beta * linear_beta)).to(dtype), mask=b < B)


@jit
def _down(
    h, packed, scale, listed_experts, slots, mix, out, mix_row, mix_slot,
    J, K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Experts one after the other, ascending; the next one's weights are asked for before this one's are used."""
    if PDL:
        gdc_launch_dependents()
    left: gl.constexpr = _left(PARTS)
    row = gl.program_id(0) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, left)))[None, :, None]
    slice4: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, _by_group(PARTS))))
    row4 = gl.program_id(0) * 16 + gl.arange(0, 16, layout=slice4)[None, :, None]
    expert = gl.load(listed_experts).to(gl.int64)
    tiles = _weights(packed + expert * (N * K // 2), row, True, K, PARTS)
    scales = _scales(scale + expert * (N * K // 32), row4, True, K, PARTS)
    if PDL:
        gdc_wait()
    at: gl.constexpr = gl.SliceLayout(0, _mma_layout(PARTS))
    b = gl.arange(0, 8, layout=gl.SliceLayout(0, at))
    total = gl.zeros([16, 8], gl.float32, layout=at)
    dtype: gl.constexpr = out.dtype.element_ty
    for j in range(J):
        now, now_scales = tiles, scales
        more = j + 1 < J
        expert = gl.load(listed_experts + j + 1, mask=more, other=0).to(gl.int64)
        tiles = _weights(packed + expert * (N * K // 2), row, more, K, PARTS)
        scales = _scales(scale + expert * (N * K // 32), row4, more, K, PARTS)
        y = _product(h + j * B * (K // 2), K // 2, now, now_scales, K, B, PARTS).to(dtype).to(gl.float32)
        slot = gl.load(slots + b * J + j, mask=b < B, other=-1)
        share = gl.load(mix + b * mix_row + slot * mix_slot, mask=slot >= 0, other=0.0)
        total += gl.where((slot >= 0)[None, :], y * share[None, :], 0.0)
    n = gl.program_id(0) * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, at))
    gl.store(out + b[None, :] * N + n[:, None], total.to(dtype), mask=(b < B)[None, :])


@jit
def _weights(packed, row, wanted, K: gl.constexpr, PARTS: gl.constexpr):
    """All of 16 rows' bytes, a tuple of [part, row, CHUNK] as operands; `row` [1, 16, 1]."""
    left: gl.constexpr = _left(PARTS)
    part = gl.arange(0, PARTS, layout=gl.SliceLayout(1, gl.SliceLayout(2, left)))[:, None, None]
    byte = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, gl.SliceLayout(1, left)))[None, None, :]
    at = packed + row * (K // 2) + part * CHUNK + byte
    tiles = ()
    for start in gl.static_range(0, K // 2, PARTS * CHUNK):
        inside = (part * CHUNK + start < K // 2) & (row >= 0) & (byte >= 0) & wanted
        tiles = tiles + (gl.load(at + start, mask=inside, other=0, eviction_policy="evict_first"),)
    return tiles


@jit
def _scales(scale, row, wanted, K: gl.constexpr, PARTS: gl.constexpr):
    """The same of the scales, one a group of 16 bytes: [part, row, CHUNK / 16] as bfloat16; `row` [1, 16, 1]."""
    layout: gl.constexpr = gl.SliceLayout(3, _by_group(PARTS))
    part = gl.arange(0, PARTS, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    group = gl.arange(0, CHUNK // 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    at = scale + row * (K // 32) + part * (CHUNK // 16) + group
    found_scales = ()
    for start in gl.static_range(0, K // 32, PARTS * (CHUNK // 16)):
        inside = (part * (CHUNK // 16) + start < K // 32) & (row >= 0) & (group >= 0) & wanted
        found_scales = found_scales + (gl.load(at + start, mask=inside, other=0),)
    return found_scales


@jit
def _product(x, x_row, tiles, scales, K: gl.constexpr, B: gl.constexpr, PARTS: gl.constexpr):
    """[16 rows, 8 columns of x] in float32. x [B, K / 2] words of two neighbouring columns."""
    mma: gl.constexpr = _mma_layout(PARTS)
    left: gl.constexpr = _left(PARTS)
    right: gl.constexpr = gl.DotOperandLayout(1, mma, 16)
    part = gl.arange(0, PARTS, layout=gl.SliceLayout(1, gl.SliceLayout(2, right)))[:, None, None]
    byte = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, gl.SliceLayout(2, right)))[None, :, None]
    b = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(1, right)))[None, None, :]
    at = x + b * x_row + part * CHUNK + byte
    acc = gl.zeros([PARTS, 16, 8], gl.float32, layout=mma)
    for s in gl.static_range(len(tiles)):
        inside = (b < B) & (part * CHUNK + s * PARTS * CHUNK < K // 2) & (byte >= 0)
        words = gl.load(at + s * PARTS * CHUNK, mask=inside, other=0)
        even, odd = gl.inline_asm_elementwise(
            DEAL, "=r,=r,=r,=r,r,r,r,r", [words], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
        )
        # 2^126 times the scale; a scale above two makes it infinite, which shows.
        code = (gl.minimum(scales[s].to(gl.int32) + 126, 255) << 7).to(gl.int16).to(gl.bfloat16, bitcast=True)
        spread = gl.reshape(gl.expand_dims(code, 3).broadcast_to([PARTS, 16, CHUNK // 16, 16]), [PARTS, 16, CHUNK])
        factor = gl.convert_layout(spread, left, assert_trivial=True)
        low, high = gl.inline_asm_elementwise(
            RESTORE, "=r,=r,=r,=r,r,r,r", [tiles[s], factor], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
        )
        acc = mma_v2(low, even, acc)
        acc = mma_v2(high, odd, acc)
    return gl.sum(acc, 0)


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))
