"""Row GEMV on the tensor cores, for a weight [N, K], or [2N, K] if PAIR (gate rows, then up rows). Layouts: `tiles.py`.

A program has up to 32 rows of the weight, with PAIR up to 16 of each half; its warps take 64 columns of each in turn,
AHEAD such pieces asked for before the first is used. Every program reads all of x, which costs the second cache as much
as eight rows of the weight do.
RMSNorm: the sum of squares of a row is its product with itself, so it comes from the tensor cores as well; the norm's
weight multiplies x before, 1 / rms the sum after, in float32. Out of scope: columns that are no multiple of 64.
"""

# Gluon reads the kernels' bodies, not Python: tuples grow by adding, and names change their type.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, misc, arg-type, index, no-untyped-def, name-defined"

from __future__ import annotations

from k3model.kernels.language import EARLY, LATE, gdc_launch_dependents, gdc_wait
from k3model.kernels.tiles import (
    constexpr,
    fence,
    gl,
    jit,
    left,
    mma_v2,
    of_last,
    of_middle,
    of_parts,
    over_parts,
    right,
    situ_of_halves,
    sums,
)

#: Columns that one warp takes at a time.
PIECE = constexpr(64)
#: bfloat16 values in 16 bytes.
TOGETHER = constexpr(8)
#: Pieces of x that are asked for before the first is used: they come from a cache, whose answer takes several steps.
X_AHEAD = constexpr(4)


