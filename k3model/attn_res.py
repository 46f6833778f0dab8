"""Attention residuals: the running sum and its snapshots, kept in one bank; a softmax mix of them before every block.

In: block outputs [n, hidden]. Out: the mixed input of the next block. Out of scope: norms after the mix (`decode.py`).
The bank's last used row is the running sum P, the rows before it are the snapshots: taking a snapshot is to move on by
one row, and the candidates of a mix are always one contiguous slice.
"""

from __future__ import annotations

import torch

from k3model.pointwise import rms_norm, wide
from k3model.weights import Weights


class MixPair:
    """Norm weight n and projection p of one mix; only their product is used."""

    def __init__(self, weights: Weights, name: str, hidden: int) -> None:
        self.norm = weights.norm(f"{name}_norm", hidden)
        self.proj = weights.matrix(f"{name}_proj", 1, hidden)

    def prepare(self) -> None:
        """The product, wide, [hidden]."""
        self.direction = wide(self.norm) * wide(self.proj[0])


class Residual:
    """The bookkeeping of one pass through the layers, on a bank [snapshots + 1, n, hidden]."""

    def __init__(self, bank: torch.Tensor, embedded: torch.Tensor, block: int, eps: float) -> None:
        self.bank, self.block, self.eps = bank, block, eps
        self.top = 0  # row of the running sum
        self.empty = False  # whether that row holds nothing yet
        self.mixes: list[int] = []  # candidates of every mix so far
        bank[0].copy_(embedded)

    def attention_input(self, layer: int, pair: MixPair | None) -> torch.Tensor:
        """The mix before attention, then the snapshot if one is due. Layer 0 has no snapshot and takes P itself."""
        mixed = self.bank[0] if pair is None else self.mix(pair)
        if layer % self.block == 0:
            self.top += 1
            self.empty = True
        return mixed

    def add(self, out: torch.Tensor) -> None:
        """P = out if P was just emptied, else P + out."""
        row = self.bank[self.top]
        row.copy_(out) if self.empty else row.add_(out)
        self.empty = False

    def mix(self, pair: MixPair) -> torch.Tensor:
        """softmax over candidates of <V / rms(V), n p>, applied to V itself."""
        candidates = self.bank[: self.top + 1]
        self.mixes.append(self.top + 1)
        return mix(candidates, pair.direction, self.eps)


def mix(candidates: torch.Tensor, direction: torch.Tensor, eps: float) -> torch.Tensor:
    """candidates [K, n, hidden], direction [hidden] wide -> [n, hidden]."""
    values = wide(candidates)
    probs = torch.softmax(rms_norm(values, direction, eps).sum(-1), dim=0)
    return torch.einsum("kn,knh->nh", probs, values).to(candidates.dtype)
