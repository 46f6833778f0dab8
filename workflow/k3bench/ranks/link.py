"""The line between the leader and a rank: one JSON object a message, both sides knowing the token. No pickle.

In: addresses, a token. Out: connections that send and receive plain data. Out of scope: what is said.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

Message = dict[str, Any]
#: An answer holds the step times of a batch or the rows of a verification.
MAX_BYTES = 64 * 1024 * 1024


class Door:
    """The leader's listening side; connections that know the token queue up."""

    def __init__(self, token: str) -> None:
        self._listener = Listener(("", 0), backlog=1024, authkey=token.encode())
        self._arrived: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        self._open = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.address[1])

    def _accept(self) -> None:
        while self._open:
            try:
                self._arrived.put(self._listener.accept())
            except Exception:  # a stranger without the token, a port scan, or the closing of the door
                time.sleep(0.05)

    def next(self, limit_s: float) -> Connection | None:
        """The next connection, or None."""
        try:
            return self._arrived.get(timeout=limit_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """No more connections."""
        self._open = False
        self._listener.close()


def reach(addresses: Sequence[str], port: int, token: str, limit_s: float) -> tuple[Connection, str]:
    """The leader's door, by whichever address it can be reached: (connection, that address)."""
    end, why = time.monotonic() + limit_s, "no address"
    while time.monotonic() < end:
        for address in addresses:
            try:
                return Client((address, port), authkey=token.encode()), address
            except Exception as error:
                why = f"{address}: {error}"
        time.sleep(0.2)
    raise ConnectionError(f"the leader cannot be reached at {', '.join(addresses)} port {port}: {why}")


def say(connection: Connection, message: Message) -> None:
    """Send one message."""
    connection.send_bytes(json.dumps(message).encode())


def hear(connection: Connection) -> Message:
    """Wait for one message. Raises EOFError when the other side is gone."""
    try:
        told = json.loads(connection.recv_bytes(MAX_BYTES))
    except OSError as error:
        raise EOFError(str(error)) from None
    if not isinstance(told, dict):
        raise EOFError("no message")
    return told
