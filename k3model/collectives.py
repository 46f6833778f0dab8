"""What joins the ranks of one model: partial sums in, full sums out; or nothing, and then it says so.

Out of scope: placing processes on machines (torchrun's business).
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from k3model.config import K3Config
from k3model.errors import ConfigError


class Collectives:
    """`kind` is what a record must say: none_needed, absent (peers missing, sums stay partial) or the real backend."""

    def __init__(self, config: K3Config) -> None:
        self.rank, self.real = 0, False
        self.kind: str = config.collectives
        if config.collectives != "distributed":
            return
        if not dist.is_initialized() or dist.get_world_size() != config.tp_size:
            raise ConfigError(
                f"collectives are distributed over {config.tp_size} ranks, but no process group of that size is up",
                where=f"{config.name}.collectives",
                fix=f"start {config.tp_size} processes with torchrun, or set collectives=absent",
            )
        self.rank, self.real = dist.get_rank(), True
        self.kind = f"{dist.get_backend()} x{config.tp_size}"

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place; the partial sum itself where there are no peers."""
        if self.real:
            dist.all_reduce(partial)
        return partial

    def gather_columns(self, share: torch.Tensor) -> torch.Tensor:
        """[B, n] of each rank -> [B, n * ranks]; the share itself where there are no peers."""
        if not self.real:
            return share
        shares = [torch.empty_like(share) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, share.contiguous())
        return torch.cat(shares, dim=-1)


def join_ranks(device: str) -> str:
    """Join the process group that torchrun describes; NCCL for CUDA, gloo elsewhere. Returns this rank's device."""
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device.startswith("cuda") else device
    if own.startswith("cuda"):
        torch.cuda.set_device(own)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if own.startswith("cuda") else "gloo")
    return own


def leave_ranks() -> None:
    """End the process group, if one is up: its threads outlive the interpreter otherwise."""
    if dist.is_initialized():
        dist.destroy_process_group()
