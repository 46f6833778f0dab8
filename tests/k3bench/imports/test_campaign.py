"""Imported before/after files, from files to pr.md: a verdict with pairs enough, none without, flagged either way."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from writers import Stream, aiperf_records, streams, vllm, write

from k3bench.build import build_arm
from k3bench.cli import main
from k3bench.measure.allocation import run_allocation
from k3bench.plan import make_plan
from k3bench.recipe import parse_recipe
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Measurement
from k3bench.store import CampaignFolder, read_record, write_record

RECIPE = Path(__file__).parents[3] / "recipes/simulated.yaml"
CHANGES = (
    ("  - {id: obs3, rack: d127, pair: p3}\n", ""),
    ("blocks: 4", "blocks: 2"),
    ("zero_change: 3", "zero_change: 0"),
    ("levels: [1, 2, 4, 8]", "levels: [1, 8]"),
    ("run_sd_pct: 1.0", "run_sd_pct: 0.3"),
    ("heavy_tails: true", "heavy_tails: false"),
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> CampaignFolder:
    """A simulated campaign, -4 %: 2 observations of 2 blocks, 4 pairs each, at two levels."""
    text = RECIPE.read_text()
    for old, new in CHANGES:
        assert old in text
        text = text.replace(old, new)
    folder = CampaignFolder(tmp_path_factory.mktemp("measured") / "simulated")
    plan = make_plan(parse_recipe(text, where="simulated.yaml", name="simulated"))
    write_record(folder.plan, plan)
    for pair in ("p1", "p2"):
        for arm in ("before", "after"):
            write_record(folder.build(pair, arm), build_arm(plan, pair, arm))  # type: ignore[arg-type]
    for observation in plan.observations:
        for allocation in observation.allocations:
            run_allocation(root=str(folder.root), observation=observation.id, allocation=allocation.id, attempt=1)
    return folder


def load_of(folder: CampaignFolder, point: Measurement) -> list[Stream]:
    """The point's batches as the streams a client would have seen, ten tokens a chunk."""
    lines = gzip.decompress(folder.raw(point.observation, str(point.name)).read_bytes()).splitlines()
    at, found = 0.0, []
    for line in lines:
        steps = json.loads(line)["step_ns"]
        one = Stream(at, steps[0] / 1e9, steps[1] / 1e9, len(steps), point.stream_interval, point.isl_tokens)
        found += [one] * point.name.level
        at += one.latency_s
    return found


def files(folder: CampaignFolder, into: Path) -> Iterator[tuple[Path, str]]:
    """Each point as a foreign file and its place: obs1 as vLLM wrote it, obs2 as aiperf did."""
    for observation in ("obs1", "obs2"):
        for point in folder.records(observation, "points", Measurement):
            name, at_s = point.name, 1000.0 * (4 * point.name.block + point.name.run)
            load, path = load_of(folder, point), into / f"{observation}-{point.name}.json"
            if observation == "obs1":
                written = vllm(load, level=name.level, at_s=at_s, model_id="k3", rack=point.rack, simulated="true")
                write(path, written)
            else:
                write(path, aiperf_records(load, at_s=at_s, warm_up=1))
            pair = 2 * name.block + (1 if name.run < 2 else 2)
            yield path, f"{observation}.{name.arm}.{pair}"


