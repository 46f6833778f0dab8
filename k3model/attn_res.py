"""Attention residuals: the running sum and its snapshots, kept in one bank; a softmax mix of them before every block.

In: block outputs [n, hidden]. Out: the mixed and normed input of the next block. Out of scope: the mix itself
(`kernels/norm.py`).
The bank's last used row is the running sum P, the rows before it are the snapshots: taking a snapshot is to move on by
one row, and the candidates of a mix are always one contiguous slice.
"""

from __future__ import annotations

import torch

from k3model.kernels import Ops
from k3model.kernels.norm import Kept
from k3model.pointwise import wide
from k3model.weights import Weights


class MixPair:
    """Norm weight n and projection p of one mix; only their product is used."""

    def __init__(self, weights: Weights, name: str, hidden: int) -> None:
        self.norm = weights.norm(f"{name}_norm", hidden)
        self.proj = weights.matrix(f"{name}_proj", 1, hidden)

    def direction(self) -> torch.Tensor:
        """The product, wide, [hidden]."""
        return wide(self.norm) * wide(self.proj[0])


class Residual:
    """The bookkeeping of one pass through the layers, on a bank [snapshots + 1, n, hidden].

    directions [mixes, hidden] wide: one for each mix, in the order of the mixes.
    """

    def __init__(
        self, bank: torch.Tensor, embedded: torch.Tensor, directions: torch.Tensor, block: int, eps: float, ops: Ops
    ) -> None:
        self.bank, self.directions, self.block, self.eps, self.ops = bank, directions, block, eps, ops
        self.kept = Kept.of(bank, len(directions))
        self.top = 0  # row of the running sum
        self.empty = False  # whether that row holds nothing yet
        self.waiting: tuple[torch.Tensor, ...] = ()  # what the next mix adds to it first
        self.mixes: list[int] = []  # candidates of every mix so far
        bank[0].copy_(embedded)

    def attention_input(self, layer: int, norm: torch.Tensor) -> torch.Tensor:
        """The mix before attention, then the snapshot if one is due. Layer 0 has no snapshot and takes P itself."""
        normed = self.mix(norm) if layer else self._normed(None, norm)
        if layer % self.block == 0:
            self.ops.keep(self.kept, self.bank, self.top, self.directions)
            self.top += 1
            self.empty = True
        return normed

    def add(self, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        """P = out if P was just emptied, else P + out; of several tensors the sum. Done with the mix that follows."""
        self.waiting = out if isinstance(out, tuple) else (out,)

    def mix(self, norm: torch.Tensor) -> torch.Tensor:
        """RMSNorm of: softmax over candidates of <V / rms(V), n p>, applied to V itself."""
        self.mixes.append(self.top + 1)
        return self._normed(len(self.mixes) - 1, norm)

    def _normed(self, which: int | None, norm: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.ops.add_mix_norm(
            self.bank, self.top, self.waiting, self.empty, self.directions, which, norm, self.eps, self.kept
        )
        self.waiting, self.empty = (), False
        return normed
