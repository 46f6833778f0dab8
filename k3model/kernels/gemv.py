"""Row GEMV for a handful of rows: y = x W^T with W read once, and what an engine fuses around it. x [B, K], W [N, K].

    linear        y                     linear_wide   y in float32
    norm_linear   rms_norm(x) W^T       situ_linear   situ(x W^T), W = [gate | up]

Two paths, chosen by shape (`choices.py`). "fma": a program has a few rows of W, asks for all of them at once in
16-byte loads, and sums each row in float32. "mma": up to 32 rows, the columns dealt out to the warps, products on the
tensor cores with the batch as their eight columns. Weights are asked for before the wait for the kernel ahead, so with
programmatic dependent launch memory stays busy across launches. Out of scope: more rows than MAX_ROWS (cuBLAS).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.kernels import tiles
from k3model.kernels.choices import Choice, choose, fma_rule
from k3model.kernels.gemv_fma import gemv_fma
from k3model.kernels.gemv_mma import PIECE, gemv_mma
from k3model.kernels.language import launch
from k3model.pointwise import linear_wide as linear_wide_twin
from k3model.pointwise import rms_norm, situ
from k3model.streams import in_side_leg

MAX_ROWS = 8
linear_twin = F.linear


def norm_linear_twin(x: torch.Tensor, norm: torch.Tensor, eps: float, weight: torch.Tensor) -> torch.Tensor:
    """The normed row is rounded to the weights' dtype before the product."""
    return F.linear(rms_norm(x, norm, eps), weight)


def situ_linear_twin(x: torch.Tensor, weight: torch.Tensor, beta: float, linear_beta: float) -> torch.Tensor:
    """weight [2I, K], gate rows first -> [B, I]; gate and up are rounded before the activation."""
    return situ(F.linear(x, weight), beta, linear_beta)


def linear(
    x: torch.Tensor, weight: torch.Tensor, *, pdl: bool = False, side_programs: int = 0, choice: Choice | None = None
) -> torch.Tensor:
    """x [B, K] (rows may lie apart), weight [N, K] -> [B, N]."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return linear_twin(x, weight)
    return _launch(x, weight, x.dtype, pdl, side_programs, choice)


def linear_wide(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    pdl: bool = False,
    side_programs: int = 0,
    choice: Choice | None = None,
) -> torch.Tensor:
    """The same, not rounded: float32; into `out` [B, N] if there is one. The weight may be float32 as well."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        y = linear_wide_twin(x.to(weight.dtype), weight)
        return y if out is None else out.copy_(y)
    return _launch(x, weight, torch.float32, pdl, side_programs, choice, out=out)


def norm_linear(
    x: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    *,
    pdl: bool = False,
    side_programs: int = 0,
    choice: Choice | None = None,
) -> torch.Tensor:
    """RMSNorm of x, then the product. Every program norms the row for itself: it is a few kB in the cache."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return norm_linear_twin(x, norm, eps, weight)
    return _launch(x, weight, x.dtype, pdl, side_programs, choice, op="norm", norm=norm, eps=eps)


def situ_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    beta: float,
    linear_beta: float,
    *,
    pdl: bool = False,
    side_programs: int = 0,
    choice: Choice | None = None,
) -> torch.Tensor:
    """Gate and up of one output are rows of one program, so the activation needs no second launch."""
    if x.dim() != 2 or x.shape[0] > MAX_ROWS:
        return situ_linear_twin(x, weight, beta, linear_beta)
    return _launch(x, weight, x.dtype, pdl, side_programs, choice, op="situ", betas=(beta, linear_beta))


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    dtype: torch.dtype,
    pdl: bool,
    side_programs: int,
    choice: Choice | None,
    *,
    op: str = "linear",
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    betas: tuple[float, float] = (1.0, 1.0),
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    (batch, columns), paired = x.shape, op == "situ"
    rows = weight.shape[0] // (2 if paired else 1)
    blocks = choice or choose(op, rows, columns, batch)
    if blocks.path == "mma" and not on_tensor_cores(x, weight):
        blocks = fma_rule(rows, columns, batch, paired=paired)
    if out is None:
        out = torch.empty(batch, rows, device=x.device, dtype=dtype)
    shapes: dict[str, Any] = {"K": columns, "B": batch, "PAIR": paired, "NORM": norm is not None}
    shapes |= {"BLOCK_N": blocks.block_n, "EVEN": rows % blocks.block_n == 0}
    programs = of = -(-rows // blocks.block_n)
    if side_programs and in_side_leg():
        programs = min(side_programs, of)
    if blocks.path == "mma":
        kernel, pieces = gemv_mma, -(-columns // (blocks.block_k * blocks.warps))
        shapes |= {"PARTS": blocks.warps}
        if blocks.block_n > (16 if paired else 32):
            raise ValueError(f"{blocks}: a program has 32 rows of the weight at most, with SiTU 16 outputs")
    else:
        kernel, pieces = gemv_fma, -(-columns // blocks.block_k)
        shapes |= {"BLOCK_K": blocks.block_k}
    kernel[(programs,)](
        x, weight, out, weight if norm is None else norm, x.stride(0), rows, eps, *betas,
        AHEAD=min(blocks.ahead, pieces), LOOP=programs < of, num_warps=blocks.warps, **shapes, **launch(pdl, batch),
    )  # fmt: skip
    return out


def on_tensor_cores(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the path "mma" can run: bfloat16, whole pieces of columns, a Triton with Gluon."""
    return tiles.found and x.dtype == weight.dtype == torch.bfloat16 and x.shape[1] % int(PIECE) == 0
