"""Recipes with served engines, measured by the command: whole campaigns, and campaigns in which servers misbehave."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from k3bench.cli import main
from k3bench.measure.reference_server import Manner, ReferenceServer
from k3bench.records.calibration import Calibration
from k3bench.records.measurement import Measurement
from k3bench.store import read_record

FAULTY = str(Path(__file__).parent / "support" / "faulty_server.py")
REFERENCE = [sys.executable, "-m", "k3bench.measure.reference_server", "--port", "{port}", "--pace-ms", "15"]

#: Slow enough that a busy machine does not hand a whole answer over at once.
PACE = Manner(pace_ms=15.0, ttft_ms=5.0)
#: One block of four runs at two levels; short, because what is tested is not time.
RECIPE: dict[str, Any] = {
    "schema": "k3bench.recipe/1", "name": "served", "title": "a test",
    "engine": {"name": "openai", "device": "cpu"},
    "arms": {"before": {"policy": "a"}, "after": {"policy": "b"}},
    "workload": {"isl_tokens": 8, "osl_tokens": 7, "levels": [1, 2], "batches": 5, "stream_interval": 1},
    "observations": [{"id": "obs1"}], "blocks": 1, "primary_level": 1,
    "validity": {"max_client_bias_pct": 99},
}  # fmt: skip


@pytest.fixture(scope="module")
def calibrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This host's calibration: the first campaign makes it, the others find it in their folder."""
    return tmp_path_factory.mktemp("calibrations")


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibrations: Path) -> Callable[..., Path]:
    """Plan and measure in this process; returns the campaign's folder. The command itself must succeed."""

    def run(serving: dict[str, Any], **arms: Any) -> Path:
        root = tmp_path / "results" / "served"
        shutil.copytree(calibrations, root / "calibrations")
        measured(tmp_path, monkeypatch, serving, **arms)
        shutil.copytree(root / "calibrations", calibrations, dirs_exist_ok=True)
        return root

    return run


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: dict[str, Any], **arms: Any) -> None:
    """`k3bench plan` and `k3bench measure --here`."""
    monkeypatch.chdir(tmp_path)
    recipe = RECIPE | {"engine": RECIPE["engine"] | {"serving": {"ready_limit_s": 60} | serving}}
    if arms:
        recipe |= {"arms": {arm: {"policy": "a"} | more for arm, more in arms.items()}}
    Path("served.yaml").write_text(yaml.safe_dump(recipe))
    root = tmp_path / "results" / "served"
    assert main(["plan", "served.yaml", "--out", str(root / "plan.json")]) == 0
    assert main(["measure", str(root / "plan.json"), "--here"]) == 0


def points(root: Path) -> list[Measurement]:
    paths = sorted((root / "observations" / "obs1" / "points").glob("*.json"))
    return [read_record(path, Measurement) for path in paths]


def broken(root: Path) -> dict[str, set[str]]:
    """Broken checks by arm."""
    found: dict[str, set[str]] = {"before": set(), "after": set()}
    for point in points(root):
        found[point.name.arm] |= {c.name for c in point.checks if not c.ok}
    return found


def test_a_started_server_is_measured_and_restarted_for_each_run(measure: Callable[..., Path]) -> None:
    """Four runs, four servers; every point valid, its requests kept, its client calibrated on this host."""
    root = measure({"command": REFERENCE})
    found = points(root)
    assert len(found) == 8
    assert broken(root) == {"before": set(), "after": set()}
    assert len(list((root / "logs").glob("server-obs1-b000-r*.log"))) == 4
    assert {p.restart for p in found} == {"server"}
    assert all(len(p.batch_tpot_ms) == 5 * p.name.level for p in found)
    (calibration,) = (read_record(path, Calibration) for path in (root / "calibrations").glob("*.json"))
    assert [level.concurrency for level in calibration.levels] == [1, 2]
    assert {p.calibration for p in found} == {calibration.digest()}
    assert_pairs_share_prompts(root)


