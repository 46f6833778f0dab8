"""What joins the ranks of one model: partial sums in, full sums out; or nothing, and then it says so.

Every collective is issued from the stream that a step runs on, never from a fork's right leg: two of them at once on
two streams could wait for each other for ever, or spoil what they share. Out of scope: placing processes on machines.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from k3model.config import K3Config
from k3model.errors import CollectiveError, ConfigError
from k3model.streams import in_side_leg

#: One buffer in, one out: a single kernel in a graph. torch 2.13 gave it another name.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Collectives:
    """`kind` is what a record must say: none_needed, absent (peers missing, sums stay partial) or the real backend."""

    def __init__(self, config: K3Config) -> None:
        self.rank, self.real = 0, False
        self.kind: str = config.collectives
        self._warm = False
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
        self._check(partial)
        if self.real:
            dist.all_reduce(partial)
        return partial

    def gather_columns(self, share: torch.Tensor) -> torch.Tensor:
        """[B, n] of each rank -> [B, n * ranks]; the share itself where there are no peers."""
        self._check(share)
        if not self.real:
            return share
        (rows, columns), ranks = share.shape, dist.get_world_size()
        gathered = share.new_empty(ranks * rows, columns)
        _gather(gathered, share.contiguous())
        return gathered.view(ranks, rows, columns).transpose(0, 1).reshape(rows, ranks * columns)

    def barrier(self) -> None:
        """All ranks stand here at once; between runs only, never inside a step."""
        if self.real:
            dist.barrier()

    def any_of(self, flag: bool, device: torch.device) -> bool:
        """Whether any rank says so: what ranks decide together must not hang on one clock."""
        if not self.real:
            return flag
        told = torch.tensor([int(flag)], device=device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told.item())

    def same_everywhere(self, tensor: torch.Tensor) -> bool:
        """Whether every rank holds these bits."""
        if not self.real:
            return True
        digest = hashlib.sha256(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
        own = torch.tensor([int.from_bytes(digest[:7], "big")], device=tensor.device)
        low, high = own.clone(), own.clone()
        dist.all_reduce(low, op=dist.ReduceOp.MIN)
        dist.all_reduce(high, op=dist.ReduceOp.MAX)
        return bool(low == high)

    @property
    def capture_error_mode(self) -> Literal["global", "thread_local"]:
        """NCCL's watchdog asks for events on its own thread, which would end a capture that forbids it to all."""
        return "thread_local" if self.real else "global"

    def _check(self, tensor: torch.Tensor) -> None:
        """Where a collective may be: holds without peers too, so that one process can test it."""
        if in_side_leg():
            raise CollectiveError(
                "a collective in the right leg of a fork could run beside another one",
                fix="issue it after the join, as MoE does with its shared experts",
            )
        if not tensor.is_cuda or not self.real:
            return
        if not torch.cuda.is_current_stream_capturing():
            self._warm = True
        elif not self._warm:
            raise CollectiveError(
                "a collective is captured before the communicator has run once",
                fix="run the step eagerly first: Decode.warm_up",
            )


@dataclass(frozen=True)
class Seat:
    """One rank's place: which of how many, which device of its node, and where they meet."""

    rank: int
    of: int
    local_rank: int
    store: dist.Store


def host_meeting(of: int, limit_s: float) -> tuple[dist.Store, int]:
    """Rank 0 opens the place where ranks meet, on a port that is free: (its store, the port)."""
    limit = timedelta(seconds=limit_s)
    store = dist.TCPStore("127.0.0.1", 0, of, is_master=True, timeout=limit, wait_for_workers=False)
    return store, store.port


def find_meeting(address: str, port: int, of: int, limit_s: float) -> dist.Store:
    """The others go there."""
    limit = timedelta(seconds=limit_s)
    return dist.TCPStore(address, port, of, is_master=False, timeout=limit, wait_for_workers=False)


def join_ranks(device: str, seat: Seat | None = None, *, limit_s: float = 600.0) -> str:
    """Join the process group of a seat, or the one torchrun describes; NCCL for CUDA, gloo elsewhere.

    `limit_s` ends a collective that a peer never enters. Returns this rank's device.
    """
    local = seat.local_rank if seat else int(os.environ.get("LOCAL_RANK", "0"))
    own = f"cuda:{_visible(local)}" if device.startswith("cuda") else device
    if own.startswith("cuda"):
        torch.cuda.set_device(own)
    if not dist.is_initialized():
        backend = "nccl" if own.startswith("cuda") else "gloo"
        bound = torch.device(own) if backend == "nccl" else None
        where: dict[str, Any] = {"store": seat.store, "rank": seat.rank, "world_size": seat.of} if seat else {}
        dist.init_process_group(backend, timeout=timedelta(seconds=limit_s), device_id=bound, **where)
    return own


def _visible(local_rank: int) -> int:
    """The device of a local rank: the one of that number, or the only one, where a launcher shows each rank its own."""
    shown = torch.cuda.device_count()
    if (shown > 1 and local_rank >= shown) or not shown:
        raise CollectiveError(
            f"rank needs the CUDA device {local_rank}, and this node shows {shown}",
            fix="ask for as many GPUs a node as ranks a node",
        )
    return local_rank if shown > 1 else 0


def identity_of(device: str) -> tuple[str | None, str | None]:
    """Name and UUID of a GPU; nothing for a CPU."""
    if not device.startswith("cuda"):
        return None, None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, str(getattr(properties, "uuid", "")) or None


def leave_ranks() -> None:
    """End the process group, if one is up: its threads outlive the interpreter otherwise."""
    if dist.is_initialized():
        dist.destroy_process_group()
