"""trtllm-serve, stood in for: documented flags and keys in, nano K3 served on the port that was asked for.

Faults, each taken once by the first server that finds its file in K3_STANDIN_FAULTS: `hang` (never gets ready), `crash`
(ends after a few requests).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.standin.arguments import asked

#: A server that is told to crash has answered this many requests before.
ANSWERED = 3


def main(words: list[str]) -> int:
    """Becomes the server, or misbehaves as it is told to."""
    model, options = words[0], asked(words[1:])
    command = server(model, options)
    fault = take_fault()
    if fault == "hang":
        print("standin: told to hang", flush=True)
        time.sleep(3600)
    if fault == "crash":
        return crash(command, int(options.flags["port"]))
    os.execv(command[0], command)
    return 0


def server(model: str, options: object) -> list[str]:
    """nano K3 with the shapes of the command line."""
    assert not model.startswith("-"), model
    flags, config = options.flags, options.config  # type: ignore[attr-defined]
    largest = int((config.get("cuda_graph_config") or {}).get("max_batch_size", flags["max_batch_size"]))
    batches = [size for size in (1, 2, 4, 8, 16) if size <= largest]
    return [
        *(sys.executable, "-m", "k3model.server", "nano", "--host", str(flags["host"]), "--port", str(flags["port"])),
        *("--policy", os.environ.get("K3_STANDIN_POLICY", "before"), "--batches", ",".join(map(str, batches))),
        *("--context", str(flags["max_seq_len"]), "--stream-interval", str(config.get("stream_interval", 1))),
    ]


def take_fault() -> str | None:
    """A fault that is left for somebody."""
    folder = os.environ.get("K3_STANDIN_FAULTS")
    for path in sorted(Path(folder).glob("*.fault")) if folder else ():
        try:
            path.rename(path.with_suffix(".taken"))
        except FileNotFoundError:
            continue
        return path.stem.partition("-")[2] or path.stem
    return None


def crash(command: list[str], port: int) -> int:
    """Serve, and die once some requests are answered."""
    print("standin: told to crash", flush=True)
    child = subprocess.Popen(command)
    while child.poll() is None and finished(port) < ANSWERED:
        time.sleep(0.05)
    child.kill()
    return 9


def finished(port: int) -> int:
    """Requests answered so far."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            found = re.search(r"requests_finished_total (\d+)", answer.read().decode())
            return int(found[1]) if found else 0
    except OSError:
        return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
