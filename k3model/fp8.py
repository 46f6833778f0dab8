"""FP8 e4m3 weights with 128x128 block scales, as an engine makes them at load time: matrix in, codes and scales out.

The product is the readable twin: it restores the matrix and multiplies. Out of scope: block-scaled GEMM kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

BLOCK = 128
E4M3_MAX = 448.0


@dataclass(frozen=True)
class Fp8Matrix:
    """codes [out, in] in e4m3; scales [ceil(out/128), ceil(in/128)] in float32."""

    codes: torch.Tensor
    scales: torch.Tensor

    def restore(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix that the codes stand for."""
        rows, columns = self.codes.shape
        scales = self.scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        return (self.codes.to(scales.dtype) * scales).to(dtype)


def quantise(matrix: torch.Tensor) -> Fp8Matrix:
    """Each block's largest magnitude maps to 448; a block of zeros keeps scale one."""
    rows, columns = matrix.shape
    padded = F.pad(matrix.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    largest = blocks.abs().amax(dim=(1, 3))
    scales = torch.where(largest > 0, largest / E4M3_MAX, torch.ones_like(largest))
    codes = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return Fp8Matrix(codes.to(torch.float8_e4m3fn), scales)


def project(x: torch.Tensor, weight: torch.Tensor | Fp8Matrix) -> torch.Tensor:
    """x W^T for a plain or an FP8 weight."""
    return F.linear(x, weight if isinstance(weight, torch.Tensor) else weight.restore(x.dtype))
