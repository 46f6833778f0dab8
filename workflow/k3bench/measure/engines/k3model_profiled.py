"""The program of a profiled run: one arm at one level, a captured step, a few replays. Not for timing an arm.

    python -m k3bench.measure.engines.k3model_profiled --root results/x --observation obs1 --arm after --level 1 ...

In: plan and builds of a campaign. Out: `told.json` beside the stem, and the trace where the tool works in this process.
The same replays are first run before any collection begins, so that what the profiler costs is known.
Out of scope: nsys itself (`profilers.py`), reading traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from k3bench.errors import K3Error
from k3bench.measure.allocation import load_spec
from k3bench.measure.engine import EngineRequest
from k3bench.measure.engines.cupti_records import CuptiRecords
from k3bench.measure.engines.k3model import build_model, snapshots, time_on_device
from k3bench.ranks.link import Message
from k3bench.ranks.member import RankMember
from k3bench.records.measurement import ARMS
from k3bench.records.plan import Plan
from k3bench.store import read_record, write_atomic
from k3model.cache import Snapshot
from k3model.capture import Decode
from k3model.captured import CaptureRecorder, DriverGraph
from k3model.decode import checked_device
from k3model.errors import K3ModelError
from k3model.policy import policy

#: Enough for a median; the first is dropped as warm-up here and by the reader.
REPLAYS = 11


class Collector(Protocol):
    """A profiler as the program sees it."""

    def around_capture(self) -> AbstractContextManager[None]:
        """Open while the step is captured."""

    def around_replays(self) -> AbstractContextManager[None]:
        """Open while it is replayed; what is collected is on disk when this ends."""

    def told(self) -> dict[str, Any]:
        """Versions, and the name of the capture record if one is needed."""


class NsysWindow:
    """nsys collects from cudaProfilerStart on: the capture must be inside, or nodes have no origin."""

    def __init__(self, stem: Path, recorder: CaptureRecorder, level: int) -> None:
        """Nothing to hold: nsys reads the NVTX ranges itself."""

    @contextmanager
    def around_capture(self) -> Iterator[None]:
        """See `Collector`."""
        torch.cuda.cudart().cudaProfilerStart()
        yield

    @contextmanager
    def around_replays(self) -> Iterator[None]:
        """See `Collector`."""
        yield
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()

    def told(self) -> dict[str, Any]:
        """See `Collector`."""
        return {"capture": None}


class Kineto:
    """torch.profiler around the replays; which node belongs where is in the capture record."""

    def __init__(self, stem: Path, recorder: CaptureRecorder, level: int) -> None:
        self.path, self.record = Path(f"{stem}.json.gz"), stem.with_name(f"{stem.name}.capture.json")
        self.recorder, self.level = recorder, level

    @contextmanager
    def around_capture(self) -> Iterator[None]:
        """See `Collector`."""
        yield
        write_atomic(self.record, json.dumps(self.recorder.as_plain(self.level)).encode())

    @contextmanager
    def around_replays(self) -> Iterator[None]:
        """See `Collector`."""
        kinds = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=kinds) as collected:
            yield
            torch.cuda.synchronize()
        collected.export_chrome_trace(str(self.path))

    def told(self) -> dict[str, Any]:
        """See `Collector`."""
        with gzip.open(self.path) as file:
            found = re.search(rb'"cupti_version"\s*:\s*(\d+)', file.read(65536))
        return {"capture": self.record.name, "cupti_version": found.group(1).decode() if found else None}


class Cupti:
    """CUPTI's own records through cupti-python: every node is tagged with its ranges when it is created."""

    def __init__(self, stem: Path, recorder: CaptureRecorder, level: int) -> None:
        self.path, self.records = Path(f"{stem}.json.gz"), CuptiRecords(recorder.open)

    @contextmanager
    def around_capture(self) -> Iterator[None]:
        """See `Collector`."""
        self.records.start()
        yield

    @contextmanager
    def around_replays(self) -> Iterator[None]:
        """See `Collector`."""
        yield
        torch.cuda.synchronize()
        document = self.records.stop() | {"gpu": torch.cuda.get_device_name()}
        write_atomic(self.path, gzip.compress(json.dumps(document).encode(), mtime=0))

    def told(self) -> dict[str, Any]:
        """See `Collector`."""
        return {"capture": None, "cupti_version": self.records.version}


COLLECTORS: dict[str, type[NsysWindow] | type[Kineto] | type[Cupti]] = {
    "nsys": NsysWindow,
    "kineto": Kineto,
    "cupti": Cupti,
}


def run(root: Path, observation: str, arm: str, level: int, tool: str, stem: Path) -> dict[str, Any]:
    """Capture and replay under the tool; returns what the record needs."""
    checked_device("cuda")
    plan = read_record(root / "plan.json", Plan)
    spec = load_spec(root, observation, plan.observation(observation).allocations[0].id)
    request = EngineRequest(plan.recipe, spec.observation, spec.builds, root)
    model = build_model(request)
    chosen = policy(spec.builds[arm].policy, level)  # type: ignore[index]
    snapshot = snapshots(model, request)[level]
    replays = min(REPLAYS, plan.recipe.workload.osl_tokens)
    plain = Decode(model, chosen, level)
    plain.restore(snapshot)
    plain.capture()
    unprofiled_ms = _median_ms(plain, snapshot, replays)

    recorder = CaptureRecorder(DriverGraph())
    watched = Decode(model, chosen, level, ranges=recorder)
    watched.restore(snapshot)
    watched.warm_up()
    collector: Collector = COLLECTORS[tool](stem, recorder, level)
    with collector.around_capture():
        watched.capture()
    with collector.around_replays():
        profiled_ms = _median_ms(watched, snapshot, replays)
    times = {"n_replays": replays, "profiled_step_ms": profiled_ms, "unprofiled_step_ms": unprofiled_ms}
    return collector.told() | times | {"forks_on": chosen.forks}


class ProfiledRank(RankMember):
    """One rank of a distributed model: the same run as on one GPU, all ranks at once."""

    def do_run(self, arm: str, level: int, tool: str, stem: str) -> Message:
        """What the record of this rank's trace needs."""
        own, root = Path(stem.replace("{rank}", str(self.place.index))), Path(self.arguments["root"])
        return run(root, self.arguments["observation"], arm, level, tool, own)


def _median_ms(session: Decode, snapshot: Snapshot, replays: int) -> float:
    session.restore(snapshot)
    session.model.collectives.barrier()
    step_ns = time_on_device(session.step, replays)
    return statistics.median(step_ns[1:] or step_ns) / 1e6


def main() -> int:
    """The program's door."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--observation", required=True)
    parser.add_argument("--arm", choices=ARMS, required=True)
    parser.add_argument("--level", type=int, required=True)
    parser.add_argument("--tool", choices=tuple(COLLECTORS), required=True)
    parser.add_argument("--stem", type=Path, required=True)
    args = parser.parse_args()
    try:
        found = run(args.root, args.observation, args.arm, args.level, args.tool, args.stem)
    except (K3Error, K3ModelError) as error:
        print(error, file=sys.stderr)
        return 2
    write_atomic(args.stem.with_name("told.json"), json.dumps(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
