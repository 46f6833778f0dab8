"""A server's life: started, awaited, stopped with all it started; every failure says what its log says."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from k3bench.errors import ServingError
from k3bench.serving.endpoint import cache_hits, is_healthy, model_card
from k3bench.serving.process import free_port, start_server

REFERENCE = [sys.executable, "-m", "k3bench.measure.reference_server", "--port", "{port}"]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_server_is_ready_when_start_returns_and_gone_when_stop_does(tmp_path: Path) -> None:
    """And it can say which model it serves."""
    server = start_server(REFERENCE, log=tmp_path / "a folder" / "server.log", ready_limit_s=60)
    try:
        assert is_healthy(server.base_url)
        assert model_card(server.base_url).name == "reference"
        assert cache_hits(server.base_url) == {}
    finally:
        server.stop()
    assert not server.is_running
    assert not is_healthy(server.base_url)


def test_a_server_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    """No waiting for the limit: the status and the log are there at once."""
    command = [sys.executable, "-c", "import sys; print('no such weights'); sys.exit(3)"]
    with pytest.raises(ServingError) as refused:
        start_server(command, log=tmp_path / "server.log", ready_limit_s=60)
    assert "status 3" in refused.value.what
    assert "no such weights" in refused.value.fix


def test_a_server_that_never_answers_is_stopped_at_the_limit(tmp_path: Path) -> None:
    """The process does not outlive the refusal."""
    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    with pytest.raises(ServingError, match="not ready within 1 s"):
        start_server(command, log=tmp_path / "server.log", ready_limit_s=1)
    assert gone(int((tmp_path / "server.log").read_text()))


def test_a_command_that_is_no_program_is_refused(tmp_path: Path) -> None:
    """With the word that is wrong."""
    with pytest.raises(ServingError, match="no-such-program"):
        start_server(["no-such-program"], log=tmp_path / "server.log", ready_limit_s=5)


def test_stopping_ends_the_children_of_a_server_that_ignores_sigterm(tmp_path: Path) -> None:
    """Workers of a stubborn server hold the GPU if they live on."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    parent = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\n"
        "sys.argv = ['x', '--port', sys.argv[1]]\n"
        "from aiohttp import web\n"
        "from k3bench.measure.reference_server import Manner, ReferenceServer\n"
        "app = ReferenceServer(Manner()).app()\n"
        "web.run_app(app, host='127.0.0.1', port=int(sys.argv[2]), handle_signals=False, print=None)\n"
    )
    server = start_server([sys.executable, "-c", parent, "{port}"], log=tmp_path / "server.log", ready_limit_s=60)
    pid = int((tmp_path / "server.log").read_text().split()[0])
    server.stop(limit_s=0.5)
    deadline = time.monotonic() + 10
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(pid)
    assert gone(server.process.pid)


def test_the_environment_of_an_arm_reaches_its_server(tmp_path: Path) -> None:
    """Added to, not instead of, the caller's."""
    command = [sys.executable, "-c", "import os; print(os.environ['K3_ARM'], 'PATH' in os.environ); os._exit(0)"]
    with pytest.raises(ServingError):
        start_server(command, log=tmp_path / "server.log", environment={"K3_ARM": "after"}, ready_limit_s=60)
    assert (tmp_path / "server.log").read_text().split() == ["after", "True"]


def test_nobody_at_an_address_is_one_clear_error() -> None:
    """The cure names the key of the recipe."""
    with pytest.raises(ServingError) as refused:
        model_card(f"http://127.0.0.1:{free_port()}")
    assert "serving.endpoint" in refused.value.fix


def test_a_killed_benchmark_leaves_no_server_behind(tmp_path: Path) -> None:
    """SIGKILL of the one that started it: the server ends by itself."""
    import signal
    import subprocess

    script = (
        "import sys, time; from pathlib import Path; from k3bench.serving.process import start_server\n"
        f"s = start_server({REFERENCE!r}, log=Path(sys.argv[1]), ready_limit_s=60)\n"
        "print(s.process.pid, flush=True); time.sleep(600)\n"
    )
    head = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert head.stdout is not None
    pid = int(head.stdout.readline())
    os.kill(head.pid, signal.SIGKILL)
    head.wait()
    deadline = time.monotonic() + 20
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(pid)
