"""Kill anything at any moment and start again: every planned point ends with exactly one accepted record."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3bench.evidence import Evidence, read_evidence
from k3bench.plan import points_planned
from k3bench.records.measurement import Measurement
from k3bench.store import read_record

from .clone import make_clone, run, start

RECIPE = """
schema: k3bench.recipe/1
name: killed
title: A campaign that is interrupted
engine: {name: simulated, truth: {effect_pct: -4.0, wait_s_per_batch: 0.05}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 16, osl_tokens: 8, levels: [1, 2], batches: 5}
observations: [{id: obs1}, {id: obs2, pair: p2}]
blocks: 4
blocks_per_allocation: 4
zero_change: 1
primary_level: 1
seed: 7
"""


def victims(clone: Path) -> Iterator[tuple[str, int]]:
    """(kind, pid) of every live process that works for this clone: head, waiters, workers, tools."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            inside = Path(os.readlink(entry / "cwd")).is_relative_to(clone)
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if inside or str(clone) in words:
            yield _kind(words), int(entry.name)


def _kind(words: str) -> str:
    if "submitit" in words:
        return "worker"
    if "k3bench measure" in words:
        return "waiter"
    return "head" if "snakemake" in words else "tool"


def soak(clone: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill `kills` victims of random kinds at random moments, start again, let it finish; returns the counts."""
    draw, killed = random.Random(seed), Counter[str]()
    head = start(clone, "killed")
    for _ in range(kills):
        kind = draw.choice(("head", "waiter", "worker", "worker"))
        deadline = time.monotonic() + 40
        while not (found := sorted(pid for k, pid in victims(clone) if k == kind)) and time.monotonic() < deadline:
            if head.poll() is not None:
                head = start(clone, "killed")
            time.sleep(0.05)
        if not found:
            break  # everything is measured: nobody of that kind will come any more
        time.sleep(draw.uniform(0.5, 5.0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(found), signal.SIGKILL)
            killed[kind] += 1
    head.kill()
    head.communicate()
    run(clone, "killed")
    return counts(clone) | {"kills": dict(killed)}


def counts(clone: Path) -> dict[str, object]:
    """Planned, accepted, accepted twice, superseded, blocks redone, from the files alone."""
    evidence = read_evidence(clone / "results/killed")
    assert isinstance(evidence, Evidence)
    accepted = Counter((p.observation, p.name.block, p.name.run, p.name.level) for p in evidence.points)
    files = [read_record(f, Measurement) for f in (clone / "results/killed").glob("observations/*/points/*.json")]
    return {
        "planned": points_planned(evidence.plan),
        "accepted": len(accepted),
        "accepted_twice": sum(n > 1 for n in accepted.values()),
        "superseded": sum(len(a.superseded) for a in evidence.allocations),
        "on_disk": len(files),
        "blocks_redone": len({(b.observation, b.block) for b in evidence.blocks if b.attempt > 1}),
    }


def mlflow_runs(clone: Path) -> list[tuple[str, int]]:
    """Live MLflow runs by their identity tag."""
    database = sqlite3.connect(clone / "results/mlflow.db")
    query = """
        select t.value, count(*) from tags t join runs r on r.run_uuid = t.run_uuid
        where t.key = 'k3bench.key' and r.lifecycle_stage = 'active' and not exists
          (select 1 from tags s where s.run_uuid = r.run_uuid and s.key = 'k3bench.superseded_by')
        group by t.value
    """
    return database.execute(query).fetchall()


def check(found: dict[str, object], clone: Path) -> None:
    """Nothing lost, nothing doubled; fragments are kept and counted."""
    print(found)
    assert found["accepted"] == found["planned"]
    assert found["accepted_twice"] == 0
    assert found["on_disk"] == found["accepted"] + found["superseded"]  # type: ignore[operator]
    runs = mlflow_runs(clone)
    assert len(runs) >= 2 * 3  # two arms of each observation, and the verdict
    assert {count for _, count in runs} == {1}


def test_five_random_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """Head, waiter, worker or tool: starting again finishes the campaign."""
    clone = make_clone(tmp_path / "a clone", killed=RECIPE)
    check(soak(clone, kills=5, seed=1), clone)


@pytest.mark.all_faults
def test_twenty_random_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """The long form."""
    clone = make_clone(tmp_path / "clone", killed=RECIPE)
    check(soak(clone, kills=20, seed=2), clone)
