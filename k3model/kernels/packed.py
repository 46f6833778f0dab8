"""What the expert kernels are given: a rank's packed experts, and which row hits which. Out of scope: routing."""

from __future__ import annotations

from typing import NamedTuple

import torch

from k3model.mxfp4 import deinterleave, dequantise, interleave


class Packed(NamedTuple):
    """The experts that one rank holds: bytes of two codes, in one of the two orders of `mxfp4.py`, bytes of scales."""

    w13: torch.Tensor  # [E, 2, I, L / 2], gate then up
    w13_scale: torch.Tensor  # [E, 2, I, L / 32]
    w2: torch.Tensor  # [E, L, I / 2]
    w2_scale: torch.Tensor  # [E, L, I / 32]
    interleaved: bool = False

    def matrices(self, picked: torch.Tensor | int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """w13 [.., 2, I, L] and w2 [.., L, I] of one expert or of an index tensor."""
        w13, w2 = (self.w13[picked], self.w13_scale[picked]), (self.w2[picked], self.w2_scale[picked])
        if self.interleaved:
            w13, w2 = deinterleave(*w13), deinterleave(*w2)
        return dequantise(*w13, dtype), dequantise(*w2, dtype)

    def interleave(self) -> Packed:
        """The same experts for the tensor cores."""
        return Packed(*interleave(self.w13, self.w13_scale), *interleave(self.w2, self.w2_scale), interleaved=True)


class Hits(NamedTuple):
    """By row, and by expert where that is known before the step; all int32 on the device."""

    table: torch.Tensor  # [B, S] the held expert that each slot of a row hits, or -1
    experts: torch.Tensor | None = None  # [J] held experts that are hit, each once, ascending
    slots: torch.Tensor | None = None  # [B, J] the slot with which row b hits expert j, or -1
    reads: torch.Tensor | None = None  # [B or 8, J] row b if it hits expert j, else the first row that does


def known_hits(table: list[list[int]], device: torch.device) -> Hits:
    """From a table that never changes. A row hits an expert with one slot at most."""
    hit = sorted({expert for row in table for expert in row if expert >= 0})
    slots = [[row.index(expert) if expert in row else -1 for expert in hit] for row in table]
    hitting = [[b for b, row in enumerate(table) if expert in row] for expert in hit]
    reads = [[b if b in rows else rows[0] for rows in hitting] for b in range(max(len(table), 8))]
    return Hits(*(torch.tensor(values, dtype=torch.int32, device=device) for values in (table, hit, slots, reads)))
