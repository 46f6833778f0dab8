"""RMSNorm, alone and behind what comes before it in a layer: residual add and AttnRes mix, in one launch a row.

`add_mix_norm` reads every candidate once from memory and once more from the cache of its multiprocessor. At 7168
columns and 9 candidates that is 129 kB a row, little enough for one program, and a row's result needs all of it.
Out of scope: which candidates there are (`k3model/attn_res.py`).
"""

from __future__ import annotations

import torch

from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.pointwise import rms_norm as torch_rms_norm
from k3model.pointwise import wide

#: Columns of one tile of the snapshots; 7168 is seven of them.
CHUNK = 1024
WARPS = 16


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, pdl: bool = False) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension; its twin is `pointwise.rms_norm`. Rows of x may lie apart."""
    rows, size = x.flatten(0, -2), x.shape[-1]
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    block = power_of_two(size)
    _rms_norm[(rows.shape[0],)](
        rows, weight, out, rows.stride(0), eps, SIZE=size, BLOCK=block, num_warps=_warps(block), **launch(pdl)
    )
    return out


@jit
def _rms_norm(x, weight, out, x_row, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # type: ignore[no-untyped-def]
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    w = tl.load(weight + col, mask=col < SIZE, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    v = tl.load(x + row * x_row + col, mask=col < SIZE, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / SIZE + eps)
    tl.store(out + row * SIZE + col, (v * scale * w).to(out.dtype.element_ty), mask=col < SIZE)


def add_mix_norm_twin(
    bank: torch.Tensor,
    top: int,
    addends: tuple[torch.Tensor, ...],
    empty: bool,
    direction: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Add to the running sum, mix it with the snapshots, norm -> [n, hidden].

    bank [>top, n, hidden]: row `top` is the running sum, empty or not; the addends (none, one or two of [n, hidden])
    are summed first. The mix: softmax over candidates of <V / rms(V), direction>, applied to V; none if no direction.
    """
    if addends:
        out, row = sum(addends[1:], addends[0]), bank[top]
        row.copy_(out) if empty else row.add_(out)
    h = bank[top] if direction is None else mix(bank[: top + 1], direction, eps)
    return torch_rms_norm(h, weight, eps)


def mix(candidates: torch.Tensor, direction: torch.Tensor, eps: float) -> torch.Tensor:
    """candidates [K, n, hidden], direction [hidden] wide -> [n, hidden]."""
    values = wide(candidates)
    probs = torch.softmax(torch_rms_norm(values, direction, eps).sum(-1), dim=0)
    return torch.einsum("kn,knh->nh", probs, values).to(candidates.dtype)


def add_mix_norm(
    bank: torch.Tensor,
    top: int,
    addends: tuple[torch.Tensor, ...],
    empty: bool,
    direction: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The same in one launch. Without a direction there is one candidate, whose share of itself is one."""
    _, n, size = bank.shape
    snapshots = 0 if direction is None else top
    first, second = (*addends, bank, bank)[:2]
    out = torch.empty(n, size, device=bank.device, dtype=bank.dtype)
    block = power_of_two(size)
    _add_mix_norm[(n,)](
        bank, first, second, weight if direction is None else direction, weight, out,
        bank.stride(0), bank.stride(1), first.stride(-2), second.stride(-2), top, eps,
        SIZE=size, SNAPSHOTS=snapshots, PADDED=power_of_two(max(snapshots, 1)), ADDENDS=len(addends), EMPTY=empty,
        BLOCK=block, CHUNK=min(block, CHUNK), num_warps=_warps(block), **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _add_mix_norm(  # type: ignore[no-untyped-def]
    bank, first, second, direction, weight, out,
    bank_row, bank_n, first_n, second_n, top, eps,
    SIZE: tl.constexpr, SNAPSHOTS: tl.constexpr, PADDED: tl.constexpr, ADDENDS: tl.constexpr, EMPTY: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    n, col = tl.program_id(0), tl.arange(0, BLOCK)
    inside, dtype = col < SIZE, out.dtype.element_ty
    w = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(direction + col, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    here = bank + top * bank_row + n * bank_n + col
    # Rounded to the bank's dtype wherever the twin rounds.
    p = tl.zeros([BLOCK], tl.float32) if EMPTY else tl.load(here, mask=inside, other=0.0).to(tl.float32)
    if ADDENDS > 0:
        a = tl.load(first + n * first_n + col, mask=inside, other=0.0).to(tl.float32)
        if ADDENDS > 1:
            b = tl.load(second + n * second_n + col, mask=inside, other=0.0).to(tl.float32)
            a = (a + b).to(dtype).to(tl.float32)
        p = (p + a).to(dtype).to(tl.float32)
        tl.store(here, p.to(dtype), mask=inside)
    mixed = p
    if SNAPSHOTS > 0:
        # Scores of the snapshots: sums are kept per column until the end, so that no load waits for a reduction.
        k = tl.arange(0, PADDED)
        dots = tl.zeros([PADDED, CHUNK], tl.float32)
        squares = tl.zeros([PADDED, CHUNK], tl.float32)
        for start in tl.static_range(0, SIZE, CHUNK):
            c = start + tl.arange(0, CHUNK)
            at = bank + k[:, None] * bank_row + n * bank_n + c[None, :]
            v = tl.load(at, mask=(k < SNAPSHOTS)[:, None] & (c < SIZE)[None, :], other=0.0).to(tl.float32)
            dots += v * tl.load(direction + c, mask=c < SIZE, other=0.0).to(tl.float32)[None, :]
            squares += v * v
        score = tl.sum(dots, 1) * tl.rsqrt(tl.sum(squares, 1) / SIZE + eps)
        score = tl.where(k < SNAPSHOTS, score, float("-inf"))
        score_p = tl.sum(p * d, 0) * tl.rsqrt(tl.sum(p * p, 0) / SIZE + eps)
        largest = tl.maximum(tl.max(score, 0), score_p)
        e, e_p = tl.exp(score - largest), tl.exp(score_p - largest)
        share = 1.0 / (tl.sum(e, 0) + e_p)
        mixed = p * (e_p * share)
        for s in tl.static_range(SNAPSHOTS):
            v = tl.load(bank + s * bank_row + n * bank_n + col, mask=inside, other=0.0).to(tl.float32)
            mixed += v * (tl.sum(tl.where(k == s, e, 0.0), 0) * share)
        mixed = mixed.to(dtype).to(tl.float32)
    scale = tl.rsqrt(tl.sum(mixed * mixed, 0) / SIZE + eps)
    tl.store(out + n * SIZE + col, (mixed * scale * w).to(dtype), mask=inside)


def _warps(block: int) -> int:
    """Sixteen values a thread in the widest rows, one warp in the narrowest."""
    return max(1, min(WARPS, block // 256))
