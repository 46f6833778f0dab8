"""One rank of a distributed K3 that is measured: the in-process engine, doing what the leader says.

In: a seat in the process group, the plan. Out: step times, digests of chosen tokens. Out of scope: deciding anything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from k3bench.measure.allocation import load_spec
from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.measure.engines.k3model import InProcessK3, open_engine
from k3bench.ranks.link import Message
from k3bench.ranks.member import RankMember
from k3bench.records.plan import Plan
from k3bench.runnable import adopt
from k3bench.store import read_record


class MeasuringRank(RankMember):
    """Opened once, then asked for runs."""

    engine: InProcessK3

    def do_open(self) -> Message:
        """Build this rank's part and capture every step: all ranks in the same order."""
        self.engine = open_engine(request_of(self.arguments))
        return {"device": self.engine.device, "collectives": self.engine.model.collectives.kind}

    def do_start(self, context: dict[str, Any]) -> None:
        """Reset to the snapshot."""
        self.engine.start(RunContext(**context))

    def do_batch(self, context: dict[str, Any]) -> Message:
        """One batch; the clocks start once all ranks stand ready."""
        run = RunContext(**context)
        times = self.engine.batch(run)
        chosen = self.engine.history(run).cpu().numpy().tobytes()
        return {"step_ns": list(times.step_ns), "tokens": hashlib.sha256(chosen).hexdigest()}

    def do_checks(self, context: dict[str, Any]) -> Message:
        """What the engine knows about the run."""
        return {"repeats": all(check.ok for check in self.engine.checks(RunContext(**context)))}

    def leave(self) -> None:
        """Graphs hold the communicator: they go first."""
        if hasattr(self, "engine"):
            self.engine.close()
        super().leave()


def request_of(arguments: dict[str, Any]) -> EngineRequest:
    """What the leader opened, read again from the plan."""
    root, observation = Path(arguments["root"]), arguments["observation"]
    allocation = read_record(root / "plan.json", Plan).observation(observation).allocations[0].id
    spec = load_spec(root, observation, allocation)
    adopt(spec.builds["before"], root)
    return EngineRequest(spec.plan.recipe, spec.observation, spec.builds, root)