def assert_pairs_share_prompts(root: Path) -> None:
    """A pair differs by its arm alone; the next pair sends other prompts."""
    sent: dict[int, list[str]] = {}
    for point in points(root):
        if point.name.level == 2:
            raw = gzip.decompress((root / "observations" / "obs1" / "raw" / point.raw).read_bytes())
            sent[point.name.run] = [json.loads(line)["prompt"] for line in raw.splitlines()]
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]
    assert not set(sent[0]) & set(sent[2])


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("dies", "every_request_answered"),
        pytest.param("truncate", "streams_ended", marks=pytest.mark.all_faults),
        pytest.param("http500", "every_request_answered", marks=pytest.mark.all_faults),
    ],
)
def test_a_server_that_misbehaves_in_one_arm_costs_that_arm_and_not_the_campaign(
    kind: str, check: str, measure: Callable[..., Path]
) -> None:
    """Its points are invalid with the reason and without numbers; the other arm is measured to the end."""
    command = [sys.executable, FAULTY, "--port", "{port}", "--kind", kind, "--pace-ms", "15"]
    root = measure(
        {"command": command, "request_limit_s": 20},
        before={"arguments": ["--every", "1000000"]}, after={"arguments": ["--every", "9"]},
    )  # fmt: skip
    found = broken(root)
    assert found["before"] == set()
    assert check in found["after"]
    bad = [p for p in points(root) if not p.valid]
    assert bad
    assert all(p.metrics == {} and p.batch_tpot_ms == () for p in bad)


def test_a_server_that_never_comes_up_is_a_reason_and_not_the_end(measure: Callable[..., Path]) -> None:
    """The points of that arm say what the server's last words were."""
    words = "import sys; print('no such weights'); sys.exit(1)"
    root = measure(
        {"command": [sys.executable, "{port}", "{policy}"]},
        before={"policy": "-c", "arguments": [words]}, after={"policy": "-c", "arguments": [words]},
    )  # fmt: skip
    found = points(root)
    assert len(found) == 8
    assert broken(root) == {"before": {"server_ready"}, "after": {"server_ready"}}


class Caching(ReferenceServer):
    """Counts prompt tokens as found in its cache, as vLLM's counters would, and says nothing in usage."""

    def __init__(self) -> None:
        super().__init__(PACE)
        self.hits = 0

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/metrics", self.metrics)
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f'# TYPE x counter\nvllm:prefix_cache_hits_total{{model="m"}} {self.hits}.0\n')

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hits += 7
        return await super().answer(request)


def test_running_servers_are_attached_to_and_their_cache_counters_read(
    measure: Callable[..., Path], serve: Callable[[web.Application], str]
) -> None:
    """One for each arm; nothing is started or stopped, and the record says that nothing was restarted. Usage may be
    silent about a prefix cache: its counters are read before and after each load.
    """
    before, after = serve(ReferenceServer(PACE).app()), serve(Caching().app())
    root = measure({"endpoint": before, "restart": "none"}, before={}, after={"endpoint": after})
    assert {p.restart for p in points(root)} == {"none"}
    assert not list((root / "logs").glob("server-*"))
    assert broken(root) == {"before": set(), "after": {"cache_counters_still"}}


IMPOSSIBLE = {
    "neither address nor command": ({}, {}, "either serving.endpoint or serving.command"),
    "a command without a port": ({"command": ["serve"]}, {}, "does not say where {port} goes"),
    "an attached server restarted": (
        {"endpoint": "http://h:1"}, {"after": {"endpoint": "http://h:2"}}, "cannot be restarted per run"),
    "both arms at one address": ({"endpoint": "http://h:1", "restart": "none"}, {}, "the same server"),
    "arguments for nothing": (
        {"endpoint": "http://h:1", "restart": "none"},
        {"after": {"endpoint": "http://h:2", "arguments": ["-x"]}}, "no server is started"),
    "an address that is none": ({"endpoint": "file:///etc/passwd", "restart": "none"}, {}, "endpoint"),
}  # fmt: skip


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_recipe_that_no_server_could_run_is_refused(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything runs, with the line and the cure."""
    serving, arms, words = IMPOSSIBLE[what]
    recipe = RECIPE | {"engine": RECIPE["engine"] | {"serving": serving}}
    recipe |= {"arms": {a: {"policy": a} | arms.get(a, {}) for a in ("before", "after")}}
    path = tmp_path / "served.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert main(["plan", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "served.yaml:" in said
    assert "fix:" in said
