"""What one sequence remembers: KDA conv windows and states, MLA latent pages, and the buffers a captured step reads.

In: sizes. Out: pools with fixed addresses, views per layer, snapshots. Out of scope: how layers compute with them.
Row r of a batch owns slot r and, unless told otherwise, consecutive pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from k3model.config import K3Config
from k3model.errors import CapacityError
from k3model.pointwise import wide_dtype


class Staged(NamedTuple):
    """What fork 1's right leg hands to the core. A tuple, so that the fork sees the tensors that cross streams."""

    window: torch.Tensor  # [B, 3d, columns], gathered copy
    history: torch.Tensor  # [3, B, d, 3], the raw inputs before this one
    state: torch.Tensor  # [B, h, V, K], a gathered copy or the pool itself


@dataclass(frozen=True)
class KdaCache:
    """One KDA layer: conv [slots, 3d, columns], state [slots, h, V, K] wide, and a staging buffer that never moves."""

    conv: torch.Tensor
    state: torch.Tensor
    dense: torch.Tensor
    gathered: bool
    repack: bool

    def stage(self, slots: torch.Tensor) -> Staged:
        """K3 gather the windows, K4 repack their last three columns, K5 gather the state."""
        batch = slots.shape[0]
        window = self.conv.index_select(0, slots)
        history = window[..., -3:].unflatten(1, (3, -1)).transpose(0, 1)
        if self.repack:
            history = self.dense[:, :batch].copy_(history)
        return Staged(window, history, self._state(slots))

    def _state(self, slots: torch.Tensor) -> torch.Tensor:
        # Plain torch cannot update scattered rows in place, so the indexed pool relies on row r owning slot r.
        return self.state.index_select(0, slots) if self.gathered else self.state[: slots.shape[0]]

    def store(self, slots: torch.Tensor, staged: Staged, new: torch.Tensor) -> None:
        """K7 scatter the state back if it was gathered; K8 shift the new raw inputs [B, 3d] in and scatter."""
        if self.gathered:
            self.state.index_copy_(0, slots, staged.state)
        self.conv.index_copy_(0, slots, torch.cat([staged.window[..., 1:], new.unsqueeze(-1)], dim=-1))


