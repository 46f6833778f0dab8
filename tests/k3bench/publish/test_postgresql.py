"""The same sync on PostgreSQL, for clusters where several hosts write. Starts a server where one is installed."""

from __future__ import annotations

import getpass
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic import Spec, write

from k3bench.publish.stage import publish
from k3bench.publish.track import check, track

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
SYNC = (
    "import sys,pathlib; from k3bench.publish.track import track; p=pathlib.Path(sys.argv[1]);"
    "track(p, records=p.parent)"
)
pytestmark = [
    pytest.mark.all_faults,
    pytest.mark.skipif(not BINARIES, reason="no PostgreSQL (Debian: apt-get install postgresql)"),
    pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="no psycopg: pip install 'psycopg[binary]'"),
]


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a fresh server on loopback. It refuses to run as root, so root hands it to the postgres user."""
    home = Path(tempfile.mkdtemp(prefix="k3-postgres-"))
    as_user = ["runuser", "-u", "postgres", "--"] if getpass.getuser() == "root" else []
    if as_user:
        shutil.chown(home, "postgres")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    control = [*as_user, str(BINARIES[-1] / "pg_ctl"), "-D", str(home / "data"), "-w"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run(
        [*as_user, str(BINARIES[-1] / "initdb"), "-D", str(home / "data"), "-U", "k3", "--auth=trust"], **quiet
    )
    options = f"-p {port} -k {home} -c listen_addresses=127.0.0.1"
    subprocess.run([*control, "-o", options, "-l", str(home / "log"), "start"], **quiet)
    try:
        yield f"postgresql+psycopg://k3@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
        shutil.rmtree(home, ignore_errors=True)


def test_postgresql_holds_the_same(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced, killed, synced again: value by value what the records say, and nothing twice."""
    comparison = write(Spec(name="pg", racks=("r1", "r2"), blocks=2), tmp_path / "results" / "pg")
    publish(comparison)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SYNC, str(comparison)], env=dict(os.environ))
        try:
            process.wait(9)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    first = track(comparison, records=comparison.parent)
    second = track(comparison, records=comparison.parent)
    assert first.runs == second.runs
    assert "k3@" not in first.tracking_uri
    assert check(comparison, records=comparison.parent) == []
