"""RMSNorm behind what comes before it in a layer: residual add, AttnRes mix and norm in one launch.

`add_mix_norm` reads every candidate once. At 7168 columns and 9 candidates that is 129 kB a row, little enough for one
program, and a row's result needs all of it; but one program has one multiprocessor. So what a mix asks of a snapshot,
its sum of squares and its product with the mix's direction, is found once, for all mixes to come (`keep`).
Out of scope: which candidates there are (`k3model/attn_res.py`).
"""

# mypy: disable-error-code="assignment, misc, arg-type, index, var-annotated"
from __future__ import annotations

from typing import NamedTuple

import torch

from k3model.kernels.choices import Choice
from k3model.kernels.gemv import linear_wide
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.pointwise import rms_norm, wide, wide_dtype

#: 32 values of every candidate a thread in the widest rows; all stay in its registers.
WARPS = 8


class Kept(NamedTuple):
    """Of every row of a bank, wide: what does not change once it is a snapshot. The twins ask the row itself."""

    squares: torch.Tensor  # [rows, n] sum of squares
    products: torch.Tensor  # [rows, n, mixes] with every direction

    @classmethod
    def of(cls, bank: torch.Tensor, mixes: int) -> Kept:
        """Nothing known yet."""
        rows, n, _ = bank.shape
        dtype = wide_dtype(bank.dtype)
        return cls(bank.new_empty(rows, n, dtype=dtype), bank.new_empty(rows, n, mixes, dtype=dtype))


def keep_twin(kept: Kept, bank: torch.Tensor, top: int, directions: torch.Tensor) -> None:
    """Row `top` is a snapshot from now on. directions [mixes, hidden] wide."""


def keep(kept: Kept, bank: torch.Tensor, top: int, directions: torch.Tensor, *, pdl: bool = False) -> None:
    """Its product with the direction of every mix."""
    blocks = Choice("fma", 1, 1024, 7, 4)  # float32, twice the bytes of what the rule is made for
    linear_wide(bank[top], directions, out=kept.products[top], pdl=pdl, choice=blocks)


def add_mix_norm_twin(
    bank: torch.Tensor,
    top: int,
    addends: tuple[torch.Tensor, ...],
    empty: bool,
    directions: torch.Tensor,
    which: int | None,
    weight: torch.Tensor,
    eps: float,
    kept: Kept,
) -> torch.Tensor:
    """Add to the running sum, mix it with the snapshots, norm -> [n, hidden].

    bank [>top, n, hidden]: row `top` is the running sum, empty or not; the addends (none, one or two of [n, hidden])
    are summed first. The mix: softmax over candidates of <V / rms(V), direction>, applied to V; without `which` none.
    """
    if addends:
        out, row = sum(addends[1:], addends[0]), bank[top]
        row.copy_(out) if empty else row.add_(out)
    h = bank[top] if which is None else mix(bank[: top + 1], directions[which], eps)
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
    directions: torch.Tensor,
    which: int | None,
    weight: torch.Tensor,
    eps: float,
    kept: Kept,
    *,
    pdl: bool = False,
    warps: int = WARPS,
) -> torch.Tensor:
    """The same in one launch. Without a mix there is one candidate, whose share of itself is one."""
    _, n, size = bank.shape
    snapshots = 0 if which is None else top
    first, second = (*addends, bank, bank)[:2]
    out = torch.empty(n, size, device=bank.device, dtype=bank.dtype)
    block = power_of_two(size)
    _add_mix_norm[(n,)](
        bank, first, second, directions[which or 0], weight, kept.squares, kept.products[..., which or 0], out,
        bank.stride(0), bank.stride(1), first.stride(-2), second.stride(-2), kept.squares.stride(0),
        *kept.products.stride()[:2], top, eps,
        SIZE=size, SNAPSHOTS=snapshots, ADDENDS=len(addends), EMPTY=empty, BLOCK=block,
        num_warps=max(1, min(warps, block // 256)), **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _add_mix_norm(  # type: ignore[no-untyped-def]
    bank, first, second, direction, weight, squares, products, out,
    bank_row, bank_n, first_n, second_n, squares_row, products_row, products_n, top, eps,
    SIZE: tl.constexpr, SNAPSHOTS: tl.constexpr, ADDENDS: tl.constexpr, EMPTY: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Every candidate is asked for before the first is used."""
    n, col = tl.program_id(0), tl.arange(0, BLOCK)
    inside = col < SIZE
    dtype: tl.constexpr = out.dtype.element_ty
    # Constants may come from memory: they are asked for first, though the norm's weight is used last.
    d = tl.load(direction + col, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + col, mask=inside, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    here = bank + top * bank_row + n * bank_n + col
    candidates, known = (), ()
    for s in tl.static_range(SNAPSHOTS):
        product = tl.load(products + s * products_row + n * products_n)
        known = known + ((product, tl.load(squares + s * squares_row + n)),)  # noqa: RUF005
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
    # One reduction over the threads for both sums: they lie side by side in every thread, before and after it.
    own, square = tl.split(tl.sum(tl.join(_by_thread(mixed * d, BLOCK), _by_thread(mixed * mixed, BLOCK)), 0))
    tl.store(squares + top * squares_row + n, square)
    if SNAPSHOTS > 0:
        score = own * tl.rsqrt(square / SIZE + eps)
        largest, scores = score, ()
        for s in tl.static_range(SNAPSHOTS):
            kept = known[s][0] * tl.rsqrt(known[s][1] / SIZE + eps)
            largest, scores = tl.maximum(largest, kept), scores + (kept,)  # noqa: RUF005
        whole = tl.exp(score - largest)
        mixed = mixed * whole
        for s in tl.static_range(SNAPSHOTS):
            share = tl.exp(scores[s] - largest)
            whole += share
            mixed += candidates[s].to(tl.float32) * share
        mixed = (mixed * (1.0 / whole)).to(dtype).to(tl.float32)
    scale = tl.rsqrt(tl.sum(mixed * mixed, 0) / SIZE + eps)
    tl.store(out + n * SIZE + col, (mixed * scale * w.to(tl.float32)).to(dtype), mask=inside)


@jit
def _by_thread(products, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of twice eight columns: in the widest rows those that one thread holds."""
    return tl.sum(tl.sum(tl.reshape(products, [2, BLOCK // 16, 8]), 2), 0)
