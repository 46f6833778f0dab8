"""MXFP4 experts on the tensor cores, each expert read once for all rows that hit it. In, out: as `moe.experts`.

A program has 16 or 32 rows of a weight, for gate and up half of them each: with 32, x is read half as often. Only rows
of x that hit the expert are read: in the place of the others stands one that hits, and what comes of it is not used.
Parts of a row are dealt out to the warps; for down they are summed once, after all experts, so that no expert's own
output is rounded. Scales up to two are restored exactly, and weights have no larger ones; with one above, results are
not finite.
Layouts: `tiles.py`, of codes and scales `mxfp4.interleave`. Out of scope: more than eight rows, hits that the device
decides (`experts_fma.py`).
"""

# Gluon reads the kernels' bodies, not Python: tuples grow by adding, and names change their type.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, arg-type, index, no-untyped-def, name-defined"

from __future__ import annotations

import torch

from k3model.kernels import tiles
from k3model.kernels.choices import Choice
from k3model.kernels.language import EARLY, LATE, gdc_launch_dependents, gdc_wait, launch
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
#: A chunk: what one warp takes of a row at a time, in columns. A row is whole chunks; they need not come out even over
#: the warps.
COLUMNS = constexpr(128)
#: Groups of a chunk, each of which has a scale: a word for the four of them.
GROUPS = constexpr(4)
#: A tile's words: eight rows of a chunk, a word of scales and sixteen of codes each.
TILE_SCALES, TILE_WORDS = constexpr(8), constexpr(128)
#: Columns of a word, and of a thread: a word of each group.
EACH, TOGETHER = constexpr(8), constexpr(32)

#: A word as `mxfp4.interleave` leaves it (eight times the same) and its group's factor, twice in a register (likewise)
#: -> four bfloat16 pairs of neighbouring columns. Nothing, a rotation, or a product that shifts three ways brings a
#: pair's magnitude bits to bits 6 to 8 of each half and its signs to bit 15: that is 2^-126 times the values, exact
#: also where it is subnormal, and the factor holds the other 2^126.
RESTORE = constexpr("""
{
.reg .b32 m;
and.b32 m, $4, 0x81c081c0;
mul.bf16x2 $0, m, $12;
shf.l.wrap.b32 m, $4, $4, 10; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $1, m, $12;
shf.l.wrap.b32 m, $4, $4, 13; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $2, m, $12;
and.b32 m, $4, 0x001b001b; mul.lo.u32 m, m, 0x1084; and.b32 m, m, 0x81c081c0;
mul.bf16x2 $3, m, $12;
}
""")


