"""MXFP4 weights: E2M1 nibbles and one E8M0 scale for 32 columns in, plain matrices out. The twin for kernels to match.

Layout: two nibbles a byte, low nibble = even column; a scale byte s stands for 2^(s - 127). The tensor cores' kernels
want the codes of a group in another order, `interleave`d.
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


def interleave(packed: torch.Tensor) -> torch.Tensor:
    """Bytes [..., in/2] in the order of which a register makes pairs of bfloat16 in the fewest steps; same shape.

    A group's word w of four has the pairs of columns 4w, 4w + 2, 4w + 16 and 4w + 18 with the next. Each pair is spread
    over the word's halves as bfloat16's bits, then moved to where the pairs ahead of it have none.
    """
    columns = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).int()
    code = columns.unflatten(-1, (-1, 2, 4, 2, 2)).movedim(-4, -3)  # [..., group, word, half, pair of it, column]
    spread = ((code & 8) << 12) | ((code & 7) << 6)
    first, second, third, last = (spread[..., 0] | (spread[..., 1] << 16)).flatten(-2).unbind(-1)
    last = ((last >> 12) & 0x00080008) | ((last >> 7) & 0x00030003) | ((last >> 2) & 0x00100010)
    return (first | _rotated(second, -10) | _rotated(third, -13) | last).flatten(-2).contiguous().view(torch.uint8)


def deinterleave(packed: torch.Tensor) -> torch.Tensor:
    """The other way, moved as the kernels do it: bits 6 to 8 of each half are a code's magnitude, bit 15 its sign."""
    word = packed.contiguous().view(torch.int32).unflatten(-1, (-1, 4))
    last = (word & 0x001B001B) * 0x1084  # shifted by 12, by 7 and by 2
    pair = torch.stack((word, _rotated(word, 10), _rotated(word, 13), last), -1)
    halves = pair.view(torch.int16).unflatten(-1, (2, 2, 2))
    code = (((halves >> 12) & 8) | ((halves >> 6) & 7)).to(torch.uint8).movedim(-3, -4).flatten(-5)
    return code[..., 0::2] | (code[..., 1::2] << 4)


def _rotated(word: torch.Tensor, left: int) -> torch.Tensor:
    """int32 words with their bits rotated."""
    left %= 32
    return (word << left) | ((word >> (32 - left)) & ((1 << left) - 1))


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
