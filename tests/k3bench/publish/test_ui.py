"""The MLflow UI with a synced campaign: the saved views open and show the numbers. A real server, a real browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Tab, with_tab
from synthetic import Spec, write

from k3bench.compare.campaign import campaign
from k3bench.errors import TrackingError
from k3bench.evidence import read_evidence
from k3bench.publish.stage import records_of
from k3bench.publish.target import target_for
from k3bench.publish.track import check, track
from k3bench.publish.ui import SERVER_ENVIRONMENT, command, lines
from k3bench.records.comparison import Comparison
from k3bench.records.receipt import Receipt
from k3bench.records.reported import Reported
from k3bench.store import read_record, write_record

RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "h200-first"
SHOTS = os.environ.get("K3_SCREENSHOTS")
READY = {
    "table": "obs1.before",
    "curves": "Against concurrency",
    "verdicts": "verdict {campaign}",
    "verdict": "primary level",
}
SPEC = Spec(name="shown", racks=("r1", "r2"), blocks=2, effects_pct={1: -4.0, 2: -3.5, 4: -3.0})


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Receipt, str]]:
    """Results folder, receipt, and the address of a server over them."""
    results = tmp_path_factory.mktemp("ui") / "results"
    comparison = _campaign(results)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        receipt = track(comparison, records=records_of(comparison))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = command(target_for(results, environment={}), port=port)
    process = _server(line, port)
    try:
        yield results, receipt, f"http://127.0.0.1:{port}"
    finally:
        _end(process, signal.SIGTERM)


def _campaign(results: Path) -> Path:
    """The recorded H200 campaign, compared; where the checkout has none, a synthetic one."""
    if not RECORDED.exists():
        return write(SPEC, results / "shown")
    shutil.copytree(RECORDED, results / "recorded" / RECORDED.name)
    found = read_evidence(RECORDED)
    assert not isinstance(found, Reported)
    comparison = results / RECORDED.name / "comparison.json"
    write_record(comparison, campaign(found.plan, found.points, **found.others()))
    return comparison


def _wait(url: str) -> None:
    end = time.monotonic() + 180
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < end, "the server never came up"
            time.sleep(0.5)


@pytest.mark.all_faults
def test_a_server_that_dies_in_the_middle_leaves_nothing_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed while runs are written: one bounded error; started again, the next sync completes."""
    comparison = write(Spec(name="dies", racks=("r1", "r2", "r3"), blocks=2), tmp_path / "results" / "dies")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = command(target_for(tmp_path / "results", environment={}), port=port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    server = _server(line, port)
    database = tmp_path / "results" / "mlflow.db"
    killer = threading.Thread(target=_kill_after_runs, args=(database, server))
    killer.start()
    began = time.monotonic()
    with pytest.raises(TrackingError):
        track(comparison, records=comparison.parent)
    assert time.monotonic() - began < 120
    killer.join()
    again = _server(line, port)
    try:
        receipt = track(comparison, records=comparison.parent)
        assert check(comparison, records=comparison.parent) == []
        with sqlite3.connect(database) as found:
            states = found.execute("select status, count(*) from runs group by status").fetchall()
        assert states == [("FINISHED", len(receipt.runs))]
    finally:
        _end(again, signal.SIGTERM)


def _kill_after_runs(database: Path, server: subprocess.Popen[bytes]) -> None:
    """Kill the server as soon as the third of the sync's runs has appeared."""
    while server.poll() is None:
        with sqlite3.connect(database, timeout=20) as found:
            if found.execute("select count(*) from runs").fetchone()[0] >= 3:
                _end(server, signal.SIGKILL)
        time.sleep(0.02)


def _server(line: list[str], port: int) -> subprocess.Popen[bytes]:
    """A server in a session of its own, so that its workers can be ended with it."""
    process = subprocess.Popen(
        line, env={**os.environ, **SERVER_ENVIRONMENT}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    _wait(f"http://127.0.0.1:{port}/health")
    return process


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """End the server and the workers that it started, which share its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    process.wait(30)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_saved_views_open_and_show_the_numbers(shown: tuple[Path, Receipt, str]) -> None:
    """Table, curves, verdicts and the verdict itself: each link opens its page, with values of the records in it."""
    results, receipt, base = shown
    text: dict[str, str] = {}

    async def visit(tab: Tab) -> list[str]:
        for link in receipt.links:
            await tab.command("Page.navigate", url="about:blank")
            await tab.open(f"{base}/{link.fragment}", width=1700, height=1000)
            ready = READY[link.name].format(campaign=receipt.campaign)
            await tab.until(f"document.body.innerText.includes({ready!r})")
            await tab.evaluate("document.querySelector('[aria-label=\"Close\"]')?.click()")
            if link.name == "curves":  # three charts of three arms, drawn
                await tab.until("document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length >= 9")
            text[link.name] = await tab.evaluate("document.body.innerText")
            if SHOTS:
                await tab.screenshot(Path(SHOTS) / f"mlflow-{link.name}.png", full=False)
        return [url for url in tab.requests if not url.startswith((base, "data:", "blob:", "about:"))]

    assert with_tab(visit) == []
    record = read_record(results / receipt.campaign / "comparison.json", Comparison)
    assert f"{receipt.campaign}: table" in text["table"]
    assert "zero1" not in text["verdicts"]
    for row in record.observations:
        for median in (row.levels[0].before_median, row.levels[0].after_median):
            assert median is not None
            assert f"{median:.12f}"[:7] in text["table"], "a TPOT of the records is not in the table"
    assert record.headline.delta_pct is not None
    assert f"{record.headline.delta_pct:.12f}"[:7] in text["verdicts"]
    assert "Group by: arm" in text["curves"]
    assert "rel/tpot_pct" in text["curves"]
    assert "Improvement." in text["verdict"]


def test_the_command_prints_a_link_for_table_and_curves(shown: tuple[Path, Receipt, str]) -> None:
    """`k3bench ui` says what to click for each campaign that was synced."""
    results, _, base = shown
    said = list(lines(results, base))
    assert any("table" in s and f"{base}/#/experiments/" in s for s in said)
    assert any("curves" in s and "compareRunsMode=CHART" in s for s in said)
