"""From any shell: how far a campaign is, and how to end what runs."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from .clone import environment, make_clone, run, start

RECIPE = """
schema: k3bench.recipe/1
name: seen
title: A campaign that is looked at
engine: {name: simulated, truth: {effect_pct: -4.0, wait_s_per_batch: 0.2}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 16, osl_tokens: 8, levels: [1], batches: 5}
observations: [{id: obs1}, {id: obs2}]
blocks: 1
blocks_per_allocation: 1
primary_level: 1
"""


def ask(clone: Path, verb: str) -> str:
    """What a verb prints about the campaign."""
    command = ["k3bench", verb, "recipes/seen.yaml"]
    done = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def until_shown(clone: Path, word: str) -> str:
    """Look again and again until a word appears."""
    end = time.monotonic() + 120
    while word not in (shown := ask(clone, "status")) and time.monotonic() < end:
        time.sleep(0.2)
    assert word in shown, shown
    return shown


def test_status_follows_a_campaign_and_cancel_ends_it(tmp_path: Path) -> None:
    """Waiting, running with its job, cancelled, and done after a new start; looking changes nothing."""
    clone = make_clone(tmp_path / "a clone", seen=RECIPE)
    assert "no such file" in ask(clone, "status")
    head = start(clone, "seen", "--", "--until", "measure")
    shown = until_shown(clone, "running")
    assert "0/1" in shown
    assert "pid " in shown
    assert "cancelled:\nobs1/alloc1 (pid" in ask(clone, "cancel")
    until_shown(clone, "cancelled")
    ask(clone, "cancel")
    output, _ = head.communicate(timeout=200)
    assert "was cancelled, so nothing is submitted again" in output
    run(clone, "seen")
    assert "2 allocations: 2 done" in ask(clone, "status")
    assert "nothing of this campaign runs or waits" in ask(clone, "cancel")
