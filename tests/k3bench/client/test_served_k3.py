"""This repository's K3 behind its own server, measured by the command: the client sees what the engine does."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3bench.cli import main
from k3bench.recipe import load_recipe
from k3bench.records.measurement import Measurement
from k3bench.records.recipe import Recipe, Validity
from k3bench.store import read_record
from k3bench.validity import Criteria, check_requests

ROOT = Path(__file__).parents[3]

RECIPE: dict[str, Any] = {
    "schema": "k3bench.recipe/1", "name": "served-k3", "title": "a test",
    "engine": {"name": "k3model-served", "preset": "nano", "device": "cpu",
               "serving": {"restart": "none", "ready_limit_s": 120, "request_limit_s": 120}},
    "arms": {arm: {"policy": arm, "environment": {"OMP_NUM_THREADS": "1"}} for arm in ("before", "after")},
    "workload": {"isl_tokens": 8, "osl_tokens": 41, "levels": [2], "batches": 5, "stream_interval": 10},
    "observations": [{"id": "obs1"}], "blocks": 1, "primary_level": 2,
    "validity": {"max_client_bias_pct": 99},
}  # fmt: skip


def test_the_served_k3_streams_by_its_interval_and_every_point_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both arms stay up side by side; chunks of 1, 10, 10, 10, 10 tokens, ITL a multiple of TPOT, tokens by usage."""
    monkeypatch.chdir(tmp_path)
    Path("served-k3.yaml").write_text(yaml.safe_dump(RECIPE))
    root = tmp_path / "results" / "served-k3"
    assert main(["plan", "served-k3.yaml", "--out", str(root / "plan.json")]) == 0
    assert main(["measure", str(root / "plan.json"), "--here"]) == 0
    observation = root / "observations" / "obs1"
    found = [read_record(path, Measurement) for path in sorted((observation / "points").glob("*.json"))]
    assert [{c.name: c.detail for c in p.checks if not c.ok} for p in found] == [{}] * 4
    assert sorted(p.name for p in (root / "logs").iterdir()) == ["server-obs1-after.log", "server-obs1-before.log"]
    for point in found:
        lines = gzip.decompress((observation / "raw" / point.raw).read_bytes()).splitlines()
        assert {tuple(json.loads(line)["chunk_tokens"]) for line in lines} == {(1, 10, 10, 10, 10)}
        assert len(point.batch_tpot_ms) == 10
        assert 3 < point.metrics["itl_median_ms"] / point.metrics["tpot_median_ms"] < 30


def test_the_recipe_for_the_laptop_serves_the_levels_and_the_interval_of_the_pull_request() -> None:
    """It is the served twin of the laptop recipe: same question, one server life a run."""
    served: Recipe = load_recipe(ROOT / "recipes" / "laptop-served.yaml")
    laptop = load_recipe(ROOT / "recipes" / "laptop.yaml")
    assert served.engine.name == "k3model-served"
    assert served.engine.serving is not None
    assert served.engine.serving.restart == "server"
    assert (served.workload.levels, served.workload.stream_interval) == (laptop.workload.levels, 10)
    assert served.arms.before.policy == laptop.arms.before.policy
    assert laptop.engine.name == "k3model"


def test_the_recipe_in_the_documentation_is_one(tmp_path: Path) -> None:
    """And its list of checks is the list that a point bears."""
    text = (ROOT / "docs" / "served.md").read_text()
    recipe = text.split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "my-change.yaml"
    path.write_text(recipe)
    assert load_recipe(path).engine.name == "openai"
    checks = check_requests([], Criteria(2, 1, Validity()), planned=0, concurrency=1)
    assert {c.name for c in checks} <= set(re.findall(r"`(\w+)`", text.split("## What a point needs")[1]))
