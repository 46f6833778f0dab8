"""What every member can do: host the meeting, join the process group, leave it. Members add `do_...` methods.

In: a place and the leader's address. Out: a process group over all ranks. Out of scope: the model.
"""

from __future__ import annotations

from typing import Any

from k3bench.ranks.link import Message
from k3bench.records.fingerprint import RankPlace
from k3model.collectives import Seat, find_meeting, host_meeting, identity_of, join_ranks, leave_ranks
from k3model.decode import device_of


class RankMember:
    """One rank. `device` is set once it has joined."""

    device = "cpu"

    def __init__(self, place: RankPlace, of: int, leader: str, limit_s: float, arguments: dict[str, Any]) -> None:
        self.place, self.of, self.leader, self.limit_s = place, of, leader, limit_s
        self.arguments = arguments
        self._store: Any = None

    def do_host(self) -> Message:
        """Rank 0: open the place where all meet. The others reach it where they reached the leader: on its node."""
        self._store, port = host_meeting(self.of, self.limit_s)
        return {"port": port}

    def do_join(self, port: int) -> Message:
        """Join the group; one device a local rank."""
        store = self._store or find_meeting(self.leader, port, self.of, self.limit_s)
        seat = Seat(self.place.index, self.of, self.place.local_rank, store)
        self.device = join_ranks(device_of(self.arguments["device"]), seat, limit_s=self.limit_s)
        name, uuid = identity_of(self.device)
        return {"device": self.device, "gpu": name, "gpu_uuid": uuid}

    def leave(self) -> None:
        """End the group; a peer that is gone must not hold this rank up, so failures are only printed."""
        try:
            leave_ranks()
        except Exception as error:
            print(f"leaving the process group: {error}", flush=True)
