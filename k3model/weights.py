"""Storage of one rank's weights under the checkpoint's own names.

In: shapes asked for by the layers. Out: tensors, and for each checkpoint tensor a `Part` saying where its share lies.
Layers fuse matrices by asking for one storage and placing several names in it; filling and loading copy into the parts.
Out of scope: reading files (checkpoint loading builds on `Part`), arithmetic.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any

import torch

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """One checkpoint tensor's share on this rank: `view` holds `full[start : start + n]` along `dim`."""

    name: str
    base: torch.Tensor
    index: Index
    full_shape: tuple[int, ...]
    dim: int | None = None  # None: the whole tensor
    start: int = 0

    @property
    def view(self) -> torch.Tensor:
        """The storage to copy into. Shape is the share's, up to dimensions of size one."""
        return self.base[self.index]

    @property
    def kind(self) -> str:
        """packed and scale for MXFP4 experts, plain otherwise."""
        return {"weight_packed": "packed", "weight_scale": "scale"}.get(self.name.rsplit(".", 1)[-1], "plain")

    @property
    def parameters(self) -> int:
        """Logical weights held: two per packed byte, none per scale."""
        held = math.prod(self.full_shape) if self.dim is None else self.view.numel()
        return {"packed": 2, "scale": 0, "plain": 1}[self.kind] * held


@dataclass(frozen=True)
class Weights:
    """A scope of names (`prefix`) over one shared table of parts."""

    device: torch.device
    dtype: torch.dtype
    prefix: str = ""
    parts: dict[str, Part] = field(default_factory=dict)

    def at(self, name: str) -> Weights:
        """The scope below this one."""
        return Weights(self.device, self.dtype, f"{self.prefix}{name}.", self.parts)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Storage of zeros, so that padding stays zero."""
        return torch.zeros(shape, device=self.device, dtype=dtype or self.dtype)

    def place(
        self,
        name: str,
        base: torch.Tensor,
        index: Index = (),
        *,
        full: tuple[int, ...] | None = None,
        dim: int | None = None,
        start: int = 0,
    ) -> None:
        """Say that checkpoint tensor `name` (of shape `full`, cut along `dim` at `start`) lies at `base[index]`."""
        shape = full if full is not None else tuple(base.shape)
        self.parts[self.prefix + name] = Part(self.prefix + name, base, index or (...,), shape, dim, start)

    def matrix(
        self, name: str, rows: int, columns: int, *, cut: int | None = None, rank: int = 0, of: int = 1
    ) -> torch.Tensor:
        """One linear weight `name`.weight of the full shape [rows, columns], cut along `cut` into `of` equal shares."""
        shape = [rows, columns]
        if cut is not None:
            shape[cut] //= of
        storage = self.empty(*shape)
        start = rank * shape[cut] if cut is not None else 0
        self.place(f"{name}.weight", storage, full=(rows, columns), dim=cut, start=start)
        return storage

    def norm(self, name: str, size: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One norm weight."""
        storage = self.empty(size, dtype=dtype)
        self.place(f"{name}.weight", storage)
        return storage


def fill(parts: dict[str, Part], seed: int, *, whole: bool) -> None:
    """Seeded random weights, each by its own name, so that fusing or splitting storage changes no value.

    `whole` draws the full tensor and takes the share, which makes ranks of one model agree; otherwise the share alone
    is drawn, which is enough, and sixteen times cheaper, when the peers are absent.
    """
    for part in parts.values():
        if part.base.is_meta:
            continue
        view = part.view
        generator = torch.Generator(view.device).manual_seed(_seed_of(part.name, seed))
        if part.dim is None or not whole:
            view.copy_(_draw(part, tuple(view.shape), generator))
        else:
            full = _draw(part, part.full_shape, generator)
            share = full.narrow(part.dim, part.start, view.shape[part.dim])
            view.copy_(share.reshape(view.shape))


def _seed_of(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")


def _draw(part: Part, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values that keep activations near one: norms about one, matrices with variance one over their input width."""
    device, fan_in = part.base.device, part.full_shape[-1]
    if part.kind == "packed":
        return torch.randint(0, 256, shape, generator=generator, device=device, dtype=torch.uint8)
    if part.kind == "scale":
        # The root mean square of uniform E2M1 codes is 2.93; a scale near 1/(2.93 sqrt(width)) undoes it.
        middle = 127 - round(math.log2(2.93 * math.sqrt(fan_in * 32)))
        return torch.randint(middle - 1, middle + 2, shape, generator=generator, device=device, dtype=torch.uint8)
    mean, spread = _moments(part.name, fan_in)
    dtype = part.base.dtype
    return torch.randn(shape, generator=generator, device=device, dtype=dtype).mul_(spread).add_(mean)


def _moments(name: str, fan_in: int) -> tuple[float, float]:
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "A_log":
        return 0.0, 0.3
    if leaf == "dt_bias":
        return -2.0, 1.0  # decays mostly between 0.3 and 0.95 a step: neither frozen nor forgetful
    if leaf == "e_score_correction_bias":
        return 0.0, 0.05
    if name.endswith("conv1d.weight"):
        return 0.0, 0.5
    if "norm" in name.rsplit(".", 2)[-2]:
        return 1.0, 0.1
    return 0.0, 1.0 if "embed_tokens" in name else fan_in**-0.5
