"""MXFP4 weights: E2M1 nibbles and one E8M0 scale for 32 columns in, plain matrices out. The twin for kernels to match.

Layout: two nibbles a byte, low nibble = even column; a scale byte s stands for 2^(s - 127).
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812

GROUP = 32
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@cache
def byte_table(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[256, 2]: the two values a byte stands for. Made once per device, before any graph is captured."""
    values = [*E2M1, *(-value for value in E2M1)]
    return torch.tensor([[values[b & 15], values[b >> 4]] for b in range(256)], device=device, dtype=dtype)


@cache
def scale_table(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[256, 1]: the power of two a scale byte stands for."""
    return torch.tensor([[2.0 ** (s - 127)] for s in range(255)] + [[float("nan")]], device=device, dtype=dtype)


def dequantise(packed: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """packed [..., out, in/2] and scale [..., out, in/32], both bytes -> [..., out, in]. Exact in bfloat16."""
    values = F.embedding(packed.int(), byte_table(packed.device, dtype)).flatten(-2)
    factors = F.embedding(scale.int(), scale_table(scale.device, dtype))
    return (values.unflatten(-1, (-1, GROUP)) * factors).flatten(-2)


def quantise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., out, in] -> packed, scale. The scale is the power of two that brings a group's largest value below 8."""
    groups = matrix.float().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1).clamp_min(2.0**-125)
    exponent = torch.floor(torch.log2(largest)) - 2
    scaled = groups / torch.exp2(exponent).unsqueeze(-1)
    levels = torch.tensor(E2M1, device=matrix.device)
    code = (scaled.abs().unsqueeze(-1) - levels).abs().argmin(-1) + 8 * (scaled < 0)
    code = code.flatten(-2).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (exponent + 127).to(torch.uint8)
