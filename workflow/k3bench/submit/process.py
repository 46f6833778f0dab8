"""Which process is meant, and does it live: a pid is reused, a pid with its start time is not.

In: a pid. Out: its identity, its life. Out of scope: what it does.
"""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

from k3bench.records.ledger import Process

PROC = Path("/proc")


def identify(pid: int) -> Process | None:
    """The running process of that number; None when there is none (a zombie is none)."""
    start = _start_of(pid)
    return None if start is None else Process(host=platform.node(), boot=boot_id(), pid=pid, start=start)


def is_here(process: Process) -> bool:
    """True when the process belongs to this host since its last boot: only then can its pid be asked about."""
    return process.host == platform.node() and process.boot == boot_id()


def lives(process: Process) -> bool:
    """True when exactly this process still runs on this host."""
    return is_here(process) and _start_of(process.pid) == process.start


def find_by_arguments(*wanted: str) -> int | None:
    """A live process with exactly these among its command-line arguments, or None."""
    return next((pid for pid in _pids() if set(wanted) <= set(_arguments(pid)) and _start_of(pid) is not None), None)


@functools.cache
def boot_id() -> str:
    """Changes with every boot, so that pids of the last boot are never believed."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _start_of(pid: int) -> str | None:
    """Start time of a live process: clock ticks since boot, or the date `ps` prints where there is no /proc."""
    try:
        # the command in parentheses may hold anything, so count from its end
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return None if PROC.joinpath("self").exists() else _ps(pid, "lstart")


def _ps(pid: int, column: str) -> str | None:
    answer = subprocess.run(["ps", "-o", f"{column}=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _pids() -> list[int]:
    if PROC.joinpath("self").exists():
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    answer = subprocess.run(["ps", "-axo", "pid="], capture_output=True, text=True, check=False)
    return [int(line) for line in answer.stdout.split()]


def _arguments(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [] if PROC.joinpath("self").exists() else (_ps(pid, "args") or "").split()


def me() -> Process:
    """This process."""
    found = identify(os.getpid())
    return found or Process(host=platform.node(), boot=boot_id(), pid=os.getpid(), start="unknown")
