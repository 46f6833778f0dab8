"""The MLflow UI over the local database, on loopback, with the links that the receipts hold.

In: the results folder. Out: a server process in the foreground. Out of scope: writing runs (`tracking.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from k3bench.errors import K3Error, TrackingError
from k3bench.publish.target import Target, target_for
from k3bench.publish.tracking import ENVIRONMENT, connected
from k3bench.records.receipt import Receipt
from k3bench.store import read_record

HOST, PORT = "127.0.0.1", 5000
#: One worker answers faster than four for one reader, and no job runner is wanted.
SERVER_ENVIRONMENT = {**ENVIRONMENT, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def serve(results: Path, *, host: str = HOST, port: int = PORT, say: Callable[[str], None] = print) -> int:
    """Run the server until it is stopped; returns its exit code. `TrackingError` where there is nothing to show."""
    target = target_for(results.absolute())
    if not target.exists():
        raise TrackingError("there is no MLflow database yet", where=target.shown, fix="run a campaign first: ./k3 run")
    if target.uri.startswith(("http://", "https://")):
        for line in lines(results, target.shown.rstrip("/")):
            say(line)
        return 0
    with connected(target):
        pass  # brings the tables to this version under our lock, before the server looks at them
    for line in lines(results, f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"):
        say(line)
    say("stop with Ctrl-C")
    return _run(command(target, host=host, port=port))


def command(target: Target, *, host: str = HOST, port: int = PORT) -> list[str]:
    """The server's command line. Another host than loopback is let in by name, or MLflow answers 403."""
    line = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", host, "--port", str(port)]
    line += [
        "--backend-store-uri",
        target.uri,
        "--artifacts-destination",
        str((target.home / "mlartifacts").absolute()),
    ]
    if host not in (HOST, "localhost"):
        line += ["--allowed-hosts", f"{os.uname().nodename}:*,{host}:*,localhost:*,127.0.0.1:*"]
    return line


def _run(line: Sequence[str]) -> int:
    process = subprocess.Popen(line, env={**os.environ, **SERVER_ENVIRONMENT})
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 0


def lines(results: Path, base: str) -> Iterator[str]:
    """What to click: the table and the curves of every campaign that was synced."""
    for path in sorted(results.glob("*/receipt.json")):
        try:
            receipt = read_record(path, Receipt)
        except K3Error as error:
            yield f"{path.parent.name}: {error.what}"
            continue
        for link in receipt.links:
            yield f"{receipt.campaign:<16} {link.name:<9} {base}/{link.fragment}"