def fits(latent: int, inner: int, dtype: torch.dtype) -> bool:
    """Whether these kernels can run: bfloat16, whole chunks of columns."""
    return tiles.found and latent % 128 == 0 and inner % 128 == 0 and dtype == torch.bfloat16


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
    _gate_up[(2 * inner // up.block_n, listed)](
        z, *_in_words(packed.w13, packed.w13_scale), hits.experts, hits.reads, h, z.stride(0), beta, linear_beta,
        K=latent, N=inner, B=batch, **_blocks(up, latent, 16 // up.warps), **launch(pdl, batch),
    )  # fmt: skip
    _down[(latent // down.block_n,)](
        h, *_in_words(packed.w2, packed.w2_scale), hits.experts, hits.slots, hits.reads, mix, out,
        mix.stride(0), mix.stride(1), listed,
        K=inner, N=latent, B=batch, **_blocks(down, inner, 2), **launch(pdl, batch),
    )  # fmt: skip
    return out


def _in_words(*packed: torch.Tensor) -> list[torch.Tensor]:
    return [part.view(torch.int32) for part in packed]


def _blocks(choice: Choice, columns: int, sharing: int) -> dict[str, int]:
    """As many registers as let so many programs share a multiprocessor.

    A warp asks for no more chunks before it uses the first than it has.
    """
    warps, steps = choice.warps, -(-columns // (128 * choice.warps))
    blocks = {"ROWS": choice.block_n, "PARTS": warps, "AHEAD": min(choice.ahead, steps)}
    return {**blocks, "num_warps": warps, "maxnreg": min(255, 2048 // (sharing * warps))}


@constexpr_function
def _columns(parts, rows):
    """[part, row, quarter, group, column of a word]: those that `left` gives a thread."""
    return gl.DistributedLinearLayout(
        reg_bases=[
            *([0, 0, 0, 0, 1 << i] for i in range(3)),
            *([0, 0, 0, 1 << i, 0] for i in range(2)),
            *([0, 8 << i, 0, 0, 0] for i in range(rows // 16)),
        ],
        lane_bases=[*([0, 0, 1 << i, 0, 0] for i in range(2)), *([0, 1 << i, 0, 0, 0] for i in range(3))],
        warp_bases=[[1 << i, 0, 0, 0, 0] for i in range(parts.bit_length() - 1)],
        block_bases=[],
        shape=[parts, rows, 4, 4, 8],
    )


@constexpr_function
def _words(parts, rows):
    """[part, row, quarter, group]."""
    return gl.SliceLayout(4, _columns(parts, rows))


@constexpr_function
def _scales(parts, rows):
    """[part, row, group], the same in all four quarters."""
    return gl.SliceLayout(2, _words(parts, rows))


@jit
def _gate_up(
    z, packed, scale, listed_experts, reads, out, z_row, beta, linear_beta,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr,
    ROWS: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    if PDL == EARLY:
        gdc_launch_dependents()
    HALF: gl.constexpr = ROWS // 2
    j, listed = gl.program_id(1), gl.num_programs(1)
    expert = gl.load(listed_experts + j).to(gl.int64)
    first = gl.program_id(0) * HALF
    r = of_middle(_scales(PARTS, ROWS), ROWS)
    block = (r // HALF) * (N // 8) + r % HALF // 8
    at, scale_at = _places(packed, scale, expert * (2 * N) + first, block, K, PARTS)
    STEPS: gl.constexpr = (K + PARTS * COLUMNS - 1) // (PARTS * COLUMNS)
    asked = _ask_first(at, scale_at, AHEAD, K, PARTS)
    x_at = z + _for_x(gl.load(reads + _rows(PARTS) * listed + j), PARTS) * z_row + _column(PARTS)
    fence()
    if PDL:
        gdc_wait()
    following_x = _ask_x(x_at, 0, K, PARTS)
    acc = gl.zeros([PARTS, ROWS, 8], gl.float32, layout=sums(PARTS))
    for s in gl.static_range(STEPS):
        now, x = asked[0], following_x
        asked = asked[1:]
        if s + AHEAD < STEPS:
            asked = asked + (_ask(at, scale_at, s + AHEAD, None, K, PARTS),)
        if s + 1 < STEPS:
            following_x = _ask_x(x_at, s + 1, K, PARTS)
        fence()
        acc = mma_v2(_restored(now, PARTS), x, acc)
    if PDL == LATE:
        gdc_launch_dependents()
    dtype: gl.constexpr = out.dtype.element_ty
    h = situ_of_halves(gl.sum(acc, 0), beta, linear_beta, dtype)
    n = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, h.type.layout))[:, None]
    row = gl.arange(0, 8, layout=gl.SliceLayout(0, h.type.layout))[None, :]
    gl.store(out + (j * B + row) * N + n, h.to(dtype), mask=row < B)


@jit
def _down(
    h, packed, scale, listed_experts, slots, reads, mix, out, mix_row, mix_slot, J,
    K: gl.constexpr, N: gl.constexpr, B: gl.constexpr,
    ROWS: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Experts one after the other, ascending; what the next one needs is asked for while this one's is used."""
    if PDL == EARLY:
        gdc_launch_dependents()
    first = gl.program_id(0) * ROWS
    block = of_middle(_scales(PARTS, ROWS), ROWS) // 8
    expert = gl.load(listed_experts)
    here, scales_here = _places(packed, scale, expert.to(gl.int64) * N + first, block, K, PARTS)
    STEPS: gl.constexpr = (K + PARTS * COLUMNS - 1) // (PARTS * COLUMNS)
    asked = _ask_first(here, scales_here, AHEAD, K, PARTS)
    row = of_last(sums(PARTS), 8)
    read_at, slot_at = reads + _rows(PARTS) * J, slots + row * J
    x_here = h + _for_x(gl.load(read_at), PARTS) * K + _column(PARTS)
    read, following = gl.load(read_at + 1, J > 1, 0), gl.load(listed_experts + 1, J > 1, 0)
    slot = gl.load(slot_at, row < B, -1)
    total = gl.zeros([PARTS, ROWS, 8], gl.float32, layout=sums(PARTS))
    fence()
    if PDL:
        gdc_wait()
    following_x = _ask_x(x_here, 0, K, PARTS)
    for j in range(J):
        more = j + 1 < J
        here, scales_here = _places(packed, scale, expert.to(gl.int64) * N + first, block, K, PARTS)
        there, scales_there = _places(packed, scale, following.to(gl.int64) * N + first, block, K, PARTS)
        expert = following
        # After the last expert comes its first row once more, which is not used.
        x_there = h + (gl.where(more, j + 1, j) * B + _for_x(read, PARTS)) * K + _column(PARTS)
        read, following = gl.load(read_at + j + 2, j + 2 < J, 0), gl.load(listed_experts + j + 2, j + 2 < J, 0)
        weight = gl.load(mix + row * mix_row + slot * mix_slot, slot >= 0, 0.0)
        next_slot = gl.load(slot_at + j + 1, more & (row < B), -1)
        acc = gl.zeros([PARTS, ROWS, 8], gl.float32, layout=sums(PARTS))
        for s in gl.static_range(STEPS):
            now, x = asked[0], following_x
            asked = asked[1:]
            if s + AHEAD < STEPS:
                asked = asked + (_ask(here, scales_here, s + AHEAD, None, K, PARTS),)
            else:
                asked = asked + (_ask(there, scales_there, s + AHEAD - STEPS, more, K, PARTS),)
            following_x = _ask_x(x_here, s + 1, K, PARTS) if s + 1 < STEPS else _ask_x(x_there, 0, K, PARTS)
            fence()
            acc = mma_v2(_restored(now, PARTS), x, acc)
        # What rows that miss this expert have here is another row's.
        total += gl.where(slot >= 0, acc * weight, 0.0)
        x_here, slot = x_there, next_slot
    if PDL == LATE:
        gdc_launch_dependents()
    y = gl.sum(total, 0)
    n = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, y.type.layout))[:, None]
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, y.type.layout))[None, :]
    gl.store(out + column * N + n, y.to(out.dtype.element_ty), mask=column < B)


@jit
def _places(packed, scale, first, block, K: gl.constexpr, PARTS: gl.constexpr):
    """The first row of a program, and in blocks of eight how far its rows [1, rows, 1] lie from there -> where words
    [part, row, quarter, group] and scales [part, row, 1] of the first chunks are.
    """
    of_scale: gl.constexpr = block.type.layout
    of_word: gl.constexpr = _words(PARTS, block.shape[1])
    line = of_parts(of_scale, PARTS) * 8 + of_middle(of_scale, block.shape[1]) % 8
    quarter = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, of_word))))
    group = gl.arange(0, GROUPS, layout=gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, of_word))))
    word = gl.expand_dims(line, 2) * 16 + quarter[None, None, :, None] * 4 + group[None, None, None, :]
    # What is constant comes last, so that it becomes part of the loads.
    at = packed + first * (K // 8) + word + gl.expand_dims(block, 2) * K
    return at, scale + first * (K // COLUMNS) + line + block * (K // 16)


@jit
def _rows(PARTS: gl.constexpr):
    """0 to 7, the row of x of a thread, once."""
    quiet: gl.constexpr = [[0]] * (PARTS.bit_length() - 1)
    return gl.arange(0, 8, layout=gl.DistributedLinearLayout([], [[0], [0], [1], [2], [4]], quiet, [], [8]))


@jit
def _for_x(of_row, PARTS: gl.constexpr):
    """A value a row of x [8] -> [1, 1, 8] for all its columns."""
    layout: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, right(PARTS, TOGETHER)))
    return gl.convert_layout(of_row, layout)[None, None, :]


