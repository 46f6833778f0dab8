"""Servers of known behaviour for the load client: in a thread of the test, or a process where it has to die."""

from __future__ import annotations

import asyncio
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from k3bench.measure.client import LoadResult, plan_load, run_load, turns
from k3bench.serving.process import free_port
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Api, Target

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))


class ThreadServer:
    """An aiohttp application on loopback in a thread with its own event loop."""

    def __init__(self, app: web.Application) -> None:
        self.port, self._app, self._ready = free_port(), app, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", self.port).start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


@pytest.fixture
def serve() -> Iterator[Callable[[web.Application], str]]:
    """Serve an application until the test ends; returns its base address."""
    servers: list[ThreadServer] = []

    def start(app: web.Application) -> str:
        servers.append(ThreadServer(app))
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


def _answer_with(pieces: list[bytes]) -> type[socketserver.StreamRequestHandler]:
    class Answer(socketserver.StreamRequestHandler):
        """The same bytes for every request on the connection, which closes unless they are a whole answer."""

        disable_nagle_algorithm = True

        def handle(self) -> None:
            while head := list(iter(self.rfile.readline, b"\r\n" if self.rfile.peek(1) else b"")):
                length = next(int(line[15:]) for line in head if line.lower().startswith(b"content-length:"))
                self.rfile.read(length)
                for piece in pieces:
                    self.wfile.write(piece)
                    time.sleep(0.0005)
                if not b"".join(pieces).endswith(b"0\r\n\r\n"):
                    return

    return Answer


@pytest.fixture
def send_raw() -> Iterator[Callable[[list[bytes]], str]]:
    """A server that answers every request with these pieces, byte for byte; returns its base address."""
    servers: list[socketserver.ThreadingTCPServer] = []

    def start(pieces: list[bytes]) -> str:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _answer_with(pieces))
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def load() -> Callable[..., LoadResult]:
    """A small closed loop against an address."""

    def run(url: str, *, api: Api = "completions", concurrency: int = 4, counted: int = 2, osl_tokens: int = 24,
            limit_s: float = 10.0, isl_tokens: int = 8) -> LoadResult:  # fmt: skip
        target = Target(url, "reference", api, limit_s)
        count = turns(concurrency, counted) * concurrency
        prompts = random_prompts(count, isl_tokens=isl_tokens, vocab=512, seed="test")
        return run_load(target, plan_load(target, prompts, concurrency=concurrency, osl_tokens=osl_tokens))

    return run
