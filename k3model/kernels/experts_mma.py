"""MXFP4 experts on the tensor cores, each expert read once for all rows that hit it. In, out: as `moe.experts`.

A program has 16 rows of a weight: for gate and up, eight of each. Only rows of x that hit the expert are read. Parts of
a row are dealt out to the warps; for down they are summed once, after all experts, so that no expert's own output is
rounded. Scales up to two are restored exactly, and weights have no larger ones; with one above, results are not finite.
Layouts: `tiles.py`. Out of scope: hits that the device decides (`experts_fma.py`), more than eight rows.
"""

# Gluon reads the kernels' bodies, not Python: tuples grow by adding, and names change their type.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, arg-type, index, no-untyped-def, name-defined"

from __future__ import annotations

import torch

from k3model.kernels import tiles
from k3model.kernels.choices import Choice
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, launch
from k3model.kernels.packed import Hits, Packed
from k3model.kernels.tiles import (
    constexpr,
    constexpr_function,
    gl,
    jit,
    left,
    mma_v2,
    of_last,
    of_middle,
    of_parts,
    right,
    situ_of_halves,
    sums,
)

MAX_ROWS = 8
#: Bytes of a row that one warp takes at a time: four threads a row, 16 bytes each.
CHUNK = constexpr(64)
#: Bytes of one thread: a group of 32 codes with a scale of its own.
GROUP = constexpr(16)
#: The same chunk in columns. A row is whole chunks; they need not come out even over the warps.
COLUMNS = 128

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
    return tiles.found and shapes and hits.experts is not None and z.dtype == torch.bfloat16


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
    pairs, (up, down) = z.view(torch.int32), choices
    _gate_up[(inner // 8, listed)](
        pairs, packed.w13, packed.w13_scale, hits.experts, hits.slots, h, pairs.stride(0), beta, linear_beta,
        K=latent, N=inner, B=batch, AHEAD=_ahead(up, latent), PARTS=up.warps, num_warps=up.warps, **launch(pdl),
    )  # fmt: skip
    _down[(latent // 16,)](
        h.view(torch.int32), packed.w2, packed.w2_scale, hits.experts, hits.slots, mix, out,
        mix.stride(0), mix.stride(1), listed,
        K=inner, N=latent, B=batch, AHEAD=_ahead(down, inner), PARTS=down.warps, num_warps=down.warps, **launch(pdl),
    )  # fmt: skip
    return out


def _ahead(blocks: Choice, columns: int) -> int:
    """Chunks that each warp asks for before it uses the first: no more than it has."""
    return min(blocks.ahead, -(-columns // (COLUMNS * blocks.warps)))


@constexpr_function
def _by_group(parts):
    """`left` with its bytes as groups: [part, row, group, byte]."""
    bits = parts.bit_length() - 1
    return gl.DistributedLinearLayout(
        reg_bases=[*([0, 0, 0, 1 << i] for i in range(4)), [0, 8, 0, 0]],
        lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]],
        warp_bases=[[1 << i, 0, 0, 0] for i in range(bits)],
        block_bases=[],
        shape=[parts, 16, 4, 16],
    )


@jit
def _gate_up(
    z, packed, scale, listed_experts, slots, out, z_row, beta, linear_beta,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    j, listed = gl.program_id(1), gl.num_programs(1)
    expert = gl.load(listed_experts + j).to(gl.int64)
    own: gl.constexpr = left(PARTS, GROUP)
    scales: gl.constexpr = gl.SliceLayout(3, _by_group(PARTS))
    r, r_scale = of_middle(own, 16), of_middle(scales, 16)
    first = gl.program_id(0) * 8
    at = packed + expert * (N * K) + _byte((r // 8) * N + first + r % 8, own, CHUNK, K // 2, PARTS)
    scale_at = scale + expert * (N * K // 16)
    scale_at += _byte((r_scale // 8) * N + first + r_scale % 8, scales, CHUNK // GROUP, K // 32, PARTS)
    STEPS: gl.constexpr = (K // 2 + PARTS * CHUNK - 1) // (PARTS * CHUNK)
    asked = ()
    for s in gl.static_range(AHEAD):
        asked = asked + (_ask(at, scale_at, s, True, K, PARTS),)
    if PDL:
        gdc_wait()
    x_layout: gl.constexpr = right(PARTS, GROUP)
    b = of_last(x_layout, 8)
    hit = gl.load(slots + b * listed + j, b < B, -1) >= 0
    x_at = z + b * z_row + of_parts(x_layout, PARTS) * CHUNK + of_middle(x_layout, CHUNK)
    acc = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
    for s in gl.static_range(STEPS):
        now = asked[0]
        asked = asked[1:]
        if s + AHEAD < STEPS:
            asked = asked + (_ask(at, scale_at, s + AHEAD, True, K, PARTS),)
        acc = _add_product(acc, now, x_at, hit, s, K, PARTS)
    dtype: gl.constexpr = out.dtype.element_ty
    h = situ_of_halves(gl.sum(acc, 0), beta, linear_beta, dtype)
    n = first + gl.arange(0, 8, layout=gl.SliceLayout(1, h.type.layout))[:, None]
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, h.type.layout))[None, :]
    gl.store(out + (j * B + row) * N + n, h.to(dtype), mask=row < B)


@jit
def _down(
    h, packed, scale, listed_experts, slots, mix, out, mix_row, mix_slot, J,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Experts one after the other, ascending; the next one's weights are asked for while this one's are used."""
    if PDL:
        gdc_launch_dependents()
    own: gl.constexpr = left(PARTS, GROUP)
    scales: gl.constexpr = gl.SliceLayout(3, _by_group(PARTS))
    first = gl.program_id(0) * 16
    at = packed + _byte(first + of_middle(own, 16), own, CHUNK, K // 2, PARTS)
    scale_at = scale + _byte(first + of_middle(scales, 16), scales, CHUNK // GROUP, K // 32, PARTS)
    expert = gl.load(listed_experts).to(gl.int64)
    here, scales_here = at + expert * (N * K // 2), scale_at + expert * (N * K // 32)
    STEPS: gl.constexpr = (K // 2 + PARTS * CHUNK - 1) // (PARTS * CHUNK)
    asked = ()
    for s in gl.static_range(AHEAD):
        asked = asked + (_ask(here, scales_here, s, True, K, PARTS),)
    if PDL:
        gdc_wait()
    x_layout: gl.constexpr = right(PARTS, GROUP)
    b = of_last(x_layout, 8)
    x_at = h + b * (K // 2) + of_parts(x_layout, PARTS) * CHUNK + of_middle(x_layout, CHUNK)
    row = of_last(sums(PARTS), 8)
    total = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
    for j in range(J):
        more = j + 1 < J
        expert = gl.load(listed_experts + j + 1, more, 0).to(gl.int64)
        there, scales_there = at + expert * (N * K // 2), scale_at + expert * (N * K // 32)
        hit = gl.load(slots + b * J + j, b < B, -1) >= 0
        acc = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
        for s in gl.static_range(STEPS):
            now = asked[0]
            asked = asked[1:]
            if s + AHEAD < STEPS:
                asked = asked + (_ask(here, scales_here, s + AHEAD, True, K, PARTS),)
            else:
                asked = asked + (_ask(there, scales_there, s + AHEAD - STEPS, more, K, PARTS),)
            acc = _add_product(acc, now, x_at, hit, s, K, PARTS)
        slot = gl.load(slots + row * J + j, row < B, -1)
        total += acc * gl.load(mix + row * mix_row + slot * mix_slot, slot >= 0, 0.0)
        here, scales_here, x_at = there, scales_there, x_at + B * (K // 2)
    y = gl.sum(total, 0)
    n = first + gl.arange(0, 16, layout=gl.SliceLayout(1, y.type.layout))[:, None]
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, y.type.layout))[None, :]
    gl.store(out + column * N + n, y.to(out.dtype.element_ty), mask=column < B)


@jit
def _byte(row, layout: gl.constexpr, SIZE: gl.constexpr, PITCH: gl.constexpr, PARTS: gl.constexpr):
    """Where each value of the first chunk lies: [PARTS, 16, SIZE]; a row has PITCH of them."""
    return row * PITCH + of_parts(layout, PARTS) * SIZE + of_last(layout, SIZE)


@jit
def _ask(at, scale_at, step, wanted, K: gl.constexpr, PARTS: gl.constexpr):
    """Bytes [part, row, CHUNK] of one step and their scales, one a group, as bfloat16's exponent in an int32."""
    start: gl.constexpr = step * PARTS * CHUNK
    own: gl.constexpr = left(PARTS, GROUP)
    scales: gl.constexpr = gl.SliceLayout(3, _by_group(PARTS))
    whole: gl.constexpr = start + PARTS * CHUNK <= K // 2
    inside = wanted & ((of_parts(own, PARTS) * CHUNK + start < K // 2) if not whole else True)
    scales_inside = wanted & ((of_parts(scales, PARTS) * CHUNK + start < K // 2) if not whole else True)
    codes = gl.load(at + start, inside, 0, eviction_policy="evict_first")
    return codes, gl.load(scale_at + start // GROUP, scales_inside, 0)


@jit
def _add_product(acc, now, x_at, hit, step, K: gl.constexpr, PARTS: gl.constexpr):
    """acc [part, 16, 8] plus one step's product with x, words of two neighbouring columns."""
    start: gl.constexpr = step * PARTS * CHUNK
    x_layout: gl.constexpr = right(PARTS, GROUP)
    if start + PARTS * CHUNK > K // 2:
        hit = hit & (of_parts(x_layout, PARTS) * CHUNK + start < K // 2)
    words = gl.load(x_at + start, hit, 0)
    even, odd = gl.inline_asm_elementwise(
        DEAL, "=r,=r,=r,=r,r,r,r,r", [words], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
    )
    # 2^126 times the scale; a scale above two makes it infinite, which shows.
    code = (gl.minimum(now[1].to(gl.int32) + 126, 255) << 7).to(gl.int16).to(gl.bfloat16, bitcast=True)
    by_byte = gl.expand_dims(code, 3).broadcast_to([PARTS, 16, CHUNK // GROUP, GROUP])
    factor = gl.convert_layout(gl.reshape(by_byte, [PARTS, 16, CHUNK]), left(PARTS, GROUP), assert_trivial=True)
    low, high = gl.inline_asm_elementwise(
        RESTORE, "=r,=r,=r,=r,r,r,r", [now[0], factor], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
    )
    return mma_v2(high, odd, mma_v2(low, even, acc))
