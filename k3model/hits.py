"""Which held expert every row hits when peers are absent: a seeded table, so that bytes per step are known.

Out of scope: real routing (`moe.py`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from k3model.config import K3Config

if TYPE_CHECKING:
    import torch


def seeded_hits(config: K3Config, layer: int, rows: int) -> list[int]:
    """The held expert that each of `rows` hits in this layer: uniform, seeded, alike for any `rows`."""
    draw = random.Random(f"{config.routing_seed}:{layer}")
    return [draw.randrange(config.local_experts) for _ in range(rows)]


class SeededHits:
    """Rows grouped by expert, as index tensors made once per number of rows: a capture must not copy from the host."""

    def __init__(self, config: K3Config, layer: int) -> None:
        self.config, self.layer = config, layer
        self._groups: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def groups(self, rows: int, device: torch.device) -> list[tuple[int, torch.Tensor]]:
        """(expert, row indices) for every expert that is hit."""
        import torch

        if rows not in self._groups:
            hits = seeded_hits(self.config, self.layer, rows)
            self._groups[rows] = [
                (expert, torch.tensor([row for row, hit in enumerate(hits) if hit == expert], device=device))
                for expert in sorted(set(hits))
            ]
        return self._groups[rows]
