"""A place for jobs, functions to run as jobs, and heads that can be killed."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.records.ledger import Ledger
from k3bench.submit import JobSpec, read_ledger

JOBS = Path(__file__).parent
PATIENCE_S = 60.0


@dataclass
class Place:
    """Where one test's jobs lie, and what they noted."""

    root: Path
    key: str = "c0ffee" * 10

    @property
    def jobs(self) -> Path:
        return self.root / ".k3" / "jobs"

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    @property
    def gate(self) -> Path:
        return self.root / "gate"

    @property
    def folder(self) -> Path:
        return self.jobs / self.key

    def noted(self, word: str = "begin") -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(word)]

    def ledger(self) -> Ledger:
        return read_ledger(self.key, jobs=self.jobs)

    def start_head(self, function: str, arguments: dict[str, Any], spec: JobSpec) -> subprocess.Popen[str]:
        """A head in its own process; what it says goes to a file, so that orphans of it keep no pipe open."""
        out = (self.root / f"head-{time.monotonic_ns()}.out").open("w+")
        command = [sys.executable, str(JOBS / "head.py"), str(self.jobs), self.key, function, json.dumps(arguments)]
        head = subprocess.Popen([*command, spec.model_dump_json()], stdout=out, stderr=out, text=True)
        head.out = Path(out.name)  # type: ignore[attr-defined]
        return head


def answer_of(head: subprocess.Popen[str]) -> dict[str, Any]:
    """What a head printed last, once it has ended."""
    head.wait(PATIENCE_S)
    return json.loads(head.out.read_text().splitlines()[-1])  # type: ignore[attr-defined]


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something to become true; how long it takes decides nothing."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"never happened: {what}")
