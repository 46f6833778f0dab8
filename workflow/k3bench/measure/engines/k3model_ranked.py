"""K3 decode over several ranks: the engine as the allocation's walk sees it. Every run is the same run on every rank.

The walking process is no rank. A point counts only if every rank is where the block began with it and chose the same
tokens; a step takes as long as on the rank that took longest over the batch. Out of scope: what a rank does
(`k3model_rank.py`), starting and ending them (`k3bench.ranks`). No torch.
"""

from __future__ import annotations

import os
from dataclasses import asdict

from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.metrics import BatchTimes
from k3bench.ranks import Crew, Limits, Wanted
from k3bench.records.fingerprint import RankPlace
from k3bench.records.measurement import Arm, Check, Restart
from k3bench.runnable import runnable

MEMBER = "k3bench.measure.engines.k3model_rank:MeasuringRank"


class RankedK3:
    """A crew of ranks behind the protocol of one engine."""

    restart: Restart = "none"
    simulated = False

    def __init__(self, request: EngineRequest, limits: Limits | None = None) -> None:
        self.crew = Crew(crew_for(request, MEMBER), limits)
        try:
            self.opened = self.crew.ask("open", limit_s=self.crew.limits.open_s)
        except BaseException:
            self.crew.close()
            raise
        self.device = str(self.opened[0]["device"])
        self._apart: list[str] = []

    @property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Where every rank runs: part of the machine that a block must end on as it began."""
        return self.crew.places

    def start(self, context: RunContext) -> None:
        """Every rank resets."""
        self._apart = []
        self.crew.ask("start", context=asdict(context))

    def batch(self, context: RunContext) -> BatchTimes:
        """Every rank decodes its part of the same batch."""
        answers = self.crew.ask("batch", context=asdict(context))
        apart = sorted({answer["tokens"] for answer in answers})
        if len(apart) > 1:
            self._apart += apart
        slowest = max(answers, key=lambda answer: sum(answer["step_ns"]))
        return BatchTimes(step_ns=tuple(slowest["step_ns"]))

    def checks(self, context: RunContext) -> tuple[Check, ...]:
        """What one rank checks, on all of them; that all are there; that all chose the same tokens."""
        there, where = self.crew.present()
        repeat = [answer["repeats"] for answer in self.crew.ask("checks", context=asdict(context))]
        off = [str(rank) for rank, fine in enumerate(repeat) if not fine]
        detail = f"two batches from one snapshot chose different tokens on rank {', '.join(off)}" if off else ""
        return (
            Check(name="tokens_repeat", ok=not off, detail=detail),
            Check(name="ranks_present", ok=there, detail=f"{where}; {self.opened[0]['collectives']}"),
            Check(name="ranks_agree", ok=not self._apart, detail="ranks chose different tokens" if self._apart else ""),
        )

    def close(self) -> None:
        """End every rank."""
        self.crew.close()


def crew_for(request: EngineRequest, member: str, *, arm: Arm = "before", under: tuple[str, ...] = ()) -> Wanted:
    """The recipe's ranks on its nodes, as members of this kind, started where the arm's build lies."""
    recipe, folder = request.recipe, request.folder.absolute()
    job = os.environ.get("SLURM_JOB_ID") or os.getpid()
    return Wanted(
        ranks=recipe.engine.ranks,
        nodes=recipe.resources.nodes,
        member=member,
        arguments={"root": str(folder), "observation": request.observation.id, "device": recipe.engine.device},
        logs=folder / "logs" / "ranks" / f"{request.observation.id}-{job}",
        home=runnable(request.builds[arm], folder).folder,
        under=under,
    )


def open_engine(request: EngineRequest) -> RankedK3:
    """Start the ranks; each builds its part and captures every step. Raises `RankError` where they cannot."""
    return RankedK3(request)
