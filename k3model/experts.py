"""The routed experts one rank holds: latent rows and picks in, their weighted sum out, plain or MXFP4 weights.

Three ways to visit them, one arithmetic: `gathered` (few rows, fixed shapes), `grouped` (many rows, host decides),
`seeded` (hits known before the step, so each hit expert's weights are read once and nothing is gathered).
Out of scope: routing, latent projections (`moe.py`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.config import K3Config
from k3model.kernels import experts_mma
from k3model.kernels.packed import Packed
from k3model.mxfp4 import GROUP, interleave
from k3model.pointwise import situ, wide
from k3model.weights import Weights

ROUTED = (("w1", 0), ("w3", 1))  # gate, up: the two halves of the first matrix


class ExpertBank:
    """w13 [E, 2I, L] and w2 [E, L, I]; as MXFP4 each is a pair packed [.., in/2], scale [.., in/32] of bytes."""

    def __init__(self, weights: Weights, config: K3Config, rank: int) -> None:
        self.config, self.count = config, config.local_experts
        self.first = rank * self.count
        self.packed = config.expert_weights == "mxfp4"
        self.dtype = weights.dtype
        inner, latent = config.expert_intermediate, config.latent
        self.interleaved = self.packed and self._for_tensor_cores(weights.device)
        if self.packed:
            self._place_packed(weights, inner, latent)
        else:
            self._place_plain(weights, inner, latent)

    def _place_plain(self, weights: Weights, inner: int, latent: int) -> None:
        self.w13 = weights.empty(self.count, 2, inner, latent)
        self.w2 = weights.empty(self.count, latent, inner)
        for e in range(self.count):
            for name, half in ROUTED:
                weights.place(f"{self.first + e}.{name}.weight", self.w13, (e, half), full=(inner, latent))
            weights.place(f"{self.first + e}.w2.weight", self.w2, (e,), full=(latent, inner))

    def _place_packed(self, weights: Weights, inner: int, latent: int) -> None:
        for kind, per in (("packed", 2), ("scale", GROUP)):
            w13 = weights.empty(self.count, 2, inner, latent // per, dtype=torch.uint8)
            w2 = weights.empty(self.count, latent, inner // per, dtype=torch.uint8)
            setattr(self, f"w13_{kind}", w13)
            setattr(self, f"w2_{kind}", w2)
            for e in range(self.count):
                for name, half in ROUTED:
                    full = (inner, latent // per)
                    weights.place(f"{self.first + e}.{name}.weight_{kind}", w13, (e, half), full=full)
                weights.place(f"{self.first + e}.w2.weight_{kind}", w2, (e,), full=(latent, inner // per))

    def _for_tensor_cores(self, device: torch.device) -> bool:
        """Hits known, kernels that fit, and a share of the experts: all of them may be saved as a checkpoint."""
        config = self.config
        known = config.kernels == "triton" and config.routing == "seeded" and self.count < config.experts
        fits = experts_mma.fits(config.latent, config.expert_intermediate, self.dtype)
        return known and device.type == "cuda" and fits

    def prepare(self) -> None:
        """Bytes just filled or loaded, which are in the checkpoint's order, take the order of the kernels; in place."""
        if self.interleaved:
            whole = (self.w13_packed, self.w13_scale), (self.w2_packed, self.w2_scale)
            for codes, scales in (pair for matrix in whole for pair in zip(*matrix, strict=True)):
                for old, new in zip((codes, scales), interleave(codes, scales), strict=True):
                    old.copy_(new)

    w13_packed: torch.Tensor
    w13_scale: torch.Tensor
    w2_packed: torch.Tensor
    w2_scale: torch.Tensor

    def matrices(self, picked: torch.Tensor | int) -> tuple[torch.Tensor, torch.Tensor]:
        """w13 [.., 2I, L] and w2 [.., L, I] of one expert (a view when plain) or of an index tensor (a gather)."""
        if self.packed:
            w13, w2 = self.as_packed.matrices(picked, self.dtype)
            return w13.flatten(-3, -2), w2
        return self.w13[picked].flatten(-3, -2), self.w2[picked]

    @property
    def as_packed(self) -> Packed:
        """The bank as kernels take it."""
        return Packed(self.w13_packed, self.w13_scale, self.w2_packed, self.w2_scale, self.interleaved)

    def held(self, picks: torch.Tensor) -> torch.Tensor:
        """Picks as numbers of held experts, int32; -1 for those held elsewhere."""
        local = picks - self.first
        return torch.where((local >= 0) & (local < self.count), local, -1).int()

    def _expert(self, z: torch.Tensor, expert: int) -> torch.Tensor:
        """One expert on rows [n, L]."""
        w13, w2 = self.matrices(expert)
        return F.linear(self._situ(F.linear(z, w13)), w2)

    def _situ(self, gate_up: torch.Tensor) -> torch.Tensor:
        return situ(gate_up, self.config.situ_beta, self.config.situ_linear_beta)

    def gathered(self, z: torch.Tensor, picks: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
        """z [B, L], picks and mix [B, k] -> wide [B, L]. Picks held elsewhere weigh nothing; peers add theirs."""
        local = picks - self.first
        held = (local >= 0) & (local < self.count)
        w13, w2 = self.matrices(local.clamp(0, self.count - 1).flatten())
        rows = z.repeat_interleave(picks.shape[1], dim=0).unsqueeze(-1)
        out = torch.bmm(w2, self._situ(torch.bmm(w13, rows).squeeze(-1)).unsqueeze(-1)).view(*picks.shape, -1)
        return (wide(out) * (mix * held).unsqueeze(-1)).sum(1)

    def grouped(self, z: torch.Tensor, picks: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
        """The same for many rows: one pass an expert. Asks the device which rows picked it, so never captured."""
        total = torch.zeros_like(z, dtype=mix.dtype)
        for expert in range(self.count):
            row, slot = (picks == self.first + expert).nonzero(as_tuple=True)
            if row.numel():
                out = wide(self._expert(z[row], expert)) * mix[row, slot].unsqueeze(-1)
                total.index_add_(0, row, out)
        return total

    def seeded(self, z: torch.Tensor, mix: torch.Tensor, groups: list[list[tuple[int, torch.Tensor]]]) -> torch.Tensor:
        """z [n, L], one weight a row, in every group hits by expert known in advance -> wide [n, L]."""
        return sum((self._group(z, mix, group) for group in groups[1:]), self._group(z, mix, groups[0]))

    def _group(self, z: torch.Tensor, mix: torch.Tensor, group: list[tuple[int, torch.Tensor]]) -> torch.Tensor:
        """Every row hits one expert of the group."""
        out = torch.empty_like(z)
        for expert, rows in group:
            out.index_copy_(0, rows, self._expert(z.index_select(0, rows), expert))
        return wide(out * mix.unsqueeze(-1))