@dataclass(frozen=True)
class LatentCache:
    """One MLA layer's pages [pages, page_tokens, 576]; values are the first columns of the same row."""

    pages: torch.Tensor

    def append(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows [n, 576] at flat places [n] = page * page_tokens + offset."""
        # An index_copy_ on FP8 has no kernel; the bytes do.
        flat, new = self.pages.flatten(0, 1), rows.to(self.pages.dtype)
        if self.pages.dtype == torch.float8_e4m3fn:
            flat, new = flat.view(torch.uint8), new.view(torch.uint8)
        flat.index_copy_(0, places, new)

    def read(self, table: torch.Tensor, consecutive: bool, dtype: torch.dtype) -> torch.Tensor:
        """[B, tokens, 576] in page-table order: a view where each row's pages lie together, a gather elsewhere."""
        batch = table.shape[0]
        if consecutive:
            return self.pages[: table.numel()].view(batch, -1, self.pages.shape[-1]).to(dtype)
        raw = self.pages.view(torch.uint8) if self.pages.dtype == torch.float8_e4m3fn else self.pages
        rows = raw.index_select(0, table.flatten()).view(self.pages.dtype)
        return rows.view(batch, -1, self.pages.shape[-1]).to(dtype)


@dataclass(frozen=True)
class Rows:
    """The first `batch` rows of the static buffers: what one step reads besides tokens."""

    slots: torch.Tensor  # [B]
    positions: torch.Tensor  # [B], where the next token goes
    table: torch.Tensor  # [B, pages of a row]
    consecutive: bool
    page_tokens: int

    @property
    def batch(self) -> int:
        """Rows in this step."""
        return self.slots.shape[0]

    def stepping(self) -> Placed:
        """These rows with the place of the next token, found once for all layers."""
        page = self.table.gather(1, (self.positions // self.page_tokens).unsqueeze(1)).squeeze(1)
        return Placed(**vars(self), places=page * self.page_tokens + self.positions % self.page_tokens)

    def spanning(self, start: int, tokens: int) -> Placed:
        """These rows with the places of `tokens` positions from `start` on."""
        positions = torch.arange(start, start + tokens, device=self.slots.device)
        return Placed(**vars(self), places=self.places_of(positions), start=start)

    def places_of(self, positions: torch.Tensor) -> torch.Tensor:
        """[B, T] flat cache places of positions [T], the same for every row."""
        page = self.table[:, positions // self.page_tokens]
        return page * self.page_tokens + positions % self.page_tokens


@dataclass(frozen=True)
class Placed(Rows):
    """Rows with the cache places of the tokens under way: [B] in a step, [B, T] in a prefill from `start` on."""

    places: torch.Tensor
    start: int = 0


@dataclass(frozen=True)
class Snapshot:
    """All that a step changes for `batch` rows, except latent rows: those are append-only and lie past `position`.

    So one fill at the largest batch serves snapshots of every smaller one; filling again makes older snapshots stale.
    """

    batch: int
    position: int
    tensors: tuple[torch.Tensor, ...]


class Caches:
    """Pools for `max_batch` sequences of up to `context` tokens. Addresses never change, so graphs stay valid."""

    def __init__(
        self, config: K3Config, max_batch: int, context: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        if max_batch < 1 or context < 1:
            raise CapacityError(f"caches need at least one row and one token, not {max_batch} and {context}")
        self.config, self.max_batch = config, max_batch
        self.pages_per_row = -(-context // config.page_tokens)
        self.context = self.pages_per_row * config.page_tokens
        h, D, d, width = config.kda_heads_local, config.kda_head_dim, config.kda_width_local, config.conv_width
        kda, mla = len(config.kda_layers), len(config.mla_layers)
        latent_dtype = torch.float8_e4m3fn if config.kv_cache == "fp8" else dtype
        self.conv = torch.zeros(kda, max_batch, 3 * d, config.conv_columns, device=device, dtype=dtype)
        self.state = torch.zeros(kda, max_batch, h, D, D, device=device, dtype=wide_dtype(dtype))
        self.dense = torch.zeros(kda, 3, max_batch, d, width - 1, device=device, dtype=dtype)
        pages = max_batch * self.pages_per_row
        self.latent = torch.zeros(mla, pages, config.page_tokens, config.latent_row, device=device, dtype=latent_dtype)
        self.slots = torch.arange(max_batch, device=device)
        self.table = torch.arange(pages, device=device).view(max_batch, -1)
        self.consecutive = True
        self.tokens = torch.zeros(max_batch, device=device, dtype=torch.long)
        self.positions = torch.zeros(max_batch, device=device, dtype=torch.long)
        self.history = torch.zeros(max_batch, self.context, device=device, dtype=torch.long)
        gathered = config.vocab if config.collectives == "distributed" else config.vocab_local
        self.logits = torch.zeros(max_batch, gathered, device=device, dtype=wide_dtype(dtype))
        self.kda = tuple(self._kda(index) for index in range(kda))
        self.mla = tuple(LatentCache(pages) for pages in self.latent)
        self.bank = torch.zeros(config.snapshots + 1, max_batch, config.hidden, device=device, dtype=dtype)

    def check(self, batch: int, tokens: int = 0) -> None:
        """Refuse before any work: more rows than slots, or more tokens than pages."""
        if not 1 <= batch <= self.max_batch:
            raise CapacityError(
                f"batch {batch} does not fit: the model was built for 1 to {self.max_batch} rows",
                fix=f"build with max_batch={batch} or ask for at most {self.max_batch}",
            )
        if tokens > self.context:
            raise CapacityError(
                f"context {tokens} is past the cache, which holds {self.context} tokens a row",
                fix=f"build with context={tokens} or stop earlier",
            )

    def share_pages(self, table: torch.Tensor) -> None:
        """Use another page table [max_batch, pages of a row]; before capture only, since reading then gathers."""
        self.table.copy_(table)
        self.consecutive = False

    def rows(self, batch: int) -> Rows:
        """The view a step of this batch works on."""
        table, page_tokens = self.table[:batch], self.config.page_tokens
        return Rows(self.slots[:batch], self.positions[:batch], table, self.consecutive, page_tokens)

    def _kda(self, index: int) -> KdaCache:
        gathered = self.config.state_pool == "gathered"
        return KdaCache(self.conv[index], self.state[index], self.dense[index], gathered, self.config.staging_repack)

    def clear(self, batch: int) -> None:
        """Forget these rows: position 0, empty windows and states."""
        for tensor in self._changing(batch):
            tensor.zero_()

    def fill(self, batch: int, context: int, generator: torch.Generator) -> None:
        """As after `context` tokens: noise of unit size in windows, states and latent rows, one random token a row."""
        self.clear(batch)
        for pool in (self.conv[:, :batch], self.state[:, :batch]):
            pool.copy_(torch.randn(pool.shape, generator=generator, device=pool.device, dtype=pool.dtype))
        places = self.rows(batch).places_of(torch.arange(context, device=self.positions.device)).flatten()
        noise_dtype = self.conv.dtype
        shape = (places.numel(), self.latent.shape[-1])
        for layer in self.mla:
            layer.append(places, torch.randn(shape, generator=generator, device=places.device, dtype=noise_dtype))
        first = torch.randint(0, self.logits.shape[1], (batch,), generator=generator, device=places.device)
        self.tokens[:batch].copy_(first)
        self.positions[:batch].fill_(context)

    def snapshot(self, batch: int) -> Snapshot:
        """A copy to go back to. All rows of the batch must stand at one position."""
        positions = self.positions[:batch].tolist()
        if len(set(positions)) != 1:
            raise CapacityError(f"rows stand at different positions {positions}: no common snapshot")
        return Snapshot(batch, positions[0], tuple(tensor.clone() for tensor in self._changing(batch)))

    def restore(self, snapshot: Snapshot) -> None:
        """Back to the snapshot. Latent rows from its position on are zeroed: a write that went missing would show."""
        for tensor, saved in zip(self._changing(snapshot.batch), snapshot.tensors, strict=True):
            tensor.copy_(saved)
        if snapshot.position < self.context:
            later = torch.arange(snapshot.position, self.context, device=self.positions.device)
            places = self.rows(snapshot.batch).places_of(later).flatten()
            for layer in self.latent.view(torch.uint8) if self.latent.element_size() == 1 else self.latent:
                layer.flatten(0, 1).index_fill_(0, places, 0)

    def _changing(self, batch: int) -> tuple[torch.Tensor, ...]:
        per_row = (self.tokens, self.positions, self.history, self.logits)
        return (self.conv[:, :batch], self.state[:, :batch], *(tensor[:batch] for tensor in per_row))

    @property
    def bytes(self) -> int:
        """Memory of all pools."""
        return sum(pool.numel() * pool.element_size() for pool in (self.conv, self.state, self.dense, self.latent))
