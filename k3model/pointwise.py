"""The small formulas every block shares: norm and activation. Tensors in, tensors of the same kind out."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812


def wide(x: torch.Tensor) -> torch.Tensor:
    """float32, or float64 when the model runs in it: where K3 wants more than the weights' precision."""
    return x if x.dtype == torch.float64 else x.float()


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype `wide` gives for this one."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def linear_wide(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x W^T with a wide result. Half-precision products are exact in float32, so only the sum needs the width."""
    if x.is_cuda and x.dtype == torch.bfloat16:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(wide(x), wide(weight))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def situ(gate_up: torch.Tensor, beta: float, linear_beta: float) -> torch.Tensor:
    """SiTU of [..., 2n] = [gate | up]: beta tanh(a/beta) sigmoid(a) * linear_beta tanh(u/linear_beta) -> [..., n]."""
    gate, up = wide(gate_up).chunk(2, dim=-1)
    gated = torch.tanh(gate / beta) * torch.sigmoid(gate)
    return (gated * torch.tanh(up / linear_beta) * (beta * linear_beta)).to(gate_up.dtype)
