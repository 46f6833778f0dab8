"""Levels in, what the load client adds at each out: the client against a loopback server that stamps what it sends.

One calibration serves a campaign on a host until it boots again. Out of scope: judging requests (`k3bench.validity`).
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from k3bench.errors import ServingError
from k3bench.measure.client import LoadResult, plan_load, run_load
from k3bench.records.base import digest_of
from k3bench.records.calibration import Calibration, ClientLevel
from k3bench.records.measurement import Check
from k3bench.records.request import Request
from k3bench.serving.process import start_server
from k3bench.serving.prompts import random_prompts
from k3bench.serving.stream import Target
from k3bench.store import read_record, write_record

PACE_MS = 10.0
OSL_TOKENS = 32
#: The median shift of this many requests is not one hiccup of the machine.
FEWEST_REQUESTS = 12
FULL_RATE_TOKENS = 2000
#: A run may use this share of the chunk rate that the client reached at full rate.
RATE_SHARE = 0.5
#: And this share of one core: the client is one thread.
CPU_SHARE = 0.9
READY_LIMIT_S = 60.0
REQUEST_LIMIT_S = 60.0
BOOT = Path("/proc/sys/kernel/random/boot_id")


def calibrated(folder: Path, levels: Iterable[int], *, say: Callable[[str], None] = print) -> Calibration:
    """The calibration of this host for these levels: the stored one, or a new one that is then stored."""
    wanted = tuple(sorted(set(levels)))
    path = folder / f"{digest_of([_host(), list(wanted)])[:16]}.json"
    if path.exists():
        return read_record(path, Calibration)
    say(f"calibrating the load client at concurrency {', '.join(map(str, wanted))}")
    found = calibrate(wanted, log=path.with_suffix(".log"))
    write_record(path, found)
    return found


def calibrate(levels: Sequence[int], *, log: Path) -> Calibration:
    """Measure every level against the reference server, started for this only."""
    command = [sys.executable, "-m", "k3bench.measure.reference_server", "--port", "{port}"]
    server = start_server(command, log=log, ready_limit_s=READY_LIMIT_S)
    try:
        measured = tuple(_level(server.base_url, level) for level in levels)
    finally:
        server.stop()
    host, boot, cores, versions = _host()
    return Calibration(host=host, boot=boot, cores=cores, versions=versions, measured=_now(), levels=measured)


def _level(base_url: str, concurrency: int) -> ClientLevel:
    paced = _load(f"{base_url}/pace/{PACE_MS:g}", concurrency, OSL_TOKENS)
    full = _load(f"{base_url}/pace/0", concurrency, FULL_RATE_TOKENS)
    return client_level(concurrency, paced, full)


def client_level(concurrency: int, paced: LoadResult, full: LoadResult) -> ClientLevel:
    """Bias and lag of a paced load, rate of an unpaced one."""
    biases = sorted(100.0 * (_span_ms(r.chunk_ns) / _span_ms(r.server_ns) - 1.0) for r in paced.requests)
    shifts = [_span_ms(r.chunk_ns) - _span_ms(r.server_ns) for r in paced.requests]
    lags = sorted((a - b) / 1e6 for r in paced.requests for a, b in zip(r.chunk_ns, r.server_ns, strict=True))
    return ClientLevel(
        concurrency=concurrency,
        requests=len(paced.requests),
        osl_tokens=OSL_TOKENS,
        pace_ms=PACE_MS,
        server_tpot_ms=statistics.median(_span_ms(r.server_ns) for r in paced.requests) / (OSL_TOKENS - 1),
        bias_pct_median=statistics.median(biases),
        bias_pct_largest=max(biases, key=abs),
        shift_ms_median=statistics.median(shifts),
        lag_ms_median=statistics.median(lags),
        lag_ms_p99=lags[min(len(lags) - 1, -(-99 * len(lags) // 100) - 1)],
        client_cpu_share=paced.cpu_share,
        full_rate_chunks_s=full.chunks_per_s,
    )


def _span_ms(stamps_ns: Sequence[int]) -> float:
    """First to last."""
    return (stamps_ns[-1] - stamps_ns[0]) / 1e6


def _load(base_url: str, concurrency: int, osl_tokens: int) -> LoadResult:
    target = Target(base_url, "reference", limit_s=REQUEST_LIMIT_S)
    each = max(2, -(-FEWEST_REQUESTS // concurrency))
    prompts = random_prompts(concurrency * each, isl_tokens=32, vocab=8192, seed="calibration")
    found = run_load(target, plan_load(target, prompts, concurrency=concurrency, osl_tokens=osl_tokens))
    broken = next((r for r in found.requests if not _complete(r, osl_tokens)), None)
    if broken is not None:
        raise ServingError(
            f"the load client cannot be calibrated at concurrency {concurrency}: {broken.error or 'missing tokens'}",
            fix="see the reference server's log beside the calibration; loopback must be usable",
        )
    return found


def _complete(request: Request, osl_tokens: int) -> bool:
    return request.error is None and len(request.chunk_ns) == len(request.server_ns) == osl_tokens


def client_checks(level: ClientLevel, load: LoadResult, *, max_bias_pct: float) -> tuple[Check, ...]:
    """Whether a run at this level measured the server and not the client. What shifts a request's span by so many ms
    weighs more on a short request than on the calibration's own.
    """
    spans = [_span_ms(r.chunk_ns) for r in load.requests if len(r.chunk_ns) > 1]
    bias_pct = 100.0 * level.shift_ms_median / statistics.median(spans) if spans and min(spans) > 0 else 0.0
    bias_ok, rate = abs(bias_pct) <= max_bias_pct, load.chunks_per_s
    bias = f"the client alone is off by {bias_pct:.2f} % of a request, {max_bias_pct:g} % may be: free cores for it"
    keeps_up = rate <= RATE_SHARE * level.full_rate_chunks_s and load.cpu_share <= CPU_SHARE
    busy = f"{rate:.0f} chunks/s of {level.full_rate_chunks_s:.0f} possible, {100 * load.cpu_share:.0f} % of a core"
    return (
        Check(name="client_unbiased", ok=bias_ok, detail="" if bias_ok else bias),
        Check(name="client_keeps_up", ok=keeps_up, detail="" if keeps_up else busy),
    )


def _host() -> tuple[str, str, int, dict[str, str]]:
    """What a calibration depends on."""
    boot = BOOT.read_text().strip() if BOOT.exists() else "unknown"
    versions = {name: metadata.version(name) for name in ("aiohttp", "uvloop")}
    versions["python"] = platform.python_version()
    return platform.node(), boot, os.cpu_count() or 1, versions


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
