"""Row GEMV on the plain cores, for a weight [N, K], or [2N, K] if PAIR (gate rows, then up rows).

A program takes one block of rows, or with LOOP every so many-th, so that a launch can be kept to part of the card; a
block is computed alike either way. AHEAD pieces of the weight are asked for before the first is used.
Out of scope: the tensor cores (`gemv_mma.py`), which path serves which shape (`choices.py`).
"""

# Triton reads the kernels' bodies, not Python: tuples grow by adding, and names change their type.
# ruff: noqa: RUF005, B007
# mypy: disable-error-code="assignment, misc, arg-type, index, no-untyped-def"

from __future__ import annotations

from k3model.kernels.language import EARLY, LATE, gdc_launch_dependents, gdc_wait, jit, tl


@jit
def gemv_fma(
    x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: tl.constexpr, B: tl.constexpr, PAIR: tl.constexpr, NORM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr, LOOP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row of a weight after the other."""
    block, every = tl.program_id(0), tl.num_programs(0)
    _fma_block(block, x, w, out, norm, x_row, N, eps, beta, linear_beta, K, B, PAIR, NORM, BLOCK_N, BLOCK_K, EVEN, AHEAD, PDL)  # fmt: skip  # noqa: E501
    if LOOP:
        block += every
        while block * BLOCK_N < N:
            _fma_block(block, x, w, out, norm, x_row, N, eps, beta, linear_beta, K, B, PAIR, NORM, BLOCK_N, BLOCK_K, EVEN, AHEAD, 0)  # fmt: skip  # noqa: E501
            block += every


@jit
def _fma_block(
    block, x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: tl.constexpr, B: tl.constexpr, PAIR: tl.constexpr, NORM: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums are kept per eight columns, which one thread holds, until the end."""
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    HALVES: tl.constexpr = 2 if PAIR else 1
    row, k = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    at = w + row[:, None] * K + k[None, :]
    inside = (row < N)[:, None]
    if PDL == EARLY:
        gdc_launch_dependents()
    tiles = ()
    for s in tl.static_range(AHEAD):
        for half in tl.static_range(HALVES):
            tiles = tiles + (_weights(at + half * N * K, inside, k[None, :], s * BLOCK_K, K, EVEN, BLOCK_K),)
    if PDL:
        gdc_wait()
    scales, sums = (), ()
    for b in tl.static_range(B):
        if NORM:
            scales = scales + (_rms_scale(x + b * x_row, eps, K, BLOCK_K),)
        for half in tl.static_range(HALVES):
            sums = sums + (tl.zeros([BLOCK_N, BLOCK_K // 8], tl.float32),)
    for s in tl.static_range(STEPS):
        first = tiles[0].to(tl.float32)
        second = first
        if PAIR:
            second = tiles[1].to(tl.float32)
        tiles = tiles[HALVES:]
        if s + AHEAD < STEPS:
            for half in tl.static_range(HALVES):
                tiles = tiles + (
                    _weights(at + half * N * K, inside, k[None, :], (s + AHEAD) * BLOCK_K, K, EVEN, BLOCK_K),
                )
        new = ()
        for b in tl.static_range(B):
            v = tl.load(x + b * x_row + s * BLOCK_K + k, mask=s * BLOCK_K + k < K, other=0.0).to(tl.float32)
            if NORM:
                g = tl.load(norm + s * BLOCK_K + k, mask=s * BLOCK_K + k < K, other=0.0).to(tl.float32)
                v = (v * scales[b] * g).to(x.dtype.element_ty).to(tl.float32)
            new = new + (sums[b * HALVES] + _by_eight(first * v[None, :], BLOCK_N, BLOCK_K),)
            if PAIR:
                new = new + (sums[b * HALVES + 1] + _by_eight(second * v[None, :], BLOCK_N, BLOCK_K),)
        sums = new
    if PDL == LATE:
        gdc_launch_dependents()
    for b in tl.static_range(B):
        y = tl.sum(sums[b * HALVES], 1)
        if PAIR:
            y = situ_rounded(y, tl.sum(sums[b * HALVES + 1], 1), beta, linear_beta, out.dtype.element_ty)
        tl.store(out + b * N + row, y.to(out.dtype.element_ty), mask=row < N)


@jit
def _weights(at, inside, k, start: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, WIDTH: tl.constexpr):
    """One piece, read once and not worth keeping in the caches. `inside` and k have the shape of `at` up to ones."""
    if start + WIDTH <= K:
        if EVEN:
            tile = tl.load(at + start, eviction_policy="evict_first")
        else:
            tile = tl.load(at + start, mask=inside, other=0.0, eviction_policy="evict_first")
    else:
        tile = tl.load(at + start, mask=inside & (start + k < K), other=0.0, eviction_policy="evict_first")
    return tile


@jit
def _by_eight(products, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    return tl.sum(tl.reshape(products, [BLOCK_N, BLOCK_K // 8, 8]), 2)


@jit
def _rms_scale(x, eps, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """1 / rms of one row. Its loads are of another kind than those of the product, so that each has its own layout."""
    k = tl.arange(0, BLOCK_K)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        v = tl.load(x + start + k, mask=start + k < K, other=0.0, cache_modifier=".ca").to(tl.float32)
        squares += v * v
    return tl.rsqrt(tl.sum(squares, 0) / K + eps)


@jit
def situ_rounded(gate, up, beta, linear_beta, dtype: tl.constexpr):
    """SiTU of sums, each rounded first as a product of its own would be. tanh(x) = 2 sigmoid(2x) - 1."""
    a, u = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    bounded = (2.0 * tl.sigmoid(2.0 * a / beta) - 1.0) * tl.sigmoid(a)
    return bounded * (2.0 * tl.sigmoid(2.0 * u / linear_beta) - 1.0) * (beta * linear_beta)