@jit
def gemv_mma(
    x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: gl.constexpr, B: gl.constexpr, PAIR: gl.constexpr, NORM: gl.constexpr, BLOCK_N: gl.constexpr,
    EVEN: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, LOOP: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """A program takes one block of rows, or with LOOP every so many-th; a block is computed alike either way."""
    block, every = gl.program_id(0), gl.num_programs(0)
    _block(block, x, w, out, norm, x_row, N, eps, beta, linear_beta, K, B, PAIR, NORM, BLOCK_N, EVEN, AHEAD, PARTS, PDL)
    if LOOP:
        block += every
        while block * BLOCK_N < N:
            _block(block, x, w, out, norm, x_row, N, eps, beta, linear_beta, K, B, PAIR, NORM, BLOCK_N, EVEN, AHEAD, PARTS, 0)  # fmt: skip  # noqa: E501
            block += every


@jit
def _block(
    block, x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: gl.constexpr, B: gl.constexpr, PAIR: gl.constexpr, NORM: gl.constexpr, BLOCK_N: gl.constexpr,
    EVEN: gl.constexpr, AHEAD: gl.constexpr, PARTS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = PARTS * PIECE
    STEPS: gl.constexpr = (K + WIDTH - 1) // WIDTH
    ROWS: gl.constexpr = 32 if BLOCK_N * (2 if PAIR else 1) > 16 else 16
    HALF: gl.constexpr = ROWS // 2
    WHOLE: gl.constexpr = EVEN and (HALF if PAIR else ROWS) == BLOCK_N
    a: gl.constexpr = left(PARTS, TOGETHER)
    r = of_middle(a, ROWS)
    if PAIR:
        row = block * BLOCK_N + r % HALF
        wanted = (r % HALF < BLOCK_N) & (row < N)
        row += (r // HALF) * N
    else:
        row = block * BLOCK_N + r
        wanted = (r < BLOCK_N) & (row < N)
    part = of_parts(a, PARTS) * PIECE
    at = w + row * K + part + of_last(a, PIECE)
    if PDL == EARLY:
        gdc_launch_dependents()
    tiles = ()
    for s in gl.static_range(AHEAD):
        tiles = tiles + (_piece(at, wanted, part, s * WIDTH, K, PARTS, WHOLE, True),)
    fence()
    if PDL:
        gdc_wait()
    b: gl.constexpr = right(PARTS, TOGETHER)
    x_part = of_parts(b, PARTS) * PIECE
    column = x_part + of_middle(b, PIECE)
    filled = of_last(b, 8) < B
    x_at, norm_at = x + of_last(b, 8) * x_row + column, norm + column
    own = of_middle(a, 16)
    own_at = x + own * x_row + part + of_last(a, PIECE)
    pieces = ()
    for s in gl.static_range(X_AHEAD):
        if s < STEPS:
            pieces = pieces + (_x_piece(x_at, norm_at, filled, x_part, s * WIDTH, K, B, NORM, PARTS),)
    fence()
    acc = gl.zeros([PARTS, ROWS, 8], gl.float32, layout=sums(PARTS))
    squares = gl.zeros([PARTS, 16, 8], gl.float32, layout=sums(PARTS))
    for s in gl.static_range(STEPS):
        tile, v, weight = tiles[0], pieces[0][0], pieces[0][1]
        tiles, pieces = tiles[1:], pieces[1:]
        if s + AHEAD < STEPS:
            tiles = tiles + (_piece(at, wanted, part, (s + AHEAD) * WIDTH, K, PARTS, WHOLE, True),)
        if s + X_AHEAD < STEPS:
            pieces = pieces + (_x_piece(x_at, norm_at, filled, x_part, (s + X_AHEAD) * WIDTH, K, B, NORM, PARTS),)
        fence()
        if NORM:
            squares = mma_v2(_piece(own_at, own < B, part, s * WIDTH, K, PARTS, False, False), v, squares)
            v = v * weight
        acc = mma_v2(tile, v, acc)
    if PDL == LATE:
        gdc_launch_dependents()
    y = over_parts(acc, PARTS)
    if NORM:
        y = y * _rms_scale(over_parts(squares, PARTS), eps, K)[None, :]
    dtype: gl.constexpr = out.dtype.element_ty
    if PAIR:
        y = situ_of_halves(y, beta, linear_beta, dtype)
    at_out: gl.constexpr = y.type.layout
    n = gl.arange(0, y.shape[0], layout=gl.SliceLayout(1, at_out))[:, None]
    col = gl.arange(0, 8, layout=gl.SliceLayout(0, at_out))[None, :]
    n_out = block * BLOCK_N + n
    gl.store(out + col * N + n_out, y.to(dtype), mask=(col < B) & (n < BLOCK_N) & (n_out < N))


@jit
def _piece(
    at, wanted, part, start, K: gl.constexpr, PARTS: gl.constexpr, ALL: gl.constexpr, ONCE: gl.constexpr
):  # fmt: skip
    """One piece of every warp; without a mask, which costs registers and moves, where nothing is outside.

    Weights are read ONCE and not worth keeping in the caches.
    """
    KEEP: gl.constexpr = "evict_first" if ONCE else ""
    if start + PARTS * PIECE > K:
        return gl.load(at + start, wanted & (part + start < K), 0.0, eviction_policy=KEEP)
    if ALL:
        return gl.load(at + start, eviction_policy=KEEP)
    return gl.load(at + start, wanted, 0.0, eviction_policy=KEEP)


@jit
def _x_piece(
    at, norm_at, filled, part, start, K: gl.constexpr, B: gl.constexpr, NORM: gl.constexpr, PARTS: gl.constexpr
):  # fmt: skip
    """A piece of x, and with NORM the piece of its weight."""
    v = _piece(at, filled, part, start, K, PARTS, B == 8, False)
    weight = v
    if NORM:
        weight = _piece(norm_at, part >= 0, part, start, K, PARTS, True, False)
    return v, weight


@jit
def _rms_scale(products, eps, K: gl.constexpr):
    """products [16, 8] of rows of x with rows of x -> 1 / rms of each of eight."""
    layout: gl.constexpr = products.type.layout
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, 8, layout=gl.SliceLayout(0, layout))[None, :]
    return gl.rsqrt(gl.sum(gl.where(row == column, products, 0.0), 0) / K + eps)
