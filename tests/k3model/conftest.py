"""Small models for the k3model tests, on a CPU with one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from k3model.config import preset
from k3model.decode import K3, build

Builder = Callable[..., K3]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def nano() -> Builder:
    """Builds a preset (nano unless named) with options, for four rows and 128 tokens."""

    def make(name: str = "nano", *, dtype: torch.dtype = torch.float32, max_batch: int = 4, **options: Any) -> K3:
        return build(preset(name, **options), dtype=dtype, max_batch=max_batch, context=128)

    return make


@pytest.fixture
def prompt() -> torch.Tensor:
    """Four rows of seventy tokens: longer than a page and than a chunk."""
    return torch.randint(0, 512, (4, 70), generator=torch.Generator().manual_seed(7))
