"""RMSNorm behind what comes before it in a layer: residual add, AttnRes mix and norm in one launch.

`add_mix_norm` reads every candidate once from memory. At 7168 columns and 9 candidates that is 129 kB a row, little
enough for one program, and a row's result needs all of it.
Out of scope: which candidates there are (`k3model/attn_res.py`).
"""

# mypy: disable-error-code="assignment, misc, arg-type, index, var-annotated"
from __future__ import annotations

import torch

from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.pointwise import rms_norm, wide

#: Sixteen values of every candidate a thread in the widest rows.
WARPS = 16
#: Snapshots that fit into registers beside everything else; more are read a second time, from the cache.
KEPT = 4


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
    return rms_norm(h, weight, eps)


def mix(candidates: torch.Tensor, direction: torch.Tensor, eps: float) -> torch.Tensor:
    """candidates [K, n, hidden], direction [hidden] wide -> [n, hidden]."""
    values = wide(candidates)
    probs = torch.softmax(rms_norm(values, direction, eps).sum(-1), dim=0)
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
        SIZE=size, SNAPSHOTS=snapshots, LEVELS=max(snapshots - 1, 0).bit_length(), ADDENDS=len(addends),
        EMPTY=empty, KEPT=KEPT, BLOCK=block, num_warps=_warps(block), **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _add_mix_norm(  # type: ignore[no-untyped-def]
    bank, first, second, direction, weight, out,
    bank_row, bank_n, first_n, second_n, top, eps,
    SIZE: tl.constexpr, SNAPSHOTS: tl.constexpr, LEVELS: tl.constexpr, ADDENDS: tl.constexpr, EMPTY: tl.constexpr,
    KEPT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every candidate is asked for before the first is used. Up to KEPT stay in registers, more are read again."""
    n, col = tl.program_id(0), tl.arange(0, BLOCK)
    inside = col < SIZE
    dtype: tl.constexpr = out.dtype.element_ty
    d = tl.load(direction + col, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    here = bank + top * bank_row + n * bank_n + col
    candidates = ()
    for s in tl.static_range(SNAPSHOTS):
        candidates = candidates + (tl.load(bank + s * bank_row + n * bank_n + col, mask=inside, other=0.0),)  # noqa: RUF005
    # Rounded to the bank's dtype wherever the twin rounds.
    p = tl.zeros([BLOCK], dtype) if EMPTY else tl.load(here, mask=inside, other=0.0)
    if ADDENDS > 0:
        a = tl.load(first + n * first_n + col, mask=inside, other=0.0)
        if ADDENDS > 1:
            b = tl.load(second + n * second_n + col, mask=inside, other=0.0)
            a = (a.to(tl.float32) + b.to(tl.float32)).to(dtype)
        p = (p.to(tl.float32) + a.to(tl.float32)).to(dtype)
        tl.store(here, p, mask=inside)
    mixed = p.to(tl.float32)
    if SNAPSHOTS > 0:
        # One reduction over the threads for all sums: they lie side by side in every thread, before and after it.
        own = _apart(tl.sum(tl.join(_by_thread(mixed * d, BLOCK), _by_thread(mixed * mixed, BLOCK)), 0), 1)
        sums = ()
        for s in tl.static_range(SNAPSHOTS):
            v = candidates[s].to(tl.float32)
            sums = sums + (_by_thread(v * d, BLOCK), _by_thread(v * v, BLOCK))  # noqa: RUF005
        for _ in tl.static_range((2 << LEVELS) - 2 * SNAPSHOTS):
            sums = sums + (tl.zeros([BLOCK // 16], tl.float32),)  # noqa: RUF005
        totals = own + _apart(tl.sum(_together(sums, LEVELS + 1), 0), LEVELS + 1)
        scores = ()
        for s in tl.static_range(SNAPSHOTS + 1):
            scores = scores + (totals[2 * s] * tl.rsqrt(totals[2 * s + 1] / SIZE + eps),)  # noqa: RUF005
        largest = scores[0]
        for s in tl.static_range(SNAPSHOTS):
            largest = tl.maximum(largest, scores[s + 1])
        whole = tl.exp(scores[0] - largest)
        mixed = mixed * whole
        for s in tl.static_range(SNAPSHOTS):
            e = tl.exp(scores[s + 1] - largest)
            whole += e
            v = candidates[s]
            if SNAPSHOTS > KEPT:
                v = tl.load(bank + s * bank_row + n * bank_n + col, mask=inside, other=0.0)
            mixed += v.to(tl.float32) * e
        mixed = (mixed / whole).to(dtype).to(tl.float32)
    w = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(mixed * mixed, 0) / SIZE + eps)
    tl.store(out + n * SIZE + col, (mixed * scale * w).to(dtype), mask=inside)


@jit
def _by_thread(products, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of twice eight columns: in the widest rows those that one thread holds."""
    return tl.sum(tl.sum(tl.reshape(products, [2, BLOCK // 16, 8]), 2), 0)


@jit
def _together(parts, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """2^LEVELS tensors as one with LEVELS further dimensions of two."""
    for level in tl.static_range(LEVELS):
        joined = ()
        for i in tl.static_range(1 << (LEVELS - 1 - level)):
            joined = joined + (tl.join(parts[i], parts[i + (1 << (LEVELS - 1 - level))]),)  # noqa: RUF005
        parts = joined
    return parts[0]


@jit
def _apart(whole, LEVELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The way back."""
    parts = (whole,)
    for level in tl.static_range(LEVELS):
        lows, highs = (), ()
        for i in tl.static_range(1 << level):
            low, high = tl.split(parts[i])
            lows = lows + (low,)  # noqa: RUF005
            highs = highs + (high,)  # noqa: RUF005
        parts = lows + highs
    return parts


def _warps(block: int) -> int:
    """One warp in the narrowest rows."""
    return max(1, min(WARPS, block // 256))
