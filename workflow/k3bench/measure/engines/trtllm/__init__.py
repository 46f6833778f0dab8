"""TensorRT-LLM over all ranks of an allocation: trtllm-serve started per run as one Slurm step, loaded from another.

The client is this project's own or TensorRT-LLM's `benchmark_serving`; both run on the first node as overlapping steps.
Nothing of TensorRT-LLM is imported here: it is only ever started. Out of scope: command lines (`serving/trtllm/`).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from k3bench.errors import K3Error, MeasureError
from k3bench.measure.client import LoadResult
from k3bench.measure.engine import EngineRequest, PointData, RunContext
from k3bench.measure.engines.openai import ServedOpenAI
from k3bench.measure.engines.trtllm.benchmark import benchmark_words, imported, stem_of, step_of
from k3bench.measure.load import Load, read_result
from k3bench.records.calibration import Calibration
from k3bench.records.measurement import Check
from k3bench.serving.endpoint import version
from k3bench.serving.stream import Target
from k3bench.serving.trtllm.arm import TrtllmArm
from k3bench.serving.trtllm.commands import Commands
from k3bench.serving.trtllm.settings import spec_of
from k3bench.serving.trtllm.slurm_step import StepServer, refuse_outside_slurm, run_step
from k3bench.store import CampaignFolder

OWN_CLIENT = (sys.executable, "-m", "k3bench.measure.load")


class ServedTrtllm(ServedOpenAI):
    """Both arms of one observation; a run is one life of a server over all ranks."""

    def __init__(self, request: EngineRequest) -> None:
        self._spec = spec_of(request.recipe)
        super().__init__(request)
        self._scratch = request.folder.absolute() / "trtllm" / "loads"

    def _calibrated(self, folder: CampaignFolder) -> Calibration | None:
        return super()._calibrated(folder) if self._spec.client == "k3bench" else None

    def _commands(self, context: RunContext) -> Commands:
        arm = self._arms[context.arm]
        assert isinstance(arm, TrtllmArm)
        return arm.commands()

    # --- one point
    def point(self, context: RunContext) -> PointData:
        """As for every server; and every rank must have been there, on every node, at its start."""
        data, server = super().point(context), self._servers.get(self._key(context))
        if not isinstance(server, StepServer) or server.proof is None:
            return data
        told = Check(name="server_version", ok=True, detail=version(server.base_url))
        checks = (*data.checks, server.proof, told)
        if server.proof.ok:
            return replace(data, checks=checks)
        return replace(data, checks=checks, metrics={}, tpot_ms=())

    def _send(self, context: RunContext, load: Load, what: str) -> LoadResult:
        """This project's client as a step of its own."""
        out = self._scratch / f"{stem_of(context)}-{what}.json"
        words = self._commands(context).client(step_of(context, what), (*OWN_CLIENT, *load.words(out)))
        log = self._logs / f"client-{stem_of(context)}-{what}.log"
        out.parent.mkdir(parents=True, exist_ok=True)
        status = run_step(words, log, load.limit_s)
        if status:
            raise MeasureError(f"the load client ended with status {status}", where=str(log))
        found = read_result(out)
        out.unlink()
        return found

    def _loaded(self, context: RunContext, target: Target, vocab: int) -> PointData:
        if self._spec.client == "k3bench":
            return super()._loaded(context, target, vocab)
        return self._benchmarked(context, target)

    # --- the other client
    def _benchmarked(self, context: RunContext, target: Target) -> PointData:
        """Warm-up, then the measured pass, by TensorRT-LLM's own client; its file is read as any imported one."""
        port = int(target.base_url.rpartition(":")[2])
        out = self._scratch / f"{stem_of(context)}-benchmark.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        for what in ("warm-up", "load"):
            asked = benchmark_words(self._recipe, context, port, out if what == "load" else None)
            if not asked:
                continue
            log = self._logs / f"client-{stem_of(context)}-{what}.log"
            words = self._commands(context).benchmark(step_of(context, what), log.absolute(), asked)
            limit_s = target.limit_s * (self._recipe.workload.batches + 1)
            status = run_step(words, log.with_suffix(".srun.log"), limit_s)
            if status:
                name = "warm_up_answered" if what == "warm-up" else "client_ended"
                return self._nothing(Check(name=name, ok=False, detail=f"status {status}; see {log}"))
        return imported(self._recipe, context, out)


def open_engine(request: EngineRequest) -> ServedTrtllm:
    """Hold the arms ready. Raises `MeasureError` outside an allocation of the recipe's size. No server starts yet."""
    try:
        refuse_outside_slurm(request.recipe.resources.nodes)
    except K3Error as error:
        raise MeasureError(error.what, where=request.observation.id, fix=error.fix) from None
    return ServedTrtllm(request)
