"""Gated multi-head latent attention without positions: one normed token row [B, hidden] in, [B, hidden] out.

    x ─┬─ M1 q_a norm q_b ─┐ fork 2    ┌─ M3 absorb: query[..., :512] ────────────┐ fork 3
       └─ M2 kv_a norm cat ┴───────────┴─ M4 tail query[..., 512:], append, length ┴─ M5 attend ─ M6 W_V ─ M7 o_proj

N, R, V, C, Q are the dims of the unrotated part, the tail, the values, the latent and the query's low rank.
Out of scope: input norm and residual (`decode.py`), pages (`cache.py`), the ops between projections (`kernels/mla.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.cache import Caches, LatentCache, Placed
from k3model.collectives import Collectives
from k3model.config import K3Config
from k3model.kernels import TWINS, Ops
from k3model.kernels.attention import Attended, combine_twin, scores_of
from k3model.streams import Forks
from k3model.weights import Weights


class Appended(NamedTuple):
    """What M4 makes besides the query tail and the cache row, which it writes in place."""

    lengths: torch.Tensor  # [B] cached tokens a row, the new one included
    query: torch.Tensor | None  # FP8 KV cache only: the whole fused query as e4m3


class MLA:
    """One layer's weights and its step. h local heads, padded ones last and zero."""

    family = "MLA"

    def __init__(self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops, index: int) -> None:
        self.index = index  # among the MLA layers: which pages are its own
        self.config, self.collectives = config, collectives
        self.ops = ops if config.kv_cache == "bf16" else TWINS  # no kernel reads an FP8 cache
        self.h, self.N, self.R, self.V = config.mla_heads_local, config.qk_nope_dim, config.qk_rope_dim, config.v_dim
        self.C, self.scale = config.kv_lora_rank, (config.qk_nope_dim + config.qk_rope_dim) ** -0.5
        self._place_inputs(weights)
        self.q_a_layernorm = weights.norm("q_a_layernorm", config.q_lora_rank)
        self.kv_a_layernorm = weights.norm("kv_a_layernorm", self.C)
        self.q_b_proj = self._heads(weights, "q_b_proj", self.N + self.R, config.q_lora_rank)
        self.kv_b_proj = self._heads(weights, "kv_b_proj", self.N + self.V, self.C)
        self.g_proj = self._heads(weights, "g_proj", self.V, config.hidden)
        self.o_proj = self._heads(weights, "o_proj", self.V, config.hidden, rows=False)

    def _place_inputs(self, weights: Weights) -> None:
        """One storage [q_a | kv_a], so that a fused and a split read are the same bytes."""
        low, hidden = self.config.q_lora_rank, self.config.hidden
        self.a_proj = weights.empty(low + self.config.latent_row, hidden)
        self.q_a_proj, self.kv_a_proj = self.a_proj[:low], self.a_proj[low:]
        weights.place("q_a_proj.weight", self.a_proj, (slice(0, low),), full=(low, hidden))
        full = (self.config.latent_row, hidden)
        weights.place("kv_a_proj_with_mqa.weight", self.a_proj, (slice(low, None),), full=full)

    def _heads(self, weights: Weights, name: str, per_head: int, other: int, rows: bool = True) -> torch.Tensor:
        """A weight cut by heads along its rows or columns. Padding heads have no part and stay zero."""
        total, start = self.config.mla_heads, self.collectives.rank * self.h
        real = max(0, min(self.h, total - start)) * per_head
        full, local = total * per_head, self.h * per_head
        storage = weights.empty(local, other) if rows else weights.empty(other, local)
        index = (slice(0, real),) if rows else (slice(None), slice(0, real))
        shape = (full, other) if rows else (other, full)
        if real:
            weights.place(f"{name}.weight", storage, index, full=shape, dim=0 if rows else 1, start=start * per_head)
        return storage

    def prepare(self) -> None:
        """Views of the up-projection per head: the first N rows of a head are W_K, the next V are W_V."""
        per_head = self.kv_b_proj.view(self.h, self.N + self.V, self.C)
        self.W_K, self.W_V = per_head[:, : self.N], per_head[:, self.N :].mT

    def step(self, x: torch.Tensor, caches: Caches, rows: Placed, forks: Forks) -> torch.Tensor:
        """One token a row."""
        cache, B, fp8 = caches.mla[self.index], x.shape[0], self.config.kv_cache == "fp8"
        if self.config.fused_inputs:
            low, row = self.ops.linear(x, self.a_proj).split([len(self.q_a_proj), len(self.kv_a_proj)], dim=-1)
            q, latent = forks.fork("mla_q_kv", lambda: self._queries(low), lambda: self._latent_row(row))
        else:
            q, latent = forks.fork("mla_q_kv", lambda: self.query(x), lambda: self.latent(x))
        # Made on main before the fork and written by both legs, in disjoint columns.
        fused = x.new_empty(B, self.h, self.C + self.R)
        _, appended = forks.fork(
            "mla_absorb_rope",
            lambda: self.ops.absorb(q, self.W_K, fused),
            lambda: self._append(q, latent, fused, cache, rows),
            allowed=not fp8,  # with an FP8 cache M4 also reads what M3 writes
        )
        query = fused if appended.query is None else appended.query.to(x.dtype)
        attended, gate = forks.fork(
            "mla_gate_core",
            lambda: self.ops.attend(query, cache, rows, appended.lengths, self.scale, self.C),
            lambda: self.ops.linear(x, self.g_proj),
        )
        o = self.ops.combine(attended, self.W_V, gate)
        return self.collectives.all_reduce(self.ops.linear(o, self.o_proj))

    def query(self, x: torch.Tensor) -> torch.Tensor:
        """M1: [..., h, N + R]."""
        return self._queries(self.ops.linear(x, self.q_a_proj))

    def _queries(self, low: torch.Tensor) -> torch.Tensor:
        q: torch.Tensor = self.ops.norm_linear(low, self.q_a_layernorm, self.config.latent_rms_eps, self.q_b_proj)
        return q.unflatten(-1, (self.h, self.N + self.R))

    def latent(self, x: torch.Tensor) -> torch.Tensor:
        """M2: the cached row [..., C + R]; only the latent is normed, the tail is neither normed nor rotated."""
        return self._latent_row(self.ops.linear(x, self.kv_a_proj))

    def _latent_row(self, projected: torch.Tensor) -> torch.Tensor:
        row: torch.Tensor = self.ops.latent_row(projected, self.kv_a_layernorm, self.config.latent_rms_eps)
        return row

    def _append(
        self,
        q: torch.Tensor,
        latent: torch.Tensor,
        fused: torch.Tensor,
        cache: LatentCache,
        rows: Placed,
    ) -> Appended:
        """M4: query tail, cache row, lengths."""
        lengths = self.ops.append(q, latent, fused, cache, rows, self.R)
        return Appended(lengths, fused.to(torch.float8_e4m3fn) if self.config.kv_cache == "fp8" else None)

    def prefill(self, x: torch.Tensor, caches: Caches, rows: Placed, forks: Forks) -> torch.Tensor:
        """Many tokens a row, x [B, T, hidden], in absorbed form against the cache; never captured, never forked."""
        cache, q = caches.mla[self.index], self.query(x)
        (B, T, _), end = x.shape, rows.start + x.shape[1]
        cache.append(rows.places.flatten(), self.latent(x).flatten(0, 1))
        absorbed = torch.einsum("bthn,hnc->bthc", q[..., : self.N], self.W_K)
        fused = torch.cat([absorbed, q[..., self.N :]], dim=-1)
        if self.config.kv_cache == "fp8":
            fused = fused.to(torch.float8_e4m3fn).to(x.dtype)
        past = cache.read(rows.table, rows.consecutive, x.dtype)[:, :end]
        scores = scores_of(fused.flatten(1, 2), past).view(B, T, self.h, -1) * self.scale
        columns = torch.arange(end, device=x.device)
        later = columns > columns[rows.start :, None, None]
        probs = scores.masked_fill_(later, float("-inf")).softmax(-1).to(x.dtype)
        latent = torch.bmm(probs.flatten(1, 2), past[..., : self.C]).view(B * T, self.h, self.C)
        o = combine_twin(Attended(latent, None), self.W_V, F.linear(x, self.g_proj).flatten(0, 1))
        return self.collectives.all_reduce(F.linear(o, self.o_proj).view(B, T, -1))
