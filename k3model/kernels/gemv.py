"""Row GEMV for a handful of rows: y = x W^T with W read once, and what an engine fuses around it. x [B, K], W [N, K].

    linear        y                     linear_wide   y in float32
    norm_linear   rms_norm(x) W^T       situ_linear   situ(x W^T), W = [gate | up]

Two paths, chosen by shape (`choices.py`). "fma": a program has a few rows of W, asks for all of them at once in
16-byte loads, and sums each row in float32. "mma": 16 rows, the columns dealt out to the warps, products on the tensor
cores with the batch as their eight columns. Weights are asked for before the wait for the kernel ahead, so with
programmatic dependent launch memory stays busy across launches. Out of scope: more rows than MAX_ROWS (cuBLAS).
"""

# Triton reads the kernels' bodies, not Python: tuples grow by adding, and names change their type.
# ruff: noqa: RUF005, SIM108, B007
# mypy: disable-error-code="assignment, misc, arg-type, index"

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.kernels.choices import Choice, choose
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, interpreted, jit, launch, tl
from k3model.pointwise import linear_wide as linear_wide_twin
from k3model.pointwise import rms_norm, situ

MAX_ROWS = 8
linear_twin = F.linear


def norm_linear_twin(x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    """The normed row is rounded to the weights' dtype before the product."""
    return F.linear(rms_norm(x, norm, eps), weight)


def situ_linear_twin(x: torch.Tensor, weight: torch.Tensor, beta: float, linear_beta: float) -> torch.Tensor:
    """weight [2I, K], gate rows first -> [B, I]; gate and up are rounded before the activation."""
    return situ(F.linear(x, weight), beta, linear_beta)


def linear(x: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False, choice: Choice | None = None) -> torch.Tensor:
    """x [B, K] (rows may lie apart), weight [N, K] -> [B, N]."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return linear_twin(x, weight)
    return _launch(x, weight, x.dtype, pdl, choice)


def linear_wide(
    x: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False, choice: Choice | None = None
) -> torch.Tensor:
    """The same, not rounded: float32."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return linear_wide_twin(x, weight)
    return _launch(x, weight, torch.float32, pdl, choice)


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    pdl: bool = False,
    choice: Choice | None = None,
) -> torch.Tensor:
    """RMSNorm of x, then the product. Every program norms the row for itself: it is a few kB in the cache."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return norm_linear_twin(x, norm, eps, weight)
    return _launch(x, weight, x.dtype, pdl, choice, op="norm", norm=norm, eps=eps)


def situ_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    beta: float,
    linear_beta: float,
    *,
    pdl: bool = False,
    choice: Choice | None = None,
) -> torch.Tensor:
    """Gate and up of one output are rows of one program, so the activation needs no second launch."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return situ_linear_twin(x, weight, beta, linear_beta)
    return _launch(x, weight, x.dtype, pdl, choice, op="situ", betas=(beta, linear_beta))


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    dtype: torch.dtype,
    pdl: bool,
    choice: Choice | None,
    *,
    op: str = "linear",
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    betas: tuple[float, float] = (1.0, 1.0),
) -> torch.Tensor:
    (batch, columns), paired = x.shape, op == "situ"
    rows = weight.shape[0] // (2 if paired else 1)
    blocks = choice or choose(op, rows, columns, batch)
    out = torch.empty(batch, rows, device=x.device, dtype=dtype)
    shapes: dict[str, Any] = {"K": columns, "B": batch, "PAIR": paired, "NORM": norm is not None}
    shapes |= {"BLOCK_N": blocks.block_n, "BLOCK_K": blocks.block_k, "EVEN": rows % blocks.block_n == 0}
    pieces = -(-columns // (blocks.block_k * (blocks.warps if blocks.path == "mma" else 1)))
    kernel = _mma if blocks.path == "mma" else _fma
    if blocks.path == "mma":
        shapes |= {"PARTS": blocks.warps, "UPCAST": interpreted()}
    kernel[(-(-rows // blocks.block_n),)](
        x, weight, out, weight if norm is None else norm, x.stride(0), rows, eps, *betas,
        AHEAD=min(blocks.ahead, pieces), num_warps=blocks.warps, **shapes, **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _fma(  # type: ignore[no-untyped-def]
    x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: tl.constexpr, B: tl.constexpr, PAIR: tl.constexpr, NORM: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """w [N, K], or [2N, K] if PAIR. Sums are kept per eight columns, which one thread holds, until the end."""
    STEPS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    HALVES: tl.constexpr = 2 if PAIR else 1
    row, k = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    at = w + row[:, None] * K + k[None, :]
    inside = (row < N)[:, None]
    if PDL:
        gdc_launch_dependents()  # the next kernel may ask for its weights as soon as this one has asked for its own
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
    for b in tl.static_range(B):
        y = tl.sum(sums[b * HALVES], 1)
        if PAIR:
            y = situ_rounded(y, tl.sum(sums[b * HALVES + 1], 1), beta, linear_beta, out.dtype.element_ty)
        tl.store(out + b * N + row, y.to(out.dtype.element_ty), mask=row < N)


@jit
def _weights(at, inside, k, start: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _by_eight(products, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.sum(tl.reshape(products, [BLOCK_N, BLOCK_K // 8, 8]), 2)


@jit
def _rms_scale(x, eps, K: tl.constexpr, BLOCK_K: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / rms of one row. Its loads are of another kind than those of the product, so that each has its own layout."""
    k = tl.arange(0, BLOCK_K)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for start in tl.static_range(0, K, BLOCK_K):
        v = tl.load(x + start + k, mask=start + k < K, other=0.0, cache_modifier=".ca").to(tl.float32)
        squares += v * v
    return tl.rsqrt(tl.sum(squares, 0) / K + eps)


@jit
def situ_rounded(gate, up, beta, linear_beta, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """SiTU of sums, each rounded first as a product of its own would be. tanh(x) = 2 sigmoid(2x) - 1."""
    a, u = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    bounded = (2.0 * tl.sigmoid(2.0 * a / beta) - 1.0) * tl.sigmoid(a)
    return bounded * (2.0 * tl.sigmoid(2.0 * u / linear_beta) - 1.0) * (beta * linear_beta)


@jit
def _mma(  # type: ignore[no-untyped-def]
    x, w, out, norm, x_row, N, eps, beta, linear_beta,
    K: tl.constexpr, B: tl.constexpr, PAIR: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Part p of a piece's columns is warp p's: a batched product [part, row, k] x [part, k, b], parts summed last."""
    WIDTH: tl.constexpr = PARTS * BLOCK_K
    STEPS: tl.constexpr = (K + WIDTH - 1) // WIDTH
    HALVES: tl.constexpr = 2 if PAIR else 1
    row, b = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, 8)
    part, k = (tl.arange(0, PARTS) * BLOCK_K)[:, None, None], tl.arange(0, BLOCK_K)
    column, inside = part + k[None, None, :], (row < N)[None, :, None]
    at = w + row[None, :, None] * K + column
    x_column, filled = part + k[None, :, None], (b < B)[None, None, :]
    x_at = x + x_column + b[None, None, :] * x_row
    if PDL:
        gdc_launch_dependents()  # the next kernel may ask for its weights as soon as this one has asked for its own
    tiles = ()
    for s in tl.static_range(AHEAD):
        for half in tl.static_range(HALVES):
            tiles = tiles + (_weights(at + half * N * K, inside, column, s * WIDTH, K, EVEN, WIDTH),)
    if PDL:
        gdc_wait()
    if NORM:
        scale = _rms_scales(x, x_row, eps, K, B)
    gate = tl.zeros([PARTS, BLOCK_N, 8], tl.float32)
    up = tl.zeros([PARTS, BLOCK_N, 8], tl.float32)
    for s in tl.static_range(STEPS):
        v = tl.load(x_at + s * WIDTH, mask=filled & (x_column + s * WIDTH < K), other=0.0)
        if NORM:
            g = tl.load(norm + x_column + s * WIDTH, mask=x_column + s * WIDTH < K, other=0.0)
            v = (v.to(tl.float32) * scale[None, None, :] * g.to(tl.float32)).to(x.dtype.element_ty)
        gate = _product(tiles[0], v, gate, UPCAST)
        if PAIR:
            up = _product(tiles[1], v, up, UPCAST)
        tiles = tiles[HALVES:]
        if s + AHEAD < STEPS:
            for half in tl.static_range(HALVES):
                tiles = tiles + (_weights(at + half * N * K, inside, column, (s + AHEAD) * WIDTH, K, EVEN, WIDTH),)
    y = tl.sum(gate, 0)
    if PAIR:
        y = situ_rounded(y, tl.sum(up, 0), beta, linear_beta, out.dtype.element_ty)
    tl.store(
        out + b[None, :] * N + row[:, None], y.to(out.dtype.element_ty), mask=(b < B)[None, :] & (row < N)[:, None]
    )


@jit
def _product(a, b, acc, UPCAST: tl.constexpr):  # type: ignore[no-untyped-def]
    """a b + acc in float32. Triton's interpreter cannot multiply bfloat16 matrices."""
    if UPCAST:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc)
    return acc


@jit
def _rms_scales(x, x_row, eps, K: tl.constexpr, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / rms of each of eight rows."""
    b, k = tl.arange(0, 8)[:, None], tl.arange(0, 256)[None, :]
    squares = tl.zeros([8, 256], tl.float32)
    for start in tl.static_range(0, K, 256):
        v = tl.load(x + b * x_row + start + k, mask=(b < B) & (start + k < K), other=0.0).to(tl.float32)
        squares += v * v
    return tl.rsqrt(tl.sum(squares, 1) / K + eps)
