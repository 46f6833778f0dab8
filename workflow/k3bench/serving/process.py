"""A command in, a server that answers out, and its clean end: own log, own process group, every wait bounded.

Out of scope: what is asked of it (`stream.py`), which command (`measure/engines/`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import ServingError
from k3bench.serving.endpoint import is_healthy

#: After SIGTERM a server may finish what it answers; then it is killed.
STOP_LIMIT_S = 30.0
POLL_S = 0.1
LOG_TAIL_BYTES = 2000
_PR_SET_PDEATHSIG = 1


@dataclass
class Server:
    """A started server. `base_url` is on loopback."""

    process: subprocess.Popen[bytes]
    base_url: str
    log: Path

    def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """SIGTERM to the whole group, wait, SIGKILL to what is left. Harmless on a server that is gone."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: int) -> None:
        """The group outlives its leader while a child of it lives."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    @property
    def is_running(self) -> bool:
        """Whether the process that was started is still there."""
        return self.process.poll() is None

    def log_tail(self) -> str:
        """The end of what the server said."""
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""


def start_server(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    ready_limit_s: float,
    port: int | None = None,
    folder: Path | None = None,
) -> Server:
    """Start and wait for `/health`. `{port}` in the command is a free one. Raises `ServingError` with the log's end."""
    port = port or free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    server = Server(spawn(words, log, environment or {}, folder), f"http://127.0.0.1:{port}", log)
    try:
        await_ready(server, ready_limit_s)
    except BaseException:
        server.stop(limit_s=5.0)
        raise
    return server


def spawn(
    words: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """A process with its own group and log that ends with its parent. Raises `ServingError` if it cannot start."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
    except OSError as error:
        raise ServingError(
            f"cannot start {words[0]!r}: {error.strerror}", fix="check the first word of serving.command"
        ) from None


def await_ready(server: Server, limit_s: float, poll_s: float = POLL_S) -> None:
    """Until `/health` answers. Raises `ServingError` when the process ends, or nothing answers within the limit."""
    deadline = time.monotonic() + limit_s
    while not is_healthy(server.base_url):
        if not server.is_running:
            raise ServingError(
                f"the server ended with status {server.process.returncode} before it was ready",
                where=str(server.log),
                fix=f"its last words: {server.log_tail() or '(none)'}",
            )
        if time.monotonic() > deadline:
            raise ServingError(
                f"the server was not ready within {limit_s:g} s",
                where=str(server.log),
                fix=f"raise serving.ready_limit_s, or see its last words: {server.log_tail() or '(none)'}",
            )
        time.sleep(poll_s)


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """A killed benchmark leaves no server behind to slow the next one."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