@jit
def _column(PARTS: gl.constexpr):
    """The columns of the first chunks, a thread's together: [PARTS, COLUMNS, 1]."""
    k = of_middle(right(PARTS, TOGETHER), COLUMNS)
    word = k // EACH
    column = word % GROUPS * TOGETHER + word // GROUPS * EACH + k % EACH
    return of_parts(right(PARTS, TOGETHER), PARTS) * COLUMNS + column


@jit
def _ask_first(at, scale_at, AHEAD: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr):
    """As `_ask`, the first steps."""
    asked = ()
    for s in gl.static_range(AHEAD):
        asked = asked + (_ask(at, scale_at, s, None, K, PARTS),)
    return asked


@jit
def _ask(at, scale_at, step, wanted, K: gl.constexpr, PARTS: gl.constexpr):
    """Words and scales of one step; of parts that lie past the row, zeros."""
    start: gl.constexpr = step * PARTS
    if start + PARTS > K // COLUMNS:
        of_scale: gl.constexpr = scale_at.type.layout
        inside = of_parts(of_scale, PARTS) + start < K // COLUMNS
        if wanted is not None:
            inside = inside & wanted
        inside_words = gl.expand_dims(inside, 2)
    else:
        inside = wanted
        inside_words = wanted
    zero: gl.constexpr = 0 if inside is not None else None
    words = gl.load(at + start * TILE_WORDS, inside_words, zero, eviction_policy="evict_first")
    return words, gl.load(scale_at + start * TILE_SCALES, inside, zero)


@jit
def _ask_x(at, step, K: gl.constexpr, PARTS: gl.constexpr):
    """Columns of x [part, COLUMNS, 8] of one step; likewise."""
    start: gl.constexpr = step * PARTS * COLUMNS
    if start + PARTS * COLUMNS > K:
        inside = of_parts(right(PARTS, TOGETHER), PARTS) * COLUMNS + start < K
        return gl.load(at + start, inside, 0.0)
    return gl.load(at + start)


@jit
def _restored(asked, PARTS: gl.constexpr):
    """Words and scales of one step -> bfloat16 [part, row, COLUMNS]."""
    of_scale: gl.constexpr = asked[1].type.layout
    factors = ((asked[1] >> (8 * of_last(of_scale, GROUPS))) & 255) * 0x00800080
    return gl.inline_asm_elementwise(
        RESTORE,
        "=r,=r,=r,=r" + ",r" * 16,
        [_spread(asked[0], PARTS), _spread(gl.expand_dims(factors, 2), PARTS)],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=8,
    )


@jit
def _spread(values, PARTS: gl.constexpr):
    """[part, row, quarter or 1, group] to every column of a word: [part, row, COLUMNS]."""
    by_column = gl.expand_dims(values, 4).broadcast_to([PARTS, values.shape[1], 4, GROUPS, EACH])
    return gl.convert_layout(
        gl.reshape(by_column, [PARTS, values.shape[1], COLUMNS]), left(PARTS, TOGETHER), assert_trivial=True
    )
