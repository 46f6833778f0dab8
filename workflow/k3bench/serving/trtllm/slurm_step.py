"""A server that is a step of this Slurm job: started by srun, proven to hold every rank, ended without leftovers.

In: a command line with a step name of its own. Out: a `Server` whose end takes the step along. A killed srun leaves its
step running; therefore the step is looked for by name and cancelled. Out of scope: what is served.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import ServingError
from k3bench.records.measurement import Check
from k3bench.serving.process import Server, await_ready, spawn
from k3bench.serving.trtllm.commands import OPEN_FILES

ASK_LIMIT_S = 60.0
#: srun ends its step when it is interrupted twice within a second.
TWICE_S = 0.3
#: A busy controller may leave a question unanswered.
PROOF_TRIES = 5
#: An ended srun may be ahead of the controller's view of its step by this much.
GONE_LIMIT_S = 60.0


@dataclass
class StepServer(Server):
    """`process` is srun. `log` is what the ranks said, `srun_log` what srun itself said."""

    name: str = ""
    srun_log: Path = Path()
    proof: Check | None = None

    def stop(self, limit_s: float = 30.0) -> None:
        """Interrupt srun twice; kill it when it does not listen; see that its step is gone. Harmless when it is."""
        if self.is_running:
            self._signal(signal.SIGINT)
            time.sleep(TWICE_S)
            self._signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(limit_s)
        self._signal(signal.SIGKILL)
        self.process.wait()
        end_step(self.name)

    def log_tail(self) -> str:
        """The ranks' last words; srun's own where it says why a rank ended."""
        srun = Server(self.process, self.base_url, self.srun_log).log_tail()
        return "\n".join(filter(None, [super().log_tail(), srun]))


def start_step(
    words: Sequence[str], *, name: str, log: Path, port: int, ranks: int, nodes: int, limit_s: float, poll_s: float
) -> StepServer:
    """Start, wait until it answers, prove its size. Raises `ServingError` with the last words of the ranks."""
    _refuse_taken(port)
    srun_log = log.with_suffix(".srun.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    process = spawn(words, srun_log, _environment())
    server = StepServer(process, f"http://127.0.0.1:{port}", log, name=name, srun_log=srun_log)
    try:
        await_ready(server, limit_s, poll_s)
        server.proof = prove(name, ranks=ranks, nodes=nodes)
    except BaseException:
        server.stop(limit_s=10.0)
        raise
    return server


def run_step(words: Sequence[str], log: Path, limit_s: float) -> int:
    """Run a step to its end; returns its exit status. Raises `ServingError` when it takes longer than its limit."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = spawn(words, log, _environment())
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise ServingError(f"did not end within {limit_s:g} s", where=str(log), fix="see its last words") from None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def refuse_outside_slurm(nodes: int) -> None:
    """Ranks are steps of an allocation. Raises `ServingError` where there is none, or a smaller one."""
    found = os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES"))
    if "SLURM_JOB_ID" not in os.environ or found is None:
        raise ServingError(
            "engine trtllm starts its ranks with srun, and this is no Slurm job",
            fix="k3bench run --profile slurm RECIPE; `k3bench measure RECIPE --dry-run` shows what would be run",
        )
    if int(found) < nodes:
        raise ServingError(f"the allocation has {found} of {nodes} nodes", where=os.environ["SLURM_JOB_ID"])


def prove(name: str, *, ranks: int, nodes: int) -> Check:
    """Whether the Slurm step of this name has every rank on every node, as the controller sees it."""
    shown = ""
    for _ in range(PROOF_TRIES):
        step = _step_id(name)
        shown = _ask("scontrol", "--oneliner", "show", "step", step) if step else ""
        if "Tasks=" in shown:
            break
        time.sleep(1.0)
    found = {key: int(value) for key, value in re.findall(r"\b(Tasks|Nodes)=(\d+)\b", shown)}
    where = re.search(r"\bNodeList=(\S+)", shown)
    detail = f"{found.get('Tasks', 0)} ranks on {found.get('Nodes', 0)} nodes ({where[1] if where else 'unknown'})"
    return Check(name="ranks_complete", ok=found == {"Tasks": ranks, "Nodes": nodes}, detail=detail)


def end_step(name: str) -> None:
    """Cancel what is left of a step, until the controller knows of none."""
    end = time.monotonic() + GONE_LIMIT_S
    while (step := _step_id(name)) is not None and time.monotonic() < end:
        _ask("scancel", "--signal=KILL", step)
        time.sleep(0.5)


def _step_id(name: str) -> str | None:
    """`<job>.<step>` of a live step of this job by its name."""
    rows = _ask("squeue", "--noheader", "--steps", "--jobs", os.environ.get("SLURM_JOB_ID", ""), "--format=%i %j")
    return next((row.split()[0] for row in rows.splitlines() if row.split()[1:] == [name]), None)


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _environment() -> Mapping[str, str]:
    """Nothing to add; the ranks inherit this process's limit on open files, so it is raised as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (want, hard))
    return {}


def _refuse_taken(port: int) -> None:
    """A server that answers already would be measured in place of ours."""
    with socket.socket() as probe:
        probe.settimeout(2.0)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ServingError(
                f"port {port} of this node is taken", fix="end what listens there, or write `port: 0` for a free one"
            )
