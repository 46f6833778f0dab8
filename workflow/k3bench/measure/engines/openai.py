"""Anything behind the OpenAI streaming API: attach to it, or start it per run; load it; hand back requests and checks.

A run is one life of a server (unless the recipe says `restart: none`), and every way in which it can fail is a failed
check of the points it should have given. Out of scope: what a request must be (`validity`), commands (`serving`).
"""

from __future__ import annotations

from collections.abc import Sequence

from k3bench.errors import K3Error, MeasureError
from k3bench.measure.calibration import calibrated, client_checks
from k3bench.measure.client import LoadResult, progress
from k3bench.measure.engine import EngineRequest, PointData, RunContext
from k3bench.measure.load import Load, load_of
from k3bench.metrics import BatchTimes, request_metrics
from k3bench.records.calibration import Calibration
from k3bench.records.measurement import ARMS, Arm, Check, Restart
from k3bench.serving.arms import ServedArm, device_of, served_arm
from k3bench.serving.endpoint import cache_hits
from k3bench.serving.process import Server
from k3bench.serving.stream import Target
from k3bench.store import CampaignFolder
from k3bench.validity import Criteria, check_requests


class ServedOpenAI:
    """Both arms of one observation behind servers."""

    simulated = False

    def __init__(self, request: EngineRequest) -> None:
        self._request, self._recipe = request, request.recipe
        self._arms: dict[Arm, ServedArm] = {
            arm: served_arm(request.recipe, request.observation, request.builds, arm, request.folder) for arm in ARMS
        }
        serving = self._arms["before"].serving
        self.restart: Restart = serving.restart
        self.device = device_of(request.recipe.engine)
        folder = CampaignFolder(request.folder)
        self._logs = folder.root / "logs"
        self._calibration = self._calibrated(folder)
        self._servers: dict[str, Server] = {}
        self._failures: dict[str, str] = {}
        self._runs: dict[str, str] = {}

    def _calibrated(self, folder: CampaignFolder) -> Calibration | None:
        """What this client adds on this host; None where another client sends."""
        return calibrated(folder.calibrations, self._recipe.workload.levels)

    # --- servers
    def start(self, context: RunContext) -> None:
        """The run's server is up, or the reason why not is kept for its points."""
        key, arm = self._key(context), self._arms[context.arm]
        if self.restart == "server":
            self._stop_others(key)
        if arm.endpoint or key in self._failures or key in self._servers:
            return
        try:
            server = arm.start(self._logs / f"server-{self._request.observation.id}-{key}.log")
            self._servers[key] = server
            self._runs[key], other = arm.sources(server.base_url)
            if other:
                self._failures[key] = other
        except K3Error as error:
            self._failures[key] = str(error)

    def _key(self, context: RunContext) -> str:
        """One server a run, or one an arm where the recipe keeps them."""
        return f"b{context.block:03d}-r{context.run}-{context.arm}" if self.restart == "server" else context.arm

    def _stop_others(self, key: str) -> None:
        for other in [k for k in self._servers if k != key]:
            self._servers.pop(other).stop()

    def close(self) -> None:
        """Stop what was started."""
        self._stop_others("")

    # --- one point
    def point(self, context: RunContext) -> PointData:
        """Warm up, load, judge; numbers only if every check passed."""
        key, arm = self._key(context), self._arms[context.arm]
        server = self._servers.get(key)
        problem = self._failures.get(key, "")
        if server is not None and not server.is_running:
            problem = f"the server ended with status {server.process.returncode}; see {server.log}"
        base_url = arm.endpoint or (server.base_url if server else "")
        try:
            if problem:
                raise MeasureError(problem)
            target, vocab = arm.target(base_url)
            return self._loaded(context, target, vocab)
        except K3Error as error:
            return self._nothing(Check(name="server_ready", ok=False, detail=str(error)))

    def _nothing(self, *checks: Check) -> PointData:
        return PointData({}, (), (), checks, self._calibration.digest() if self._calibration else None)

    def _loaded(self, context: RunContext, target: Target, vocab: int) -> PointData:
        workload, planned = self._recipe.workload, load_of(self._recipe, context, target, vocab, warm_up=False)
        assert planned is not None
        warming = load_of(self._recipe, context, target, vocab, warm_up=True)
        warm = self._send(context, warming, "warm-up") if warming else None
        if warm and all(r.error is not None for r in warm.requests):
            first = warm.requests[0].error
            return self._nothing(Check(name="warm_up_answered", ok=False, detail=f"{first.kind}: {first.detail}"))  # type: ignore[union-attr]
        hits_before = cache_hits(target.base_url)
        found = self._send(context, planned, "load")
        hits = {name: n - hits_before.get(name, 0.0) for name, n in cache_hits(target.base_url).items()}
        allowed = planned.count * workload.isl_tokens * self._recipe.validity.max_cached_prompt_pct / 100
        checks = (*self._checks(context, target, found, planned.count), _no_new_hits(hits, allowed))
        return self._data(found, checks)

    def _send(self, context: RunContext, load: Load, what: str) -> LoadResult:
        """From this very process; an engine whose client is a step of its own sends it from there."""
        place = f"{context.observation}/{context.block}/{context.run // 2}/{context.level}"
        return load.send(told=progress(f"{place} {context.arm}"))

    def _checks(self, context: RunContext, target: Target, found: LoadResult, planned: int) -> tuple[Check, ...]:
        workload, validity = self._recipe.workload, self._recipe.validity
        criteria = Criteria(
            workload.osl_tokens, workload.stream_interval, validity, prompt_is_ids=target.api == "completions"
        )
        level = self._calibration.level(context.level) if self._calibration else None
        return (
            Check(name="server_ready", ok=True, detail=self._runs.get(self._key(context), "")),
            *check_requests(found.requests, criteria, planned=planned, concurrency=context.level),
            *(client_checks(level, found, max_bias_pct=validity.max_client_bias_pct) if level else ()),
        )

    def _data(self, found: LoadResult, checks: Sequence[Check]) -> PointData:
        raw = tuple(r.model_dump(mode="json", exclude={"server_ns"}) for r in found.requests)
        valid = all(check.ok for check in checks)
        times = [r.times() for r in found.requests] if valid else []
        return PointData(
            metrics=request_metrics(times) if valid else {},
            tpot_ms=tuple(t.tpot_ms for t in times if t.counted),
            raw=raw,
            checks=tuple(checks),
            calibration=self._calibration.digest() if self._calibration else None,
        )

    # --- the in-process half of the protocol
    def batch(self, context: RunContext) -> BatchTimes:
        """A server decodes requests, not batches."""
        raise MeasureError("a served engine has no batches", fix="call point()")

    def checks(self, context: RunContext) -> tuple[Check, ...]:
        """All of them came with the point."""
        return ()


def _no_new_hits(hits: dict[str, float], allowed_tokens: float) -> Check:
    """The server's own cache counters, where it has any, must not have moved by more than the recipe allows."""
    moved = {name: n for name, n in hits.items() if n > allowed_tokens}
    detail = ", ".join(f"{name} +{n:g}" for name, n in sorted(moved.items()))
    return Check(name="cache_counters_still", ok=not moved, detail=detail and f"{detail}: prompts were seen before")


def open_engine(request: EngineRequest) -> ServedOpenAI:
    """Calibrate the client for this host, if it is not yet, and hold the arms ready. No server is started yet."""
    return ServedOpenAI(request)
