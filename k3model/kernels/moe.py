"""Routing and routed experts of a decode step: logits to picks in one launch, MXFP4 experts in two.

    pick      sigmoid, bias, top-k, weights                   one program a row
    experts   h = situ(z W13^T), then sum of mix * (h W2^T)   W stays packed in memory and is restored in registers

Out of scope: who decides which row hits which expert (`hits.py`, `moe.py`).
"""

from __future__ import annotations

import torch

from k3model.kernels import experts_fma, experts_mma
from k3model.kernels.choices import choose, expert_rule
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.kernels.packed import Hits, Packed
from k3model.mxfp4 import dequantise
from k3model.pointwise import situ, wide


def pick_twin(logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [n, E] wide -> picked experts [n, k], best first, and their weights [n, k]. The bias does not weigh."""
    scores = logits.sigmoid()
    picks = (scores + bias).topk(top_k, dim=-1).indices
    picked = scores.gather(1, picks)
    return picks, picked / (picked.sum(-1, keepdim=True) + 1e-20) * scale


def pick(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float, *, pdl: bool = False, warps: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same; of equal scores the expert of the lower number goes first."""
    n, experts = logits.shape
    picks = torch.empty(n, top_k, device=logits.device, dtype=torch.int64)
    mix = torch.empty(n, top_k, device=logits.device, dtype=torch.float32)
    _pick[(n,)](
        logits, bias, picks, mix, scale, E=experts, BLOCK=power_of_two(experts), TOP=top_k, SLOTS=power_of_two(top_k),
        num_warps=warps, **launch(pdl),
    )  # fmt: skip
    return picks, mix


@jit
def _pick(  # type: ignore[no-untyped-def]
    logits, bias, picks, mix, scale,
    E: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One warp: a search costs two warp-wide integer reductions, with no barrier."""
    n, e, slot = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, SLOTS)
    offset = tl.load(bias + e, mask=e < E, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    biased = tl.sigmoid(tl.load(logits + n * E + e, mask=e < E, other=0.0)) + offset
    # Integers in the order of the floats.
    bits = biased.to(tl.int32, bitcast=True)
    order = tl.where(e < E, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)
    found = tl.zeros([SLOTS], tl.int32)
    for i in tl.static_range(TOP):
        best = tl.min(tl.where(order == tl.max(order, 0), e, BLOCK), 0)
        order = tl.where(e == best, -0x80000000, order)
        found = tl.where(slot == i, best, found)
    score = tl.sigmoid(tl.load(logits + n * E + found))
    score = tl.where(slot < TOP, score, 0.0)
    tl.store(picks + n * TOP + slot, found.to(tl.int64), mask=slot < TOP)
    tl.store(mix + n * TOP + slot, score / (tl.sum(score, 0) + 1e-20) * scale, mask=slot < TOP)


def experts_twin(
    z: torch.Tensor, mix: torch.Tensor, hits: Hits, packed: Packed, beta: float, linear_beta: float
) -> torch.Tensor:
    """z [B, L], mix [B, S] -> [B, L]: each expert's output is rounded, weighted and summed wide, rounded."""
    table = hits.table
    total = torch.zeros_like(z, dtype=mix.dtype)
    for slot in range(table.shape[1]):
        hit, held = table[:, slot].clamp_min(0), table[:, slot] >= 0
        w13 = dequantise(packed.w13[hit], packed.w13_scale[hit], z.dtype).flatten(1, 2)
        w2 = dequantise(packed.w2[hit], packed.w2_scale[hit], z.dtype)
        h = situ(torch.bmm(w13, z.unsqueeze(-1)).squeeze(-1), beta, linear_beta)
        total += wide(torch.bmm(w2, h.unsqueeze(-1)).squeeze(-1)) * (mix[:, slot] * held).unsqueeze(-1)
    return total.to(z.dtype)


def experts(
    z: torch.Tensor,
    mix: torch.Tensor,
    hits: Hits,
    packed: Packed,
    beta: float,
    linear_beta: float,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The same in two launches; on the tensor cores, each expert read once, if hits are known and shapes fit."""
    inner, latent, batch = packed.w13.shape[2], z.shape[1], z.shape[0]
    blocks = choose("expert up", inner, latent, batch), choose("expert down", latent, inner, batch)
    if blocks[0].path == "mma" and experts_mma.fits(z, hits, packed):
        return experts_mma.experts(z, mix, hits, packed, beta, linear_beta, blocks, pdl=pdl)
    if blocks[0].path == "mma":
        blocks = expert_rule("fma"), expert_rule("fma")
    return experts_fma.experts(z, mix, hits.table, packed, beta, linear_beta, blocks, pdl=pdl)
