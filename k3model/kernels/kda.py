"""The KDA decode step behind its projections: staging (K3 to K5) and the recurrence (K6 to K8), each one launch.

The staging copies what an engine with gathered pools copies: conv windows, and the states unless the pool is indexed.
With an indexed pool and no repacking it copies nothing, and the recurrence works on the pools in place.
Out of scope: projections (`k3model/kda.py`), the chunk form for prompts (`k3model/kda_chunk.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.cache import KdaCache, Staged
from k3model.kernels.language import gdc_launch_dependents, gdc_wait, jit, launch, tl
from k3model.pointwise import rms_norm, wide

L2_EPS = 1e-6
#: Rows of one head's state that one program of the staging copies.
STAGED_ROWS = 32
#: A head's state of 128 x 128 is then 128 registers a thread, and vectors of 128 are not read by every warp again.
WARPS = 4


class Projected(NamedTuple):
    """K1 and K2 of one step or of many tokens; leading dimensions are free."""

    qkv: torch.Tensor  # [..., 3d] raw, what the conv window remembers
    gate: torch.Tensor  # [..., d] raw output gate
    decay: torch.Tensor  # [..., d] raw forget gate
    beta: torch.Tensor  # [..., h] raw


@dataclass(frozen=True)
class KdaConstants:
    """What the recurrence of one layer is made of besides its inputs. d = h * D local width."""

    conv: torch.Tensor  # [3, d, 1, W] wide
    A_log: torch.Tensor  # [h] wide
    dt_bias: torch.Tensor  # [d] wide
    o_norm: torch.Tensor  # [D] wide
    lower_bound: float
    eps: float

    def __post_init__(self) -> None:
        """Derive at once: a step must not."""
        _ = self.taps_history, self.tap_now, self.rate_bias

    @property
    def shape(self) -> tuple[int, int]:
        """Heads and head dim."""
        return self.A_log.shape[0], self.o_norm.shape[0]

    @cached_property
    def taps_history(self) -> torch.Tensor:
        """[3, 1, d, W - 1] taps of the inputs before this one."""
        return self.conv[:, None, :, 0, :-1]

    @cached_property
    def tap_now(self) -> torch.Tensor:
        """[3, 1, d] tap of this one."""
        return self.conv[:, None, :, 0, -1]

    @cached_property
    def rate(self) -> torch.Tensor:
        """[h, D] how fast a raw gate moves the decay."""
        return self.A_log.exp().unsqueeze(-1).expand(self.shape)

    @cached_property
    def rate_bias(self) -> torch.Tensor:
        """[h, D] where it stands at a raw gate of zero."""
        return self.dt_bias.view(self.shape) * self.rate

    def normalise(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q and k to unit length per head (eps inside the root), q scaled by D^-1/2."""
        D = qkv.shape[-1]
        # x / sqrt(sum x^2 + eps) = rms_norm(x, eps / D) / sqrt(D)
        q, k = F.rms_norm(qkv[:2], (D,), eps=L2_EPS / D)
        return q / D, k * D**-0.5, qkv[2]

    def log_decay(self, raw: torch.Tensor) -> torch.Tensor:
        """g = L sigmoid(exp(A_log) (f + dt_bias)) in (L, 0), per key channel -> [..., h, D]."""
        raw = raw.unflatten(-1, self.shape)
        return torch.addcmul(self.rate_bias, raw, self.rate).sigmoid_().mul_(self.lower_bound)

    def gated_norm(self, o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """RMSNorm per head, times sigmoid of the gate, back to the weights' dtype -> [..., d]."""
        normed = rms_norm(o, self.o_norm, self.eps)
        return (normed.flatten(-2) * wide(gate).sigmoid()).to(gate.dtype)


def kda_stage_twin(cache: KdaCache, slots: torch.Tensor) -> Staged:
    """K3 gather the windows, K4 repack their last three columns, K5 gather the state."""
    return cache.stage(slots)


def kda_step_twin(
    projected: Projected, staged: Staged, constants: KdaConstants, cache: KdaCache, slots: torch.Tensor
) -> torch.Tensor:
    """K6 conv and SiLU, l2norm, decay, delta rule, gated norm -> [B, d]; K7 and K8 write state and window back."""
    (h, D), B = constants.shape, projected.qkv.shape[0]
    new = projected.qkv.view(B, 3, h * D).transpose(0, 1)
    y = F.silu((staged.history * constants.taps_history).sum(-1).addcmul_(new, constants.tap_now))
    q, k, v = constants.normalise(y.view(3, B, h, D))
    alpha, beta = constants.log_decay(projected.decay).exp_(), wide(projected.beta).sigmoid()
    o = constants.gated_norm(delta_rule(staged.state, q, k, v, alpha, beta), projected.gate)
    cache.store(slots, staged, projected.qkv)
    return o


def delta_rule(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """One step of the rule on S [B, h, V, K], in place; q, k, v, alpha [B, h, D], beta [B, h] -> o [B, h, V].

    S <- S * alpha;  S <- S + beta (v - S k) k^T;  o = S q.
    """
    state.mul_(alpha.unsqueeze(-2))
    predicted = (state @ k.unsqueeze(-1)).squeeze(-1)
    delta = (v - predicted) * beta.unsqueeze(-1)
    state.addcmul_(delta.unsqueeze(-1), k.unsqueeze(-2))
    return (state @ q.unsqueeze(-1)).squeeze(-1)


def kda_stage(cache: KdaCache, slots: torch.Tensor, *, pdl: bool = False) -> Staged:
    """The same in one launch, or in none: what is not staged stays the pool's own, to be read through the slots."""
    batch, columns = slots.shape[0], cache.conv.shape[-1]
    _, h, D, _ = cache.state.shape
    history = cache.dense[:, :batch] if cache.repack else _in_pool(cache)
    state = torch.empty_like(cache.state[:batch]) if cache.gathered else cache.state
    if cache.repack or cache.gathered:
        rows = min(STAGED_ROWS, D)
        _stage[(h * (D // rows), batch)](
            cache.conv, cache.state, slots, cache.dense, state,
            cache.conv.stride(0), cache.state.stride(0), cache.dense.stride(0),
            D=D, WIDTH=h * D, ROWS=rows, COLUMNS=columns, REPACK=cache.repack, GATHER=cache.gathered,
            num_warps=4, **launch(pdl),
        )  # fmt: skip
    return Staged(history, history, state)


def _in_pool(cache: KdaCache) -> torch.Tensor:
    """The last three columns of every slot's window as [3, slots, d, 3], without a copy."""
    return cache.conv[..., -3:].unflatten(1, (3, -1)).transpose(0, 1)


@jit
def _stage(  # type: ignore[no-untyped-def]
    conv, state, slots, dense, staged, conv_slot, state_slot, dense_part,
    D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    REPACK: tl.constexpr, GATHER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    part, b = tl.program_id(0), tl.program_id(1)
    row = part * ROWS + tl.arange(0, ROWS)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.load(slots + b)
    if GATHER:
        cell = row[:, None] * D + tl.arange(0, D)[None, :]
        tl.store(staged + b * state_slot + cell, tl.load(state + slot * state_slot + cell))
    if REPACK:
        for of in tl.static_range(3):
            for j in tl.static_range(3):
                raw = tl.load(conv + slot * conv_slot + (of * WIDTH + row) * COLUMNS + (COLUMNS - 3 + j))
                tl.store(dense + of * dense_part + (b * WIDTH + row) * 3 + j, raw)


def kda_step(
    projected: Projected,
    staged: Staged,
    constants: KdaConstants,
    cache: KdaCache,
    slots: torch.Tensor,
    *,
    pdl: bool = False,
) -> torch.Tensor:
    """The same in one launch: a program a head and row, its state in registers from the first product to the last."""
    (h, D), B = constants.shape, projected.qkv.shape[0]
    history, out = staged.history, projected.gate.new_empty(B, h * D)
    _step[(h, B)](
        *projected, history, staged.state, cache.state, cache.conv, slots, out,
        constants.conv, constants.A_log, constants.dt_bias, constants.o_norm,
        *(tensor.stride(0) for tensor in projected), *history.stride()[:3],
        staged.state.stride(0), cache.state.stride(0), cache.conv.stride(0),
        constants.lower_bound, constants.eps, L2_EPS, D**-0.5,
        D=D, HEADS=h, COLUMNS=cache.conv.shape[-1], REPACKED=cache.repack, GATHERED=cache.gathered,
        num_warps=max(1, min(WARPS, D * D // 1024)), **launch(pdl),
    )  # fmt: skip
    return out


@jit
def _step(  # type: ignore[no-untyped-def]
    qkv, gate, decay, beta, history, state_in, state_out, conv, slots, out, taps, a_log, dt_bias, o_norm,
    qkv_row, gate_row, decay_row, beta_row, history_part, history_row, history_channel,
    state_in_row, state_out_row, conv_row, lower_bound, eps, l2_eps, q_scale,
    D: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
    REPACKED: tl.constexpr, GATHERED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, b = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, D)
    WIDTH: tl.constexpr = HEADS * D
    channel = head * D + lane
    rate = tl.exp(tl.load(a_log + head))
    bias = tl.load(dt_bias + channel)
    norm = tl.load(o_norm + lane)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    slot = tl.load(slots + b)
    # The state first: it is most of the bytes, and nothing below needs to wait before it is asked for.
    cell = head * D * D + lane[:, None] * D + lane[None, :]
    state = tl.load(state_in + (b if GATHERED else slot) * state_in_row + cell)
    past, new, at = history + (b if REPACKED else slot) * history_row, qkv + b * qkv_row, channel * history_channel
    q, q1, q2, q3, q4 = _conv(past + at, new + channel, taps + channel * 4)
    past, new, taps = past + history_part, new + WIDTH, taps + WIDTH * 4
    k, k1, k2, k3, k4 = _conv(past + at, new + channel, taps + channel * 4)
    past, new, taps = past + history_part, new + WIDTH, taps + WIDTH * 4
    v, v1, v2, v3, v4 = _conv(past + at, new + channel, taps + channel * 4)
    # In place, the window read above is the one written below, and several threads hold the same channel.
    tl.debug_barrier()
    window = conv + slot * conv_row + channel * COLUMNS + (COLUMNS - 3)
    _shift(window, q1, q2, q3, q4, COLUMNS)
    _shift(window + WIDTH * COLUMNS, k1, k2, k3, k4, COLUMNS)
    _shift(window + 2 * WIDTH * COLUMNS, v1, v2, v3, v4, COLUMNS)
    q = q * (tl.rsqrt(tl.sum(q * q, 0) + l2_eps) * q_scale)
    k = k * tl.rsqrt(tl.sum(k * k, 0) + l2_eps)
    raw = tl.load(decay + b * decay_row + channel).to(tl.float32)
    alpha = tl.exp(lower_bound * tl.sigmoid(rate * (raw + bias)))
    strength = tl.sigmoid(tl.load(beta + b * beta_row + head).to(tl.float32))
    state = state * alpha[None, :]
    delta = (v - tl.sum(state * k[None, :], 1)) * strength
    state = state + delta[:, None] * k[None, :]
    tl.store(state_out + slot * state_out_row + cell, state)
    o = tl.sum(state * q[None, :], 1)
    o = o * tl.rsqrt(tl.sum(o * o, 0) / D + eps) * norm
    o = o * tl.sigmoid(tl.load(gate + b * gate_row + channel).to(tl.float32))
    tl.store(out + b * WIDTH + channel, o.to(out.dtype.element_ty))


@jit
def _conv(past, new, taps):  # type: ignore[no-untyped-def]
    """SiLU of the convolution of a head's channels, and the four raw inputs it was made of, oldest first."""
    r1, r2, r3, r4 = tl.load(past), tl.load(past + 1), tl.load(past + 2), tl.load(new)
    y = r1.to(tl.float32) * tl.load(taps) + r2.to(tl.float32) * tl.load(taps + 1)
    y = y + r3.to(tl.float32) * tl.load(taps + 2) + r4.to(tl.float32) * tl.load(taps + 3)
    return y * tl.sigmoid(y), r1, r2, r3, r4


@jit
def _shift(window, r1, r2, r3, r4, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the next step finds: its last three raw inputs, behind one more where whole windows are kept."""
    if COLUMNS > 3:
        tl.store(window - 1, r1)
    tl.store(window, r2)
    tl.store(window + 1, r3)
    tl.store(window + 2, r4)
