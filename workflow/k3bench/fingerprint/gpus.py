"""What NVML says about the visible GPUs.

In: the device. Out: the fixed and the moving part of each GPU, or the reason why there is none. Out of scope: judging.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from k3bench.records.fingerprint import Gpu, GpuState

#: NVML's bits, by the names its header gives them.
THROTTLE_BITS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}


@functools.cache
def _started_nvml() -> Any:
    """The NVML binding, ready; or the reason why there is none, as text."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return pynvml


def open_nvml(device: str, absent: dict[str, str]) -> Any:
    found = _started_nvml() if device.startswith("cuda") else f"the device is {device}"
    if isinstance(found, str):
        absent["gpus"] = absent["driver"] = found
        return None
    return found


def why_no_gpu() -> str:
    """Why this process sees no GPU; empty where it sees one."""
    absent: dict[str, str] = {}
    nvml = open_nvml("cuda", absent)
    return absent.get("gpus", "") if nvml is None or visible(nvml, absent) else absent.get("gpus", "none is visible")


def visible(nvml: Any, absent: dict[str, str]) -> tuple[int, ...]:
    """NVML's indices of the GPUs this process may use."""
    everything = tuple(range(nvml.nvmlDeviceGetCount()))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return everything
    wanted = [item.strip() for item in listed.split(",") if item.strip()]
    uuids = {index: str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))) for index in everything}
    found = tuple(i for i in everything if any(_names(item, i, uuids[i]) for item in wanted))
    if not found:
        absent["gpus"] = "CUDA_VISIBLE_DEVICES names none of the GPUs that NVML lists"
    return found


def _names(item: str, index: int, uuid: str) -> bool:
    return item == str(index) or (item.startswith("GPU-") and uuid.startswith(item))


def gpu(nvml: Any, index: int, absent: dict[str, str]) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ask = functools.partial(_number, absent=absent)
    return Gpu(
        index=index,
        name=text(lambda: nvml.nvmlDeviceGetName(handle), f"gpus.{index}.name", absent),
        uuid=text(lambda: nvml.nvmlDeviceGetUUID(handle), f"gpus.{index}.uuid", absent),
        memory_mb=ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20, f"gpus.{index}.memory_mb"),
        power_limit_w=_watts(
            lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle), f"gpus.{index}.power_limit_w", absent
        ),
        max_sm_clock_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 1), f"gpus.{index}.max_sm_clock_mhz"),
        max_memory_clock_mhz=ask(
            lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 2), f"gpus.{index}.max_memory_clock_mhz"
        ),
    )


def gpu_state(nvml: Any, index: int, absent: dict[str, str]) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    ask = functools.partial(_number, absent=absent)
    mask = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), f"gpus.{index}.throttle_reasons")
    return GpuState(
        index=index,
        sm_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, 1), f"gpus.{index}.sm_clock_mhz"),
        memory_clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, 2), f"gpus.{index}.memory_clock_mhz"),
        power_w=_watts(lambda: nvml.nvmlDeviceGetPowerUsage(handle), f"gpus.{index}.power_w", absent),
        temperature_c=ask(lambda: nvml.nvmlDeviceGetTemperature(handle, 0), f"gpus.{index}.temperature_c"),
        throttle_reasons=None if mask is None else tuple(name for bit, name in THROTTLE_BITS.items() if mask & bit),
        power_violation_ns=ask(lambda: _violation(nvml, handle, 0), f"gpus.{index}.power_violation_ns"),
        thermal_violation_ns=ask(lambda: _violation(nvml, handle, 1), f"gpus.{index}.thermal_violation_ns"),
    )


def _violation(nvml: Any, handle: Any, policy: int) -> int:
    return int(nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime)


def _number(read: Callable[[], Any], name: str, absent: dict[str, str]) -> int | None:
    try:
        return int(read())
    except Exception as error:  # NVML raises one class per reason, and which cards lack what is not documented
        absent[name] = str(error) or type(error).__name__
        return None


def _watts(read: Callable[[], Any], name: str, absent: dict[str, str]) -> float | None:
    milliwatts = _number(read, name, absent)
    return None if milliwatts is None else milliwatts / 1000


def text(read: Callable[[], Any], name: str, absent: dict[str, str]) -> str | None:
    try:
        value = read()
    except Exception as error:
        absent[name] = str(error) or type(error).__name__
        return None
    return value.decode() if isinstance(value, bytes) else str(value)
