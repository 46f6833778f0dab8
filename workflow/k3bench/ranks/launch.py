"""Rank processes: on this machine side by side, or as the tasks of one srun step over the nodes of the job.

In: how many ranks on how many nodes, what they run, where they log. Out: `Started`, which knows who has ended.
Out of scope: talking to them (`crew.py`).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3bench.errors import RankError

PROGRAM = "k3bench.ranks.program"
#: The token travels in the environment, which other users of a node cannot read.
TOKEN = "K3_RANKS_TOKEN"


@dataclass
class Started:
    """The processes of all ranks: one each, or one srun for all."""

    processes: list[subprocess.Popen[bytes]]
    logs: Path
    by_srun: bool
    _ended: dict[int, int] = field(default_factory=dict)

    def ended(self) -> dict[int, int]:
        """Rank -> exit status of local ranks that are over; -1 stands for all tasks of an srun that is over."""
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                self._ended[-1 if self.by_srun else number] = process.returncode
        return dict(self._ended)

    def log_of(self, rank: int) -> Path:
        """What that rank printed."""
        return self.logs / f"rank{rank}.log"

    def tail_of(self, rank: int) -> str:
        """Its last lines, for an error; srun's own words where the rank said nothing."""
        for path in (self.log_of(rank), self.logs / "srun.log"):
            text = path.read_text(errors="replace").strip() if path.exists() else ""
            if text:
                return "\n".join(text.splitlines()[-8:])
        return ""

    def end(self, patience_s: float = 5.0) -> None:
        """Ask, then insist; returns when none is left."""
        for word in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(word)
            end = time.monotonic() + patience_s
            while time.monotonic() < end and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)


def in_slurm_job() -> bool:
    """Whether this process has a Slurm job around it in which srun can start tasks."""
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None


def addresses() -> list[str]:
    """By what this node may be reached from the others, the likeliest first."""
    names = [os.environ.get("SLURMD_NODENAME"), socket.gethostname(), "127.0.0.1"]
    return list(dict.fromkeys(name for name in names if name))


def launch(
    arguments: Sequence[str], *, ranks: int, nodes: int, token: str, logs: Path, home: Path | None = None
) -> Started:
    """Start every rank, in the folder `home`: `python -m` looks there first.

    Raises `RankError` where several nodes are asked for and no Slurm job is around.
    """
    logs.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, TOKEN: token}
    command = [sys.executable, "-m", PROGRAM, *arguments]
    if in_slurm_job():
        return _by_srun(command, ranks, nodes, environment, logs, home)
    if nodes > 1:
        raise RankError(
            f"{ranks} ranks on {nodes} nodes need a Slurm job, and there is none around this process",
            fix="./k3 run --profile slurm, or resources.nodes: 1",
        )
    processes = []
    for rank in range(ranks):
        with (logs / f"rank{rank}.log").open("wb") as log:
            own = [*command, "--rank", str(rank), "--local-rank", str(rank)]
            process = subprocess.Popen(own, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        processes.append(process)
    return Started(processes, logs, by_srun=False)


def _by_srun(
    command: list[str], ranks: int, nodes: int, environment: dict[str, str], logs: Path, home: Path | None
) -> Started:
    """One step beside the batch step; tasks know their rank from Slurm. A task that fails ends all."""
    srun = [
        *("srun", "--overlap", f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={ranks // nodes}"),
        *("--kill-on-bad-exit=1", "--cpu-bind=none", "--unbuffered", f"--output={logs}/rank%t.log"),
    ]
    with (logs / "srun.log").open("wb") as log:
        process = subprocess.Popen(
            [*srun, *command], env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    return Started([process], logs, by_srun=True)
