"""MXFP4 experts on the tensor cores, each expert read once for all rows that hit it. In, out: as `moe.experts`.

A program has 16 rows of a weight: for gate and up, eight of each. Only rows of x that hit the expert are read: in the
place of the others stands one that hits, and what comes of it is not used. Parts of a row are dealt out to the warps;
for down they are summed once, after all experts, so that no expert's own output is rounded. Scales up to two are
restored exactly, and weights have no larger ones; with one above, results are not finite.
Layouts: `tiles.py`, of the codes `mxfp4.interleave`. Out of scope: more than eight rows, hits that the device decides
(`experts_fma.py`).
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
    fence,
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
#: Words of a row that one warp takes at a time: four threads a row, 16 bytes each.
CHUNK = constexpr(16)
#: Words of one thread: a group of 32 codes with a scale of its own.
GROUP = constexpr(4)
#: The same chunk in columns. A row is whole chunks; they need not come out even over the warps.
COLUMNS = 128
#: Columns that a thread multiplies at a time, half a group, and those of a chunk.
HALF = constexpr(16)
HALVES = constexpr(64)

#: A word as `mxfp4.interleave` leaves it (four times the same) and the group's factor -> four bfloat16 pairs of
#: neighbouring columns, two in each half of the group. Nothing, a rotation, or a product that shifts three ways brings
#: a pair's magnitude bits to bits 6 to 8 of each half and its signs to bit 15: that is 2^-126 times the values, exact
#: also where it is subnormal, and the factor holds the other 2^126.
RESTORE = constexpr("""
{
.reg .b32 m;
and.b32 m, $4, 0x81c081c0;
mul.bf16x2 $0, m, $8;
shf.l.wrap.b32 m, $4, $4, 10; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $1, m, $8;
shf.l.wrap.b32 m, $4, $4, 13; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $2, m, $8;
and.b32 m, $4, 0x001b001b; mul.lo.u32 m, m, 0x1084; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $3, m, $8;
}
""")


def fits(latent: int, inner: int, dtype: torch.dtype) -> bool:
    """Whether these kernels can run: bfloat16, whole chunks of columns."""
    return tiles.found and latent % COLUMNS == 0 and inner % COLUMNS == 0 and dtype == torch.bfloat16


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
    assert packed.interleaved
    assert hits.experts is not None
    assert hits.slots is not None
    assert hits.reads is not None
    (batch, listed), latent, inner = hits.slots.shape, z.shape[1], packed.w13.shape[2]
    h = torch.empty(listed, batch, inner, device=z.device, dtype=z.dtype)
    out = torch.empty(batch, latent, device=z.device, dtype=z.dtype)
    up, down = choices
    _gate_up[(inner // 8, listed)](
        z, packed.w13.view(torch.int32), packed.w13_scale, hits.experts, hits.reads, h, z.stride(0), beta, linear_beta,
        K=latent, N=inner, B=batch, AHEAD=_ahead(up, latent), PARTS=up.warps, num_warps=up.warps, **launch(pdl),
    )  # fmt: skip
    _down[(latent // 16,)](
        h, packed.w2.view(torch.int32), packed.w2_scale, hits.experts, hits.slots, hits.reads, mix, out,
        mix.stride(0), mix.stride(1), listed,
        K=inner, N=latent, B=batch, AHEAD=_ahead(down, inner), PARTS=down.warps, num_warps=down.warps, **launch(pdl),
    )  # fmt: skip
    return out


def _ahead(blocks: Choice, columns: int) -> int:
    """Chunks that each warp asks for before it uses the first: no more than it has."""
    return min(blocks.ahead, -(-columns // (COLUMNS * blocks.warps)))


@constexpr_function
def _values(parts, each):
    """[part, row, value, column]: half a group's columns a thread, of which each word or scale covers `each`."""
    bits, own = parts.bit_length() - 1, 16 // each
    return gl.DistributedLinearLayout(
        reg_bases=[
            *([0, 0, 0, 1 << i] for i in range(each.bit_length() - 1)),
            *([0, 0, 1 << i, 0] for i in range(own.bit_length() - 1)),
            [0, 8, 0, 0],
        ],
        lane_bases=[[0, 0, own, 0], [0, 0, 2 * own, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]],
        warp_bases=[[1 << i, 0, 0, 0] for i in range(bits)],
        block_bases=[],
        shape=[parts, 16, 4 * own, each],
    )


