"""Parts of `decode.py`: paired timing of two sessions, a profiled step cut into ops, provenance.

In: sessions. Out: plain data. Out of scope: what is compared with what, tables (`decode.py`).
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from k3bench.fingerprint.machine import host
from k3bench.measure.engines.k3model import time_on_device, time_on_host
from k3bench.records.residency import TraceResidency
from k3model.cache import Snapshot
from k3model.capture import Decode
from k3model.captured import CaptureRecorder, DriverGraph

#: Steps at the start of a run that are not timed: a restore leaves other contents in the GPU's cache and, as it is
#: short and waits for the host, a lower clock, which takes a tenth of a second to rise.
SKIPPED = 16
#: Replays under the profiler, and how many of them come before those that are read.
REPLAYS, WARM_UP = 6, 2


def step_ns(session: Decode, snapshot: Snapshot, steps: int) -> list[int]:
    """Durations of steps from the snapshot, as the engine takes them."""
    session.restore(snapshot)
    timed = time_on_device if session.model.device.type == "cuda" else time_on_host
    return list(timed(session.step, steps + SKIPPED))[SKIPPED:]


@dataclass(frozen=True)
class Delta:
    """Two sessions run in turn: medians, and the mean of the rounds' differences with its 95 % half width."""

    before_ms: float
    after_ms: float
    delta_pct: float
    half_pct: float

    @property
    def gains(self) -> bool:
        """Faster by more than the interval's width."""
        return self.delta_pct + self.half_pct < 0


def paired(run_before: Callable[[], float], run_after: Callable[[], float], rounds: int) -> Delta:
    """Rounds of both, the order turned round each time, after one that is not kept; each run gives milliseconds."""
    run_before(), run_after()
    before: list[float] = []
    after: list[float] = []
    for number in range(rounds):
        for run, into in ((run_before, before), (run_after, after))[:: -1 if number % 2 else 1]:
            into.append(run())
    ratios = [100 * (b / a - 1) for a, b in zip(before, after, strict=True)]
    half = float(stats.t.ppf(0.975, rounds - 1)) * statistics.stdev(ratios) / math.sqrt(rounds) if rounds > 1 else 0.0
    return Delta(statistics.median(before), statistics.median(after), statistics.mean(ratios), half)


def compared(before: Decode, after: Decode, snapshot: Snapshot, rounds: int, steps: int) -> Delta:
    """`paired` for the median step of two sessions."""

    def median(session: Decode) -> Callable[[], float]:
        return lambda: statistics.median(step_ns(session, snapshot, steps)) / 1e6

    return paired(median(before), median(after), rounds)


def profiled(session_of: Callable[[CaptureRecorder], Decode], snapshot: Snapshot) -> TraceResidency:
    """A session captured anew and replayed under Kineto, read by the trace room: families, kernels, fork spans."""
    from k3bench.measure.engines.k3model_profiled import Kineto
    from k3bench.trace.analysis import Asked, analyse
    from k3bench.trace.capture import read_capture

    recorder = CaptureRecorder(DriverGraph())
    session = session_of(recorder)
    session.restore(snapshot)
    session.warm_up()
    with tempfile.TemporaryDirectory() as folder:
        collector = Kineto(Path(folder) / "step", recorder, session.batch)
        with collector.around_capture():
            session.capture()
        with collector.around_replays():
            session.restore(snapshot)
            for _ in range(REPLAYS):
                session.step()
            torch.cuda.synchronize()
        asked = Asked(families=True, capture=read_capture(collector.record), warm_up=WARM_UP)
        return analyse(collector.path, asked).result


def families(trace: TraceResidency) -> list[dict[str, Any]]:
    """Per family and kernel: launches and milliseconds a step."""
    graph = max((g for device in trace.devices for g in device.graphs), key=lambda g: g.n_steps_kept)
    steps = graph.n_steps_kept
    return [
        {
            "family": family.family,
            "busy_ms": family.all_ops.busy_ns / steps / 1e6,
            "launches": family.all_ops.n_ops / steps,
            "kernels": [
                {"name": k.short_name, "launches": k.n / steps, "ms": k.duration_ns / steps / 1e6}
                for k in sorted(family.kernels, key=lambda k: -k.duration_ns)
            ],
        }
        for family in graph.families
    ]


def ideal_gains(trace: TraceResidency) -> dict[str, float]:
    """Per fork of a serial step: milliseconds of the shorter legs, gaps included, that hiding them could save."""
    total: dict[str, float] = {}
    for span in trace.forks:
        total[span.fork] = total.get(span.fork, 0.0) + span.shorter_leg_span_ns_per_step / 1e6
    return total


def provenance(arguments: dict[str, Any]) -> dict[str, Any]:
    """What ran where."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    told: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or os.environ.get("K3BENCH_COMMIT", "unknown"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "arguments": arguments,
        "device": f"cpu {platform.machine()}",
        "boot": host().boot or None,
    }
    if torch.cuda.is_available():
        asked = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
        smi = subprocess.run(
            ["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        told |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "nvidia_smi": smi.stdout.strip()}
    return told


def plain(delta: Delta) -> dict[str, float]:
    """For the record."""
    return asdict(delta)
