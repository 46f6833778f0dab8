"""Functions that the submission tests run as jobs. Each leaves a line in a file, so that runs can be counted."""

import os
import sys
import time
from pathlib import Path

from k3bench.errors import TraceError
from k3bench.submit import raise_if_over


def _note(log: str, text: str) -> None:
    with Path(log).open("a") as file:
        file.write(text + "\n")


def add(log: str, a: int, b: int, attempt: int) -> dict:
    """The simplest job."""
    _note(log, f"begin {attempt}")
    return {"sum": a + b, "attempt": attempt}


def wait_for(log: str, gate: str, attempt: int) -> dict:
    """Runs until the gate file appears; then says which process it was. A forgotten one ends by itself."""
    _note(log, f"begin {attempt} {os.getpid()}")
    end = time.monotonic() + 300
    while not Path(gate).exists() and time.monotonic() < end:
        raise_if_over()
        time.sleep(0.05)
    _note(log, f"end {attempt}")
    return {"pid": os.getpid(), "attempt": attempt}


def probe(root: str, observation: str, log: str, gate: str, attempt: int) -> dict:
    """A job of a campaign that is no allocation."""
    return wait_for(log, gate, attempt)


def refuse(log: str, attempt: int) -> dict:
    """Raises an error of the project's own."""
    _note(log, f"begin {attempt}")
    raise TraceError("no such family", where="trace.json", fix="name one")


def crash(log: str, attempt: int) -> dict:
    """Raises somebody else's error."""
    _note(log, f"begin {attempt}")
    raise ZeroDivisionError("one over nothing")


def vanish(log: str, until: int, attempt: int) -> dict:
    """Dies without a word, except from attempt `until` on."""
    _note(log, f"begin {attempt}")
    if attempt < until:
        os._exit(9)
    return {"attempt": attempt}


def not_plain(log: str, attempt: int) -> dict:
    """Returns what no JSON can hold."""
    _note(log, f"begin {attempt}")
    return {"value": float("nan"), "modules": sys.modules}


def devices(log: str, attempt: int) -> dict:
    """Which devices the job may see."""
    return {"visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all")}


def fork_and_wait(log: str, gate: str, attempt: int) -> dict:
    """Leaves a forked child behind that outlives it, then waits."""
    if (child := os.fork()) == 0:
        while not Path(gate).exists():
            time.sleep(0.05)
        os._exit(0)
    _note(log, f"begin {attempt} {os.getpid()} {child}")
    if attempt > 1:
        return {"attempt": attempt}
    while True:
        time.sleep(0.05)


def interrupt(log: str, until: int, attempt: int) -> dict:
    """What Ctrl-C does to a job that runs in the head's own process."""
    _note(log, f"begin {attempt}")
    if attempt < until:
        raise KeyboardInterrupt
    return {"attempt": attempt}
