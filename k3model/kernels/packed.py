"""What the expert kernels are given: a rank's packed experts, and which row hits which. Out of scope: routing."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Packed(NamedTuple):
    """The experts that one rank holds, as `mxfp4.py` lays them out: bytes of two codes, bytes of scales."""

    w13: torch.Tensor  # [E, 2, I, L / 2], gate then up
    w13_scale: torch.Tensor  # [E, 2, I, L / 32]
    w2: torch.Tensor  # [E, L, I / 2]
    w2_scale: torch.Tensor  # [E, L, I / 32]


class Hits(NamedTuple):
    """By row, and by expert where that is known before the step; all int32 on the device."""

    table: torch.Tensor  # [B, S] the held expert that each slot of a row hits, or -1
    experts: torch.Tensor | None = None  # [J] held experts that are hit, each once, ascending
    slots: torch.Tensor | None = None  # [B, J] the slot with which row b hits expert j, or -1


def known_hits(table: list[list[int]], device: torch.device) -> Hits:
    """From a table that never changes. A row hits an expert with one slot at most."""
    hit = sorted({expert for row in table for expert in row if expert >= 0})
    slots = [[row.index(expert) if expert in row else -1 for expert in hit] for row in table]
    return Hits(*(torch.tensor(values, dtype=torch.int32, device=device) for values in (table, hit, slots)))
