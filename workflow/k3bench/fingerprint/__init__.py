"""Reads the machine a measurement runs on, and names what differs between two looks.

In: the device, the packages that matter, the work tree. Out: `Fingerprint`, a list of `Difference`.
Out of scope: what a difference means for a pair (`validity`), torch (versions come from installed metadata), and any
environment variable that is not on the list below: a token, key or password is never read.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from k3bench.fingerprint import gpus, machine
from k3bench.records.fingerprint import SLURM_IDENTITY, Difference, Fingerprint, GpuState, RankPlace, Stable

#: Every environment variable that may be written down, because it can change a number.
ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "K3BENCH_COMMIT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
    "NCCL_ALGO",
    "NCCL_CUMEM_ENABLE",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_PROTO",
    "NVSHMEM_DISABLE_NVLS",
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_CUDNN_V8_API_DISABLED",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TRITON_CACHE_DIR",
    "TRTLLM_ENABLE_PDL",
    "UCX_TLS",
)
SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CRED|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE)
SECRET_VALUE = re.compile(r"(^|[^A-Za-z])(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|eyJ)|BEGIN|://[^/]*@")
WITHHELD = "(withheld)"


def capture(
    *,
    device: str,
    modules: tuple[str, ...] = (),
    repo: Path | None = None,
    environment: tuple[str, ...] = (),
    ranks: tuple[RankPlace, ...] = (),
) -> Fingerprint:
    """One look, in milliseconds once the first has cached what cannot change while a process lives.

    `ranks` of a distributed model said themselves where they are; the GPUs looked at are those of this node.
    `device` as torch names it; GPUs are read for `cuda` only. `environment` adds names the recipe sets, no secrets.
    Take it under load or right after it: the clocks of an idle GPU say nothing.
    """
    absent: dict[str, str] = {}
    nvml = gpus.open_nvml(device, absent)
    indices = gpus.visible(nvml, absent) if nvml is not None else ()
    repository = machine.repository(repo, absent)
    stable = Stable(
        host=machine.host(),
        device=device,
        gpus=tuple(gpus.gpu(nvml, index, absent) for index in indices),
        driver=gpus.text(lambda: nvml.nvmlSystemGetDriverVersion(), "driver", absent) if nvml else None,
        cuda_driver=gpus.text(lambda: str(nvml.nvmlSystemGetCudaDriverVersion_v2()), "cuda_driver", absent)
        if nvml
        else None,
        python=platform.python_version(),
        packages={name: _version(name) for name in sorted({"k3bench", *modules})},
        repository=repository,
        environment=_allowed(os.environ, (*ENVIRONMENT, *environment)),
        slurm={name: os.environ[name] for name in SLURM_IDENTITY if name in os.environ},
        ranks=ranks,
    )
    moving = machine.moving(tuple(gpus.gpu_state(nvml, index, absent) for index in indices))
    absent |= {f"host.{name}": "not told by this system" for name, v in stable.host if v is None}
    absent |= {name: "not told by this system" for name, v in moving if v is None}
    return Fingerprint(taken=_now(), stable=stable, moving=moving, absent=absent)


def difference(
    before: Fingerprint,
    after: Fingerprint,
    *,
    max_clock_change_pct: float = 10.0,
    same_throttle_reasons: bool = True,
) -> tuple[Difference, ...]:
    """What is not alike: every stable field that changed, clocks beyond the limit, throttle reasons, thermal holds.

    Clocks are compared where both looks saw a busy GPU. Processor clocks, load, power, temperature are recorded only.
    """
    found = list(_unequal(_flat(before.stable.model_dump(mode="json")), _flat(after.stable.model_dump(mode="json"))))
    for one, two in zip(before.moving.gpus, after.moving.gpus, strict=False):
        found += _unlike_gpu(one, two, max_clock_change_pct, same_throttle_reasons)
    return tuple(found)


def stable_part(fingerprint: Fingerprint) -> dict[str, str]:
    """Dotted name to value, of everything that must not change: what a lock holds."""
    return _flat(fingerprint.stable.model_dump(mode="json"))


def moving_part(fingerprint: Fingerprint) -> dict[str, str]:
    """Dotted name to value, of everything that changes by itself."""
    return _flat(fingerprint.moving.model_dump(mode="json"))


def _unequal(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    names = sorted(before.keys() | after.keys())
    pairs = [(name, before.get(name, "(unset)"), after.get(name, "(unset)")) for name in names]
    return [Difference(field=name, before=one, after=two) for name, one, two in pairs if one != two]


def _unlike_gpu(before: GpuState, after: GpuState, limit_pct: float, same_reasons: bool) -> list[Difference]:
    found = []
    for name in ("sm_clock_mhz", "memory_clock_mhz"):
        one, two = getattr(before, name), getattr(after, name)
        comparable = one and two and not before.idle and not after.idle
        if comparable and abs(two - one) > limit_pct / 100 * one:
            found.append(Difference(field=f"gpus.{before.index}.{name}", before=str(one), after=str(two)))
    one, two = _reasons(before), _reasons(after)
    if same_reasons and one is not None and two is not None and one != two:
        field = f"gpus.{before.index}.throttle_reasons"
        found.append(Difference(field=field, before=", ".join(one) or "none", after=", ".join(two) or "none"))
    heat = (before.thermal_violation_ns, after.thermal_violation_ns)
    if None not in heat and heat[0] != heat[1]:
        field = f"gpus.{before.index}.thermal_violation_ns"
        found.append(Difference(field=field, before=str(heat[0]), after=str(heat[1])))
    return found


def _reasons(state: GpuState) -> tuple[str, ...] | None:
    return None if state.throttle_reasons is None else tuple(r for r in state.throttle_reasons if r != "gpu_idle")


def _flat(value: Any, name: str = "") -> dict[str, str]:
    parts: list[tuple[str, Any]]
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = [(str(v.get("index", n)) if isinstance(v, dict) else str(n), v) for n, v in enumerate(value)]
    else:
        return {name: "(absent)" if value is None else str(value)}
    return {k: v for key, part in parts for k, v in _flat(part, f"{name}.{key}" if name else str(key)).items()}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _allowed(environment: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """By list, and even then neither a name nor a value that looks like a secret."""
    kept = {name: environment[name] for name in names if name in environment and not SECRET_NAME.search(name)}
    return {name: WITHHELD if SECRET_VALUE.search(value) else value[:500] for name, value in sorted(kept.items())}


@functools.cache
def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
