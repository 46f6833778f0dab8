"""A headless Chromium (Debian's package) driven over its debugging port: what a page logs, asks for, shows.

Only what the tests need; no browser download, no driver package.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)  # fmt: skip


@dataclass
class Tab:
    """One page: its console errors, its requests beyond the page itself, and commands to drive it."""

    socket: aiohttp.ClientWebSocketResponse
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _next: int = 0
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def command(self, method: str, **params: Any) -> Any:
        """Send a command of the debugging protocol and wait for its answer."""
        self._next += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._next] = answer
        await self.socket.send_json({"id": self._next, "method": method, "params": params})
        return await asyncio.wait_for(answer, 60)

    async def listen(self) -> None:
        """Sort answers from events until the socket closes."""
        async for message in self.socket:
            data = message.json()
            if "id" in data:
                self._waiting.pop(data["id"]).set_result(data.get("result", data))
            elif data["method"] == "Network.requestWillBeSent":
                self.requests.append(data["params"]["request"]["url"])
            elif data["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(data["params"]["exceptionDetails"].get("text")))
            elif data["method"] == "Log.entryAdded" and data["params"]["entry"]["level"] == "error":
                self.errors.append(data["params"]["entry"]["text"])
            elif data["method"] == "Runtime.consoleAPICalled" and data["params"]["type"] == "error":
                self.errors.append(str(data["params"]["args"][:1]))

    async def open(self, url: str, *, width: int = 1100, height: int = 900) -> None:
        """Load a page and wait until it is quiet."""
        await self.resize(width, height)
        await self.command("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def resize(self, width: int, height: int) -> None:
        """Give the page a viewport."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.command("Emulation.setDeviceMetricsOverride", **size)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = await self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    async def until(self, expression: str, *, seconds: float = 60) -> None:
        """Wait until an expression is true; raises AssertionError naming it otherwise."""
        end = asyncio.get_running_loop().time() + seconds
        while not await self.evaluate(expression):
            assert asyncio.get_running_loop().time() < end, f"never true: {expression}"
            await asyncio.sleep(0.2)

    async def dark(self, on: bool) -> None:
        """Prefer the dark colour scheme, or the light one."""
        value = "dark" if on else "light"
        await self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    async def screenshot(self, path: Path, *, full: bool = True) -> None:
        """Save what the page shows as PNG."""
        shot = await self.command("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))


def with_tab(work: Callable[[Tab], Awaitable[Any]]) -> Any:
    """Start a browser with a fresh profile, do the work in one tab, end the browser."""
    return asyncio.run(_with_tab(work))


async def _with_tab(work: Callable[[Tab], Awaitable[Any]]) -> Any:
    assert CHROMIUM
    with tempfile.TemporaryDirectory(prefix="k3-chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return await _drive(Path(profile), work)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()


async def _drive(profile: Path, work: Callable[[Tab], Awaitable[Any]]) -> Any:
    port_file = profile / "DevToolsActivePort"
    for _ in range(300):
        if port_file.exists() and port_file.read_text().count("\n"):
            break
        await asyncio.sleep(0.1)
    port = port_file.read_text().splitlines()[0]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            target = next(t for t in await answer.json() if t["type"] == "page")
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            listener = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Network", "Log"):
                await tab.command(f"{domain}.enable")
            try:
                return await work(tab)
            finally:
                listener.cancel()
