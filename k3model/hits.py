"""Which held expert every row hits when it is not the router that decides: a seeded table, so that bytes are known.

A model made of shares has a group of experts for each, and a row hits the same one in every group: so one rank that
holds all groups computes what as many ranks with a group each add up to.

Out of scope: real routing (`moe.py`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from k3model.config import K3Config

if TYPE_CHECKING:
    import torch

    from k3model.kernels.packed import Hits


def seeded_hits(config: K3Config, layer: int, rows: int) -> list[int]:
    """The expert that each of `rows` hits in each group of held experts: uniform, seeded, alike for any `rows`."""
    draw = random.Random(f"{config.routing_seed}:{layer}")
    return [draw.randrange(config.local_experts // config.hit_groups) for _ in range(rows)]


class SeededHits:
    """Rows grouped by expert, as index tensors made once per number of rows: a capture must not copy from the host."""

    def __init__(self, config: K3Config, layer: int) -> None:
        self.config, self.layer = config, layer
        self._groups: dict[int, list[list[tuple[int, torch.Tensor]]]] = {}
        self._known: dict[int, Hits] = {}

    def groups(self, rows: int, device: torch.device) -> list[list[tuple[int, torch.Tensor]]]:
        """For each group (expert, row indices) of every expert that is hit."""
        import torch

        if rows not in self._groups:
            hits = seeded_hits(self.config, self.layer, rows)
            hit_by = [
                (expert, torch.tensor([row for row, hit in enumerate(hits) if hit == expert], device=device))
                for expert in sorted(set(hits))
            ]
            apart = self.config.local_experts // self.config.hit_groups
            starts = [group * apart for group in range(self.config.hit_groups)]
            self._groups[rows] = [[(first + expert, rows_) for expert, rows_ in hit_by] for first in starts]
        return self._groups[rows]

    def known(self, rows: int, device: torch.device) -> Hits:
        """The held expert that every row hits in each group, by row and by expert."""
        from k3model.kernels.packed import known_hits

        if rows not in self._known:
            apart = self.config.local_experts // self.config.hit_groups
            hits = seeded_hits(self.config, self.layer, rows)
            table = [[group * apart + hit for group in range(self.config.hit_groups)] for hit in hits]
            self._known[rows] = known_hits(table, device)
        return self._known[rows]
