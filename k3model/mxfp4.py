"""MXFP4 weights: E2M1 nibbles and one E8M0 scale for 32 columns in, plain matrices out. The twin for kernels to match.

Layout: two nibbles a byte, low nibble = even column; a scale byte s stands for 2^(s - 127). The tensor cores' kernels
want both in another order, `interleave`d.
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


def interleave(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes [..., out, in/2] and [..., out, in/32] in the order in which a warp takes them; same shapes.

    Tiles of eight rows and 128 columns lie one after the other, those of the same rows first. Each of four threads of a
    row has the same quarter of its four groups, the words of which lie together. A word is eight columns in the order
    of which a register makes pairs of bfloat16 in the fewest steps: each pair is spread over the word's halves as
    bfloat16's bits, then moved to where the pairs ahead of it have none.
    A scale is the exponent byte of 2^126 times as much, what the kernels multiply by; above two, that is infinite.
    """
    pairs = packed.unflatten(-2, (-1, 8)).unflatten(-1, (-1, 4, 4, 4)).int()
    first, second, third, last = (_spread(pairs & 15) | (_spread(pairs >> 4) << 16)).unbind(-1)
    last = ((last >> 12) & 0x00080008) | ((last >> 7) & 0x00030003) | ((last >> 2) & 0x00100010)
    words = _other_order(first | _rotated(second, -10) | _rotated(third, -13) | last)
    groups = (scale.int() + 126).clamp_max(255).to(torch.uint8).unflatten(-2, (-1, 8)).unflatten(-1, (-1, 4, 1))
    return words.view(torch.uint8).reshape(packed.shape), _other_order(groups).reshape(scale.shape)


def deinterleave(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The other way, moved as the kernels do it: bits 6 to 8 of each half are a code's magnitude, bit 15 its sign."""
    blocks = packed.shape[-2] // 8
    word = _other_order(packed.contiguous().view(torch.int32).flatten(-2).unflatten(-1, (blocks, -1, 8, 4, 4)))
    last = (word & 0x001B001B) * 0x1084  # shifted by 12, by 7 and by 2
    pair = torch.stack((word, _rotated(word, 10), _rotated(word, 13), last), -1)
    halves = pair.view(torch.int16).unflatten(-1, (4, 2))
    code = (((halves >> 12) & 8) | ((halves >> 6) & 7)).to(torch.uint8)
    exponent = _other_order(scale.flatten(-2).unflatten(-1, (blocks, -1, 8, 1, 4))).reshape(scale.shape)
    return (code[..., 0] | (code[..., 1] << 4)).reshape(packed.shape), exponent.where(exponent == 255, exponent - 126)


def _spread(code: torch.Tensor) -> torch.Tensor:
    """A code's bits where bfloat16 has them: the sign at 15, the magnitude from 6."""
    return ((code & 8) << 12) | ((code & 7) << 6)


def _other_order(x: torch.Tensor) -> torch.Tensor:
    """[..., block of eight rows, row, chunk, group, quarter] as [..., block, chunk, row, quarter, group], or back."""
    return x.transpose(-4, -3).transpose(-2, -1).contiguous()


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
