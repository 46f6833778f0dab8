"""Kimi Delta Attention: one normed token row [B, hidden] in, [B, hidden] out, conv window and state moved on.

    x ─┬─ K1 q,k,v,g,f_a,b ── K2 f_b ─┐
       │   fork 1                     ├─ K6 conv, l2norm, decay, delta rule, gated norm ── K9 o_proj ─▶
       └─ K3 window K4 repack K5 state┘        └─ K7, K8 write state and window back

Out of scope: input norm and residual (`decode.py`), pools (`cache.py`), K3 to K8 themselves (`kernels/kda.py`), the
chunk form (`kda_chunk.py`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.cache import Caches, Placed
from k3model.collectives import Collectives
from k3model.config import K3Config
from k3model.fp8 import Fp8Matrix, project, quantise
from k3model.kda_chunk import chunk_delta_rule
from k3model.kernels import Ops
from k3model.kernels.kda import KdaConstants, Projected
from k3model.pointwise import wide, wide_dtype
from k3model.streams import Forks
from k3model.weights import Weights


class KDA:
    """One layer's weights and its step. d = h * D local width."""

    family = "KDA"

    def __init__(self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops, index: int) -> None:
        self.index = index  # among the KDA layers: which cache is its own
        self.config, self.collectives, self.ops = config, collectives, ops
        self.h, self.D, self.d = config.kda_heads_local, config.kda_head_dim, config.kda_width_local
        self._place_projections(weights, collectives.rank)
        self._place_constants(weights, collectives.rank)
        self.qkvg: torch.Tensor | Fp8Matrix = self.in_proj[: 4 * self.d]
        self.fab = self.in_proj[4 * self.d :]
        self.out: torch.Tensor | Fp8Matrix = self.o_proj

    def _place_projections(self, weights: Weights, rank: int) -> None:
        """One storage [q|k|v|g|f_a|b], so that a fused and a split read are the same bytes."""
        config, d, r = self.config, self.d, self.config.kda_gate_rank
        hidden, full = config.hidden, config.kda_heads * self.D
        self.in_proj = weights.empty(4 * d + config.kda_bfa_rows, hidden)
        for i, letter in enumerate("qkvg"):
            rows = slice(i * d, (i + 1) * d)
            weights.place(f"{letter}_proj.weight", self.in_proj, (rows,), full=(full, hidden), dim=0, start=rank * d)
        weights.place("f_a_proj.weight", self.in_proj, (slice(4 * d, 4 * d + r),), full=(r, hidden))
        b_rows, b_full = slice(4 * d + r, 4 * d + r + self.h), (config.kda_heads, hidden)
        weights.place("b_proj.weight", self.in_proj, (b_rows,), full=b_full, dim=0, start=rank * self.h)
        self.f_b_proj = weights.matrix("f_b_proj", full, r, cut=0, rank=rank, of=config.tp_size)
        self.o_proj = weights.matrix("o_proj", hidden, full, cut=1, rank=rank, of=config.tp_size)

    def _place_constants(self, weights: Weights, rank: int) -> None:
        config, d, dtype = self.config, self.d, wide_dtype(weights.dtype)
        full = config.kda_heads * self.D
        self.conv = weights.empty(3, d, 1, config.conv_width, dtype=dtype)
        for i, letter in enumerate("qkv"):
            shape = (full, 1, config.conv_width)
            weights.place(f"{letter}_conv1d.weight", self.conv, (i,), full=shape, dim=0, start=rank * d)
        self.A_log = weights.empty(self.h, dtype=dtype)
        weights.place("A_log", self.A_log, full=(config.kda_heads,), dim=0, start=rank * self.h)
        self.dt_bias = weights.empty(d, dtype=dtype)
        weights.place("dt_bias", self.dt_bias, full=(full,), dim=0, start=rank * d)
        self.o_norm = weights.norm("o_norm", self.D, dtype=dtype)

    def prepare(self) -> None:
        """Derive what the step needs once the weights are in place: constants of the recurrence, FP8 copies."""
        bound, eps = self.config.gate_lower_bound, self.config.rms_eps
        self.constants = KdaConstants(self.conv, self.A_log, self.dt_bias, self.o_norm, bound, eps)
        if self.config.kda_weights == "fp8":
            self.qkvg, self.out = quantise(self.in_proj[: 4 * self.d]), quantise(self.o_proj)

    def step(self, x: torch.Tensor, caches: Caches, rows: Placed, forks: Forks) -> torch.Tensor:
        """One token a row."""
        cache = caches.kda[self.index]
        projected, staged = forks.fork(
            "kda_staging", lambda: self.project_in(x, forks), lambda: self.ops.kda_stage(cache, rows.slots)
        )
        o = self.ops.kda_step(projected, staged, self.constants, cache, rows.slots)
        return self.collectives.all_reduce(self._project(o, self.out))

    def project_in(self, x: torch.Tensor, forks: Forks) -> Projected:
        """K1 and K2: one GEMM, or QKVG beside [f_a|b] then f_b."""
        d, r = self.d, self.config.kda_gate_rank
        if self.config.kda_projection_is_fused:
            qkvg, fab = self.ops.linear(x, self.in_proj).split([4 * d, self.in_proj.shape[0] - 4 * d], dim=-1)
            decay = self.ops.linear(fab[..., :r], self.f_b_proj)
        else:
            qkvg, (fab, decay) = forks.fork("kda_qkvg_bfa", lambda: self._project(x, self.qkvg), lambda: self._bfa(x))
        return Projected(qkvg[..., : 3 * d], qkvg[..., 3 * d :], decay, fab[..., r : r + self.h])

    def _bfa(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fab = self.ops.linear(x, self.fab)
        return fab, self.ops.linear(fab[..., : self.config.kda_gate_rank], self.f_b_proj)

    def _project(self, x: torch.Tensor, weight: torch.Tensor | Fp8Matrix) -> torch.Tensor:
        y: torch.Tensor = project(x, weight) if isinstance(weight, Fp8Matrix) else self.ops.linear(x, weight)
        return y

    def prefill(self, x: torch.Tensor, caches: Caches, rows: Placed, forks: Forks) -> torch.Tensor:
        """Many tokens a row, x [B, T, hidden], in the chunk form; never captured, never forked."""
        cache, projected = caches.kda[self.index], self.project_in(x, forks)
        slots, T = rows.slots, x.shape[1]
        window = torch.cat([cache.conv[slots][..., -3:], projected.qkv.mT], dim=-1)
        taps = self.conv.reshape(3 * self.d, -1)
        y = F.silu((window.unfold(-1, taps.shape[1], 1) * taps.unsqueeze(1)).sum(-1))
        qkv = y.view(-1, 3, self.h, self.D, T).permute(1, 0, 4, 2, 3)
        q, k, v = self.constants.normalise(qkv)
        beta, g = wide(projected.beta).sigmoid(), self.constants.log_decay(projected.decay)
        o, state = chunk_delta_rule(q, k, v, g, beta, cache.state[slots])
        cache.state.index_copy_(0, slots, state)
        cache.conv.index_copy_(0, slots, window[..., -cache.conv.shape[-1] :])
        return self.collectives.all_reduce(self._project(self.constants.gated_norm(o, projected.gate), self.out))