@constexpr_function
def _words(parts):
    """Words [part, row, CHUNK]: four neighbouring ones a thread, of those columns that `left` gives it."""
    return gl.SliceLayout(3, _values(parts, 4))


@constexpr_function
def _scales(parts):
    """Scales [part, row, CHUNK / GROUP], likewise."""
    return gl.SliceLayout(3, _values(parts, 16))


@jit
def _gate_up(
    z, packed, scale, listed_experts, reads, out, z_row, beta, linear_beta,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
    j, listed = gl.program_id(1), gl.num_programs(1)
    expert = gl.load(listed_experts + j).to(gl.int64)
    r, r_scale = of_middle(_words(PARTS), 16), of_middle(_scales(PARTS), 16)
    first = gl.program_id(0) * 8
    at = packed + expert * (N * K // 4) + _word((r // 8) * N + first + r % 8, K, PARTS)
    scale_at = scale + expert * (N * K // 16) + _scale((r_scale // 8) * N + first + r_scale % 8, K, PARTS)
    STEPS: gl.constexpr = (K // 8 + PARTS * CHUNK - 1) // (PARTS * CHUNK)
    asked = ()
    for s in gl.static_range(AHEAD):
        asked = asked + (_ask(at, scale_at, s, None, K, PARTS),)
    x_at = z + gl.load(reads + of_last(right(PARTS, HALF), 8) * listed + j) * z_row + _column(PARTS)
    if PDL:
        gdc_wait()
    acc = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
    for s in gl.static_range(STEPS):
        now = asked[0]
        asked = asked[1:]
        if s + AHEAD < STEPS:
            asked = asked + (_ask(at, scale_at, s + AHEAD, None, K, PARTS),)
        acc = _add_product(acc, now, x_at, s, K, PARTS)
    dtype: gl.constexpr = out.dtype.element_ty
    h = situ_of_halves(gl.sum(acc, 0), beta, linear_beta, dtype)
    n = first + gl.arange(0, 8, layout=gl.SliceLayout(1, h.type.layout))[:, None]
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, h.type.layout))[None, :]
    gl.store(out + (j * B + row) * N + n, h.to(dtype), mask=row < B)


@jit
def _down(
    h, packed, scale, listed_experts, slots, reads, mix, out, mix_row, mix_slot, J,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Experts one after the other, ascending; the next one's weights are asked for while this one's are used."""
    if PDL:
        gdc_launch_dependents()
    first = gl.program_id(0) * 16
    at = packed + _word(first + of_middle(_words(PARTS), 16), K, PARTS)
    scale_at = scale + _scale(first + of_middle(_scales(PARTS), 16), K, PARTS)
    expert = gl.load(listed_experts).to(gl.int64)
    here, scales_here = at + expert * (N * K // 8), scale_at + expert * (N * K // 32)
    STEPS: gl.constexpr = (K // 8 + PARTS * CHUNK - 1) // (PARTS * CHUNK)
    asked = ()
    for s in gl.static_range(AHEAD):
        asked = asked + (_ask(here, scales_here, s, None, K, PARTS),)
    read_at = reads + of_last(right(PARTS, HALF), 8) * J
    read, following = gl.load(read_at), gl.load(listed_experts + 1, J > 1, 0)
    x_at = h + _column(PARTS)
    row = of_last(sums(PARTS), 8)
    total = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
    if PDL:
        gdc_wait()
    for j in range(J):
        more = j + 1 < J
        expert = following.to(gl.int64)
        there, scales_there = at + expert * (N * K // 8), scale_at + expert * (N * K // 32)
        x_here = x_at + read * K
        read, following = gl.load(read_at + j + 1, more, 0), gl.load(listed_experts + j + 2, j + 2 < J, 0)
        acc = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
        for s in gl.static_range(STEPS):
            now = asked[0]
            asked = asked[1:]
            if s + AHEAD < STEPS:
                asked = asked + (_ask(here, scales_here, s + AHEAD, None, K, PARTS),)
            else:
                asked = asked + (_ask(there, scales_there, s + AHEAD - STEPS, more, K, PARTS),)
            acc = _add_product(acc, now, x_here, s, K, PARTS)
        slot = gl.load(slots + row * J + j, row < B, -1)
        weight = gl.load(mix + row * mix_row + slot * mix_slot, slot >= 0, 0.0)
        # What rows that miss this expert have here is another row's.
        total += gl.where(slot >= 0, acc * weight, 0.0)
        here, scales_here, x_at = there, scales_there, x_at + B * K
    y = gl.sum(total, 0)
    n = first + gl.arange(0, 16, layout=gl.SliceLayout(1, y.type.layout))[:, None]
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, y.type.layout))[None, :]
    gl.store(out + column * N + n, y.to(out.dtype.element_ty), mask=column < B)


@jit
def _word(row, K: gl.constexpr, PARTS: gl.constexpr):
    """Where each word of the first chunk lies, in words: [PARTS, 16, CHUNK]."""
    return row * (K // 8) + of_parts(_words(PARTS), PARTS) * CHUNK + of_last(_words(PARTS), CHUNK)


@jit
def _scale(row, K: gl.constexpr, PARTS: gl.constexpr):
    """Where its scales lie: [PARTS, 16, CHUNK / GROUP]."""
    EACH: gl.constexpr = CHUNK // GROUP
    return row * (K // 32) + of_parts(_scales(PARTS), PARTS) * EACH + of_last(_scales(PARTS), EACH)


@jit
def _column(PARTS: gl.constexpr):
    """The columns of the first chunk that belong to first halves of groups: [PARTS, HALVES, 1]."""
    k = of_middle(right(PARTS, HALF), HALVES)
    return of_parts(right(PARTS, HALF), PARTS) * (2 * HALVES) + (k // HALF) * (2 * HALF) + k % HALF


@jit
def _ask(at, scale_at, step, wanted, K: gl.constexpr, PARTS: gl.constexpr):
    """Words and scales of one step; of parts that lie past the row, zeros."""
    start: gl.constexpr = step * PARTS * CHUNK
    if start + PARTS * CHUNK > K // 8:
        inside = of_parts(_words(PARTS), PARTS) * CHUNK + start < K // 8
        scale_inside = of_parts(_scales(PARTS), PARTS) * CHUNK + start < K // 8
        if wanted is not None:
            inside, scale_inside = inside & wanted, scale_inside & wanted
    else:
        inside = wanted
        scale_inside = wanted
    zero: gl.constexpr = 0 if inside is not None else None
    words = gl.load(at + start, inside, zero, eviction_policy="evict_first")
    scales = gl.load(scale_at + start // GROUP, scale_inside, zero)
    fence()
    return words, scales


@jit
def _spread(values, EACH: gl.constexpr, PARTS: gl.constexpr):
    """Each value of [part, row, ...] for all its columns of half a group: as [PARTS, 16, HALVES]."""
    by_column = gl.expand_dims(values, 3).broadcast_to([PARTS, 16, HALVES // EACH, EACH])
    return gl.convert_layout(gl.reshape(by_column, [PARTS, 16, HALVES]), left(PARTS, HALF), assert_trivial=True)


@jit
def _add_product(acc, now, x_at, step, K: gl.constexpr, PARTS: gl.constexpr):
    """acc [part, 16, 8] plus one step's product with x."""
    start: gl.constexpr = step * PARTS * CHUNK * 8
    if start + PARTS * CHUNK * 8 > K:
        inside = of_parts(right(PARTS, HALF), PARTS) * (CHUNK * 8) + start < K
        x = gl.load(x_at + start, inside, 0.0)
        x_second = gl.load(x_at + start + HALF, inside, 0.0)
    else:
        x = gl.load(x_at + start)
        x_second = gl.load(x_at + start + HALF)
    # 2^126 times the scale; a scale above two makes it infinite, which shows.
    code = (gl.minimum(now[1].to(gl.int32) + 126, 255) << 7).to(gl.int16).to(gl.bfloat16, bitcast=True)
    w, w_second = gl.inline_asm_elementwise(
        RESTORE,
        "=r,=r,=r,=r,r,r,r,r,r,r",
        [_spread(now[0], HALF // GROUP, PARTS), _spread(code, HALF, PARTS)],
        dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True,
        pack=4,
    )
    return mma_v2(w_second, x_second, mma_v2(w, x, acc))
