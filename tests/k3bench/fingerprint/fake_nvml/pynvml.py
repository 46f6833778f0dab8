# ruff: noqa: N802
"""Stands in for nvidia-ml-py on machines without a GPU: two GPUs, and one question the second cannot answer."""

import os
from types import SimpleNamespace


class NVMLError(Exception):
    """As the real one."""


def nvmlInit():
    if os.environ.get("FAKE_NVML") == "no driver":
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return f"GPU-{handle}{handle}{handle}{handle}-aaaa"


def nvmlDeviceGetName(handle):
    return b"Fake GPU"


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=141 * 2**30)


def nvmlDeviceGetEnforcedPowerLimit(handle):
    return 700_000


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return 1980 if kind == 1 else 3201


def nvmlDeviceGetClockInfo(handle, kind):
    return 1755 if kind == 1 else 3201


def nvmlDeviceGetPowerUsage(handle):
    if handle == 1:
        raise NVMLError("Not Supported")
    return 312_500


def nvmlDeviceGetTemperature(handle, sensor):
    return 41


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return 0x4 | 0x40 if handle == 0 else 0


def nvmlDeviceGetViolationStatus(handle, policy):
    return SimpleNamespace(violationTime=policy)


def nvmlSystemGetDriverVersion():
    return "580.65.06"


def nvmlSystemGetCudaDriverVersion_v2():
    return 13000
