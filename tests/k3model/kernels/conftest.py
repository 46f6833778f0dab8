"""Where kernels run: on a GPU, or through Triton's interpreter on a CPU (TRITON_INTERPRET=1), or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.kernels import language

Draw = Callable[..., torch.Tensor]


@pytest.fixture
def device() -> torch.device:
    """The device to launch on; skips the test where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if language.interpreted():
        return torch.device("cpu")
    pytest.skip("kernels need a GPU, or Triton and TRITON_INTERPRET=1")


@pytest.fixture
def draw(device: torch.device) -> Draw:
    """Seeded normal values of a shape."""
    generator = torch.Generator().manual_seed(11)

    def make(*shape: int, dtype: torch.dtype = torch.bfloat16, spread: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * spread).to(device, dtype)

    return make
