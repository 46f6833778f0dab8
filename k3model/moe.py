"""The feed-forward side: dense SiTU MLP, and the latent MoE with shared experts. [n, hidden] in, [n, hidden] out.

    x ─ router ─┬─ top-k ─┬─ experts (MXFP4 or plain) ─ sum over ranks ─ norm ─ latent up ─┐ fork
                ├─ down ──┘                                                               │ routed_shared
                └─ shared experts ────────────────────────────────────────────────────────┴─ + ─▶

Out of scope: input norm and residual (`decode.py`), which hits are known in advance (`hits.py`).
"""

from __future__ import annotations

import torch

from k3model.collectives import Collectives
from k3model.config import K3Config
from k3model.experts import ExpertBank
from k3model.hits import SeededHits
from k3model.kernels import Ops
from k3model.kernels.packed import Hits
from k3model.pointwise import wide_dtype
from k3model.streams import Forks
from k3model.weights import Weights

#: What a feed-forward leaves: its output, or two tensors that the residual sums.
FedForward = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class MLP:
    """down(situ(gate x, up x)); `split` says whether the width is shared out over the ranks."""

    def __init__(
        self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops, width: int, *, split: bool
    ) -> None:
        self.ops = ops
        self.config, of, rank = config, config.tp_size if split else 1, collectives.rank if split else 0
        local, hidden = width // of, config.hidden
        self.gate_up = weights.empty(2 * local, hidden)
        for i, name in enumerate(("gate_proj", "up_proj")):
            rows = slice(i * local, (i + 1) * local)
            weights.place(f"{name}.weight", self.gate_up, (rows,), full=(width, hidden), dim=0, start=rank * local)
        self.down_proj = weights.matrix("down_proj", hidden, width, cut=1, rank=rank, of=of)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A partial sum over ranks if the width is split."""
        inner = self.ops.situ_linear(x, self.gate_up, self.config.situ_beta, self.config.situ_linear_beta)
        out: torch.Tensor = self.ops.linear(inner, self.down_proj)
        return out


class DenseMLP:
    """The feed-forward of the first layer."""

    family = "other"

    def __init__(self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops) -> None:
        self.mlp = MLP(weights.at("mlp"), config, collectives, ops, config.mlp_intermediate, split=True)
        self.collectives = collectives

    def prepare(self) -> None:
        """Nothing to derive."""

    def step(self, x: torch.Tensor, forks: Forks) -> FedForward:
        """[n, hidden] -> [n, hidden]; the same for one token a row and for many."""
        return self.collectives.all_reduce(self.mlp(x))

    prefill = step


class MoE:
    """Router, latent experts, shared experts of one layer."""

    family = "MoE"

    def __init__(self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops, layer: int) -> None:
        self.config, self.collectives, self.ops = config, collectives, ops
        moe = weights.at("block_sparse_moe")
        self.gate = moe.matrix("gate", config.experts, config.hidden)
        self.bias = moe.empty(config.experts, dtype=wide_dtype(weights.dtype))
        moe.place("gate.e_score_correction_bias", self.bias)
        self.down = moe.matrix("routed_expert_down_proj", config.latent, config.hidden)
        self.norm = moe.norm("routed_expert_norm", config.latent)
        self.up = moe.matrix("routed_expert_up_proj", config.hidden, config.latent)
        self.experts = ExpertBank(moe.at("experts"), config, collectives.rank)
        self.shared_is_split = config.variant == "B" and config.tp_size > 1
        width, split = config.shared_intermediate, self.shared_is_split
        self.shared_experts = MLP(moe.at("shared_experts"), config, collectives, ops, width, split=split)
        self.hits = SeededHits(config, layer) if config.routing == "seeded" else None

    def prepare(self) -> None:
        """Codes of experts take the order that their kernels want."""
        self.experts.prepare()

    def step(self, x: torch.Tensor, forks: Forks) -> FedForward:
        """[B, hidden], a handful of rows, fixed shapes: fit for capture."""
        return self._forward(x, forks, many=False)

    def prefill(self, x: torch.Tensor, forks: Forks) -> FedForward:
        """[n, hidden], many rows: experts one after the other, each on the rows that picked it."""
        return self._forward(x, forks, many=True)

    def _forward(self, x: torch.Tensor, forks: Forks, *, many: bool) -> FedForward:
        # The router runs before the fork, as in the engine, unless it has a fork of its own.
        logits = None if forks.policy.moe_router_latent else self.score(x)
        routed, shared = forks.fork(
            "routed_shared", lambda: self._routed(x, logits, forks, many=many), lambda: self.shared_experts(x)
        )
        # After the join, so that two collectives never run at once.
        return routed, self.collectives.all_reduce(shared) if self.shared_is_split else shared

    def _routed(self, x: torch.Tensor, logits: torch.Tensor | None, forks: Forks, *, many: bool) -> torch.Tensor:
        (picks, mix), z = forks.fork(
            "moe_router_latent",
            lambda: self.pick(self.score(x) if logits is None else logits),
            lambda: self.ops.linear(x, self.down),
        )
        if self.ops.experts is not None and self.experts.packed and not many:
            r = self._routed_by_kernel(z, picks, mix)
        elif self.hits is not None:
            r = self.experts.seeded(z, mix[:, 0], self.hits.groups(z.shape[0], z.device))
        elif many:
            r = self.experts.grouped(z, picks, mix)
        else:
            r = self.experts.gathered(z, picks, mix)
        r = self.collectives.all_reduce(r.to(x.dtype))
        out: torch.Tensor = self.ops.norm_linear(r, self.norm, self.config.rms_eps, self.up)
        return out

    def _routed_by_kernel(self, z: torch.Tensor, picks: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
        """The same by a table [B, slots] of held experts, -1 where a pick is held elsewhere."""
        assert self.ops.experts is not None
        if self.hits is not None:
            hits = self.hits.known(z.shape[0], z.device)
            mix = mix[:, :1].expand(hits.table.shape)
        else:
            hits = Hits(self.experts.held(picks))
        betas = self.config.situ_beta, self.config.situ_linear_beta
        r: torch.Tensor = self.ops.experts(z, mix, hits, self.experts.as_packed, *betas)
        return r

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """The router's logits [n, experts], wide."""
        logits: torch.Tensor = self.ops.linear_wide(x, self.gate)
        return logits

    def pick(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Picked experts [n, k] and their weights [n, k], wide. The bias selects and does not weigh."""
        picked: tuple[torch.Tensor, torch.Tensor] = self.ops.pick(
            logits, self.bias, self.config.top_k, self.config.routed_scale
        )
        return picked
