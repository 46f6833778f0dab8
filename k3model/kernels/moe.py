"""Routing and routed experts of a decode step: logits to picks in one launch, MXFP4 experts in two.

    pick      sigmoid, bias, top-k, weights                   one program a row
    experts   h = situ(z W13^T), then sum of mix * (h W2^T)   W stays packed in memory and is restored in registers

Out of scope: who decides which row hits which expert (`hits.py`, `moe.py`).
"""

from __future__ import annotations

from itertools import count

import torch

from k3model.kernels import experts_fma, experts_mma
from k3model.kernels.choices import choose, expert_rule
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, power_of_two, tl
from k3model.kernels.packed import Hits, Packed
from k3model.pointwise import situ, wide


def pick_twin(logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [n, E] wide -> picked experts [n, k], best first, and their weights [n, k]. The bias does not weigh."""
    scores = logits.sigmoid()
    picks = (scores + bias).topk(top_k, dim=-1).indices
    picked = scores.gather(1, picks)
    return picks, picked / (picked.sum(-1, keepdim=True) + 1e-20) * scale


def pick(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float, *, pdl: bool = False, warps: int = 8
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same; of equal scores the expert of the lower number goes first."""
    n, experts = logits.shape
    picks = torch.empty(n, top_k, device=logits.device, dtype=torch.int64)
    mix = torch.empty(n, top_k, device=logits.device, dtype=torch.float32)
    slots = power_of_two(top_k)
    cuts = next(cuts for cuts in count() if 4 * slots * 4**cuts >= experts)
    _pick[(n,)](
        logits, bias, picks, mix, scale, E=experts, TOP=top_k, SLOTS=slots, CUTS=cuts, num_warps=warps, **launch(pdl)
    )  # fmt: skip
    return picks, mix


@jit
def _pick(  # type: ignore[no-untyped-def]
    logits, bias, picks, mix, scale,
    E: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr, CUTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The best SLOTS experts lie in the SLOTS groups of the best members: keep those, cut each in four, until one each.

    No search waits for the one before it: all groups learn their places at once, by counting the better ones.
    """
    n, slot, row = tl.program_id(0), tl.arange(0, SLOTS), tl.arange(0, 4 * SLOTS)
    first = row * 4**CUTS
    e = first[:, None] + tl.arange(0, 4**CUTS)[None, :]
    offset = tl.load(bias + e, mask=e < E, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    logits += n * E
    keys = _keys(logits, offset, first, e, e < E)
    for cut in tl.static_range(CUTS):
        keys = _cut(logits, bias, keys, row, E, 4 ** (CUTS - 1 - cut))
    found = _placed(keys, slot)
    score = tl.sigmoid(tl.load(logits + found, mask=slot < TOP, other=0.0))
    score = tl.where(slot < TOP, score, 0.0)
    tl.store(picks + n * TOP + slot, found.to(tl.int64), mask=slot < TOP)
    tl.store(mix + n * TOP + slot, score / (tl.sum(score, 0) + 1e-20) * scale, mask=slot < TOP)


@jit
def _keys(logits, offset, first, e, inside):  # type: ignore[no-untyped-def]
    """Per group its best biased score, then its first expert, lower is better: all bits of both, no two alike.

    They are the fraction of a double between 1 and 2: one comparison each, where 64-bit integers take two.
    """
    biased = tl.sigmoid(tl.load(logits + e, mask=inside, other=0.0)) + offset
    # Integers in the order of the floats.
    bits = biased.to(tl.int32, bitcast=True)
    order = tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)
    fraction = (tl.max(order, 1).to(tl.int64) << 20) + (0xFFFFF - first)
    return (fraction + (0x3FF8 << 48)).to(tl.float64, bitcast=True)


@jit
def _placed(keys, place):  # type: ignore[no-untyped-def]
    """The first expert of the group at each place, the best at 0. A key's place is the number of greater ones."""
    places = tl.sum(tl.where(keys[None, :] > keys[:, None], 1.0, 0.0), 1)
    low = keys.to(tl.int64, bitcast=True).to(tl.int32)
    at_place = tl.where(places[None, :] == place.to(tl.float32)[:, None], low[None, :], 0)
    return 0xFFFFF - (tl.sum(at_place, 1) & 0xFFFFF)


@jit
def _cut(logits, bias, keys, row, E: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys of the quarters, WIDTH experts each, of the best groups. Scores are read again, from the nearest cache."""
    group = _placed(keys, row // 4)
    first = group + row % 4 * WIDTH
    if WIDTH == 1:
        # Four columns of which one counts: a single column would get another layout, and every exchange a copy.
        e = group[:, None] + tl.arange(0, 4)[None, :]
        inside = (e < E) & (e == first[:, None])
    else:
        e = first[:, None] + tl.arange(0, WIDTH)[None, :]
        inside = e < E
    return _keys(logits, tl.load(bias + e, mask=inside, other=0.0), first, e, inside)


def experts_twin(
    z: torch.Tensor, mix: torch.Tensor, hits: Hits, packed: Packed, beta: float, linear_beta: float
) -> torch.Tensor:
    """z [B, L], mix [B, S] -> [B, L]: each expert's output is rounded, weighted and summed wide, rounded."""
    table = hits.table
    total = torch.zeros_like(z, dtype=mix.dtype)
    for slot in range(table.shape[1]):
        hit, held = table[:, slot].clamp_min(0), table[:, slot] >= 0
        w13, w2 = packed.matrices(hit, z.dtype)
        h = situ(torch.bmm(w13.flatten(1, 2), z.unsqueeze(-1)).squeeze(-1), beta, linear_beta)
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
    """The same in two launches; on the tensor cores, each expert read once, if codes are interleaved for them."""
    inner, latent, batch = packed.w13.shape[2], z.shape[1], z.shape[0]
    if not packed.interleaved:
        blocks = expert_rule("fma"), expert_rule("fma")
        return experts_fma.experts(z, mix, hits.table, packed, beta, linear_beta, blocks, pdl=pdl)
    if batch > experts_mma.MAX_ROWS:
        return experts_twin(z, mix, hits, packed, beta, linear_beta)
    blocks = choose("expert up", inner, latent, batch), choose("expert down", latent, inner, batch)
    return experts_mma.experts(z, mix, hits, packed, beta, linear_beta, blocks, pdl=pdl)