def test_two_formats_become_one_verdict_and_a_pull_request_section(
    measured: CampaignFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 files, two observations, four pairs each: improvement at both levels, flagged, to pr.md."""
    monkeypatch.chdir(tmp_path)
    for path, place in files(measured, tmp_path / "files"):
        assert main(["import", str(path), "--as", place, "--name", "last-night"]) == 0
    folder = Path("results/last-night")
    assert main(["compare", str(folder), "--out", str(folder / "comparison.json")]) == 0
    found = read_record(folder / "comparison.json", Comparison)
    assert (found.kind, found.simulated, found.headline.word) == ("reported", True, "improvement")
    assert (found.headline.n_observations, found.headline.n_planned) == (2, 2)
    for level in found.levels:
        assert (level.word, level.n_pairs) == ("improvement", 8)
        assert level.delta_pct == pytest.approx(-4.0, abs=0.7)
        assert "environment_unverified" in level.flags
    assert {o.observation: o.rack for o in found.observations} == {"obs1": "d157", "obs2": None}
    assert sorted({(r.position, r.arm) for r in found.runs if r.observation == "obs1"}) == drawn_order(measured)

    assert found.witnesses is not None
    at_1 = {r.metric: r for r in found.witnesses.restatements if r.concurrency == 1}
    assert at_1["itl_median_ms"].factor == pytest.approx(10.0, rel=0.01)
    assert at_1["tps_user"].kind == "exact_product"
    assert found.witnesses.n_corroborations == 0

    assert main(["publish", str(folder / "comparison.json")]) == 0
    text = (folder / "report/pr.md").read_text()
    assert re.search(r"[Ii]mprovement", text)
    assert re.search(r"[Ss]imulated", text)
    assert "environment" in text
    assert "obs1" in text
    assert "obs2" in text


def drawn_order(folder: CampaignFolder) -> list[tuple[int, str]]:
    """The order of arms in obs1 as the plan drew it: the files' clocks must give it back."""
    points = folder.records("obs1", "points", Measurement)
    return sorted({(4 * p.name.block + p.name.run + 1, p.name.arm) for p in points})


def test_three_pairs_are_insufficient_and_so_is_one_run_an_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """awsome-distributed-ai#1110: one run of 50 requests is no comparison; three pairs are not four."""
    monkeypatch.chdir(tmp_path)
    for n in (1, 2, 3):
        for arm, pace in (("before", 10.0), ("after", 9.0)):
            path = write(tmp_path / f"{arm}{n}.json", vllm(streams(pace + n / 100)))
            assert main(["import", str(path), "--as", f"r1.{arm}.{n}", "--into", "results/x"]) == 0
        assert main(["compare", "results/x", "--out", "results/x/comparison.json"]) == 0
        found = read_record(Path("results/x/comparison.json"), Comparison)
        assert found.headline.word == "insufficient_replication"
        assert found.levels[0].delta_pct == pytest.approx(-10.0, abs=0.2)
        assert found.levels[0].ci95 is None
    assert main(["publish", "results/x/comparison.json"]) == 0
    assert "nsufficient" in Path("results/x/report/pr.md").read_text()


def test_an_invalid_run_drops_its_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """InferenceX#357: five pairs, one of them with failed requests that make it look fast: four count."""
    monkeypatch.chdir(tmp_path)
    for n in range(1, 6):
        for arm, pace in (("before", 10.0), ("after", 10.2)):
            load = streams((5.0 if (n, arm) == (3, "after") else pace) + n / 100)
            if (n, arm) == (3, "after"):
                load[0] = Stream(error="503", tokens=64)
            path = write(tmp_path / f"{arm}{n}.json", vllm(load))
            assert main(["import", str(path), "--as", f"r1.{arm}.{n}", "--into", "results/x"]) == 0
    assert main(["compare", "results/x", "--out", "results/x/comparison.json"]) == 0
    found = read_record(Path("results/x/comparison.json"), Comparison)
    assert found.levels[0].n_pairs == 4
    assert found.levels[0].delta_pct == pytest.approx(2.0, abs=0.1)
    assert found.levels[0].word == "regression"
    assert found.health.n_invalid_after == 1
    (dropped,) = found.observations[0].dropped_pairs
    assert (dropped.block, dropped.pair, dropped.arm) == (1, 1, "after")
    assert any("completed_equals_planned" in reason for reason in found.health.reasons)


def test_four_before_and_then_four_after_are_judged_and_the_drift_is_outstanding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two nights are pairs in declared order, and the report says what that order cannot cancel."""
    monkeypatch.chdir(tmp_path)
    for at, (arm, n) in enumerate((arm, n) for arm in ("before", "after") for n in (1, 2, 3, 4)):
        path = write(tmp_path / f"{at}.json", vllm(streams(10 + at / 100), at_s=100 * at))
        assert main(["import", str(path), "--as", f"r1.{arm}.{n}", "--into", "results/x"]) == 0
    assert main(["compare", "results/x", "--out", "results/x/comparison.json"]) == 0
    found = read_record(Path("results/x/comparison.json"), Comparison)
    assert any(o.what.startswith("4 pairs were not measured side by side") for o in found.outstanding)
