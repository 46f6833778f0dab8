"""Greedy tokens of served arms: before/after beside before/before, through `k3bench verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from answering_server import AnsweringServer

from k3bench.build import build_arm
from k3bench.cli import main
from k3bench.measure.reference_server import Manner, ReferenceServer
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.plan import Plan
from k3bench.serving.process import free_port
from k3bench.store import CampaignFolder, read_record, write_record

Serve = Callable[[web.Application], str]


def verify(tmp_path: Path, before: str, after: str) -> dict[str, EquivalenceRow]:
    """Rows by what they ask, of one observation between two running servers."""
    recipe: dict[str, Any] = {
        "schema": "k3bench.recipe/1", "name": "same", "title": "a test",
        "engine": {"name": "openai", "device": "cpu", "serving": {"endpoint": before, "restart": "none"}},
        "arms": {"before": {"policy": "a"}, "after": {"policy": "b", "endpoint": after}},
        "workload": {"isl_tokens": 8, "osl_tokens": 12, "levels": [1], "batches": 5},
        "observations": [{"id": "obs1"}], "blocks": 1, "primary_level": 1,
    }  # fmt: skip
    path, folder = tmp_path / "same.yaml", CampaignFolder(tmp_path / "results")
    path.write_text(yaml.safe_dump(recipe))
    assert main(["plan", str(path), "--out", str(folder.plan)]) == 0
    plan = read_record(folder.plan, Plan)
    for arm in ("before", "after"):
        write_record(folder.build("p1", arm), build_arm(plan, "p1", arm))
    assert main(["verify", str(folder.plan), "obs1", "--out", str(folder.equivalence("obs1"))]) == 0
    found = read_record(folder.equivalence("obs1"), Equivalence)
    return {row.what: row for row in found.rows}


def test_equal_servers_pass_with_eight_prompts_and_a_control_that_can_fail(tmp_path: Path, serve: Serve) -> None:
    """Three rows, the tokens counted, nothing differs."""
    rows = verify(tmp_path, serve(AnsweringServer().app()), serve(AnsweringServer().app()))
    assert [row.status for row in rows.values()] == ["pass"] * 3
    row = rows["greedy tokens, before | after"]
    assert (row.prompts, row.steps, row.tokens, row.first_difference) == (8, 12, 96, None)
    assert row.distinct_tokens is not None
    assert row.distinct_tokens > 50


@pytest.mark.parametrize("ids", [True, False])
def test_a_changed_token_fails_and_its_place_is_named(ids: bool, tmp_path: Path, serve: Serve) -> None:
    """Before repeats itself, after differs from token 7 on: a failure that says where."""
    before, after = AnsweringServer(ids=ids), AnsweringServer(changed_from=7, ids=ids)
    rows = verify(tmp_path, serve(before.app()), serve(after.app()))
    assert rows["greedy tokens, before | before again"].status == "pass"
    row = rows["greedy tokens, before | after"]
    assert row.status == "fail"
    assert row.reason == "8 of 8 prompts differ"
    assert row.first_difference == 7 if ids else row.first_difference >= 7


def test_a_server_that_does_not_repeat_itself_proves_nothing_about_a_change(tmp_path: Path, serve: Serve) -> None:
    """The difference between the arms is no failure and no pass."""
    before, after = AnsweringServer(forgetful=True), AnsweringServer(forgetful=True)
    after.visits = 1000
    rows = verify(tmp_path, serve(before.app()), serve(after.app()))
    assert rows["greedy tokens, before | before again"].status == "fail"
    row = rows["greedy tokens, before | after"]
    assert row.status == "not_run"
    assert "does not repeat itself" in row.reason


def test_a_server_that_answers_everything_alike_is_caught_by_the_control(tmp_path: Path, serve: Serve) -> None:
    """Sameness of answers that never differ is worth nothing."""
    rows = verify(tmp_path, *(serve(ReferenceServer(Manner(1.0, 1.0)).app()) for _ in range(2)))
    assert rows["greedy tokens, before | after"].status == "pass"
    assert rows["answers to other prompts are told apart"].status == "fail"


def test_a_server_that_cannot_be_asked_is_a_row_that_says_why(tmp_path: Path, serve: Serve) -> None:
    """Not run, never a pass."""
    rows = verify(tmp_path, serve(AnsweringServer().app()), f"http://127.0.0.1:{free_port()}")
    (row,) = rows.values()
    assert row.status == "not_run"
    assert row.reason.startswith("after: ")
