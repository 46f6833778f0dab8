"""A campaign of known answer on a loopback Slurm, and what is on disk once it has been through something."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from k3bench.cluster import Cluster
from k3bench.records.ledger import Attempt, Ledger
from k3bench.store import read_record
from k3bench.submit.folder import JobFolder

from ..workflow.clone import environment, make_clone
from ..workflow.test_kills import counts, victims

NAME = "killed"
RECIPE = """
schema: k3bench.recipe/1
name: killed
title: A campaign on two racks that is interrupted
engine: {name: simulated, truth: {effect_pct: -4.0, wait_s_per_batch: 0.06}}
arms: {before: {policy: before}, after: {policy: after}}
workload: {isl_tokens: 16, osl_tokens: 8, levels: [1, 2], batches: 5, warmup_batches: 0}
observations: [{id: obs1, rack: d157}, {id: obs2, rack: d127, pair: p2}]
blocks: 4
blocks_per_allocation: 4
zero_change: 1
primary_level: 1
seed: 7
resources: {minutes: 10, nodes: 2, gpus_per_node: 4}
"""
#: Measuring is what can be lost; the later stages are pure functions of its files.
UNTIL = ("--", "--until", "measure")
PATIENCE_S = 150.0


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true; how long it takes decides nothing."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


class Head:
    """A head with the slurm profile. What it says goes to a file: a pipe would stay open for as long as its waiter."""

    def __init__(self, clone: Path, name: str, rest: tuple[str, ...]) -> None:
        self.out = clone / f"head-{time.monotonic_ns()}.out"
        command = [sys.executable, "-m", "k3bench", "run", "--profile", "slurm", f"recipes/{name}.yaml", *rest]
        with self.out.open("w") as out:
            self.process = subprocess.Popen(command, cwd=clone, env=environment(), stdout=out, stderr=out)

    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    def wait(self, patience_s: float = 300.0) -> str:
        """Let it end; returns what it said."""
        self.process.wait(patience_s)
        return self.out.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, as a power cut does: its waiter and its jobs live on."""
        self.process.kill()
        self.process.wait()


class Campaign:
    """One clone, its head, and the cluster it runs on."""

    def __init__(self, cluster: Cluster, clone: Path, recipe: str = RECIPE, *, rest: tuple[str, ...] = UNTIL) -> None:
        self.cluster, self.clone, self.rest = cluster, make_clone(clone, **{NAME: recipe}), rest
        self.results = self.clone / "results" / NAME
        self.head = Head(self.clone, NAME, rest)

    def points(self) -> int:
        """Points on disk, whatever became of them."""
        return len(list(self.results.glob("observations/*/points/*.json")))

    def under_way(self) -> Attempt:
        """Wait until an allocation has measured some points, and more are to come; returns its attempt."""
        until(lambda: self.points() >= 3, "points appear")
        return until(lambda: next((a for a in self.attempts() if a.live and self.worker(a)), None), "a job runs")

    def jobs(self) -> list[JobFolder]:
        """All keys of the campaign."""
        return [JobFolder(path.parent) for path in sorted((self.clone / ".k3/jobs").glob("*/ledger.json"))]

    def attempts(self) -> list[Attempt]:
        """All attempts of all keys."""
        return [a for job in self.jobs() for a in read_record(job.path / "ledger.json", Ledger).attempts]

    def worker(self, attempt: Attempt) -> int | None:
        """The pid of an attempt's live worker."""
        for job in self.jobs():
            if attempt in job.ledger().attempts and (started := job.started(attempt)) is not None:
                alive = Path(f"/proc/{started.process.pid}").exists()
                return started.process.pid if alive else None
        return None

    def node(self, attempt: Attempt) -> str:
        """The first node of an attempt's job: where its worker runs."""
        assert attempt.job
        hosts = self.cluster.call("squeue", "-h", "-j", attempt.job, "-o", "%N")[1].strip()
        return self.cluster.call("scontrol", "show", "hostnames", hosts)[1].split()[0]

    def pids(self, *kinds: str) -> list[int]:
        """Live processes of this clone by kind: head, waiter, worker, tool."""
        return [pid for kind, pid in victims(self.clone) if kind in kinds]

    def kill_waiter(self) -> None:
        """SIGKILL the process that waits for the jobs, with its shell."""
        for pid in self.pids("waiter"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def again(self) -> None:
        """Start the head anew."""
        self.head = Head(self.clone, NAME, self.rest)

    def lost(self) -> dict[int, str]:
        """Why anything was submitted more than once."""
        return {a.number: a.reason for a in self.attempts() if a.number > 1}

    def finish(self, patience_s: float = 300.0) -> str:
        """Let it end, starting again as often as it takes (three times at most). The later stages are not run."""
        for _ in range(4):
            output = self.head.wait(patience_s)
            if self.is_complete():
                return output
            self.again()
        raise AssertionError(output[-4000:])

    def is_complete(self) -> bool:
        """Every planned point is accepted."""
        if not (self.results / "plan.json").exists():
            return False
        found = counts(self.clone)
        return found["accepted"] == found["planned"]

    def counts(self) -> dict[str, Any]:
        """Planned, accepted, twice, superseded, on disk, blocks redone."""
        return counts(self.clone)


def path_with(folder: Path, name: str, script: str) -> str:
    """A PATH on which a script stands before the real command; REAL in it is the real one."""
    real = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
    folder.mkdir()
    (folder / name).write_text("#!/bin/bash\n" + script.replace("REAL", real))
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
