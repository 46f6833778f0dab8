"""What the operating system and git say about the node and the code.

In: nothing but a work tree's path. Out: host, repository, and what moves by itself. Out of scope: GPUs, judging.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

from k3bench.records.fingerprint import GpuState, Host, Moving, Repository

#: Generated folders: what a campaign writes must not look like a change of its code.
NOT_CODE = ("results", ".k3", ".snakemake")


@functools.cache
def host() -> Host:
    memory_kb = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    cpus = os.cpu_count() or 0
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus
    governors = {_read(str(path)).strip() for path in _cpufreq("scaling_governor")} - {""}
    return Host(
        name=os.environ.get("SLURMD_NODENAME") or platform.node(),
        system=platform.freedesktop_os_release().get("PRETTY_NAME", "") if _has_os_release() else platform.system(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu_model=_cpu_model(),
        cpu_count=cpus,
        cpus_usable=usable,
        governors=tuple(sorted(governors)) or None,
        memory_mb=int(memory_kb[1]) // 1024 if memory_kb else None,
        boot=_read("/proc/sys/kernel/random/boot_id").strip(),
    )


def _has_os_release() -> bool:
    return any(Path(path).exists() for path in ("/etc/os-release", "/usr/lib/os-release"))


def _cpu_model() -> str | None:
    """The name x86 gives; Arm gives implementer and part instead."""
    info = _read("/proc/cpuinfo")
    if (named := re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)) is not None:
        return named[1].strip()
    parts = [re.search(rf"^CPU {word}\s*:\s*(\S+)$", info, re.MULTILINE) for word in ("implementer", "part")]
    return " ".join(f"{p[0].split(':')[0].strip()} {p[1]}" for p in parts if p) or platform.processor() or None


def moving(gpus: tuple[GpuState, ...]) -> Moving:
    clocks_khz = [float(text) for path in _cpufreq("scaling_cur_freq") if (text := _read(str(path)).strip())]
    clocks_mhz = [khz / 1000 for khz in clocks_khz]
    clocks_mhz = clocks_mhz or [float(v) for v in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", _read("/proc/cpuinfo"), re.M)]
    available = re.search(r"MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"))
    return Moving(
        gpus=gpus,
        cpu_mhz_low=min(clocks_mhz, default=None),
        cpu_mhz_high=max(clocks_mhz, default=None),
        load_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory_available_mb=int(available[1]) // 1024 if available else None,
    )


def _cpufreq(name: str) -> list[Path]:
    return sorted(Path("/sys/devices/system/cpu").glob(f"cpu[0-9]*/cpufreq/{name}"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def repository(repo: Path | None, absent: dict[str, str]) -> Repository | None:
    found = work_tree(str(repo.absolute())) if repo is not None else "no work tree was named"
    if isinstance(found, str):
        absent["repository"] = found
        return None
    return found


@functools.cache
def work_tree(repo: str) -> Repository | str:
    """Commit and what differs from it, generated folders apart; cached, because loaded code does not change."""
    commit = _git(repo, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return "not a git work tree with a commit, or no git"
    code = ["--", ".", *(f":(exclude,top){folder}" for folder in NOT_CODE)]
    changed = _git(repo, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD", *code) or b""
    names = _git(repo, "ls-files", "-z", "--others", "--exclude-standard", *code) or b""
    digest = hashlib.sha256(changed)
    for name in sorted(filter(None, names.split(b"\0"))):
        digest.update(b"\0" + name + b"\0" + _file_digest(Path(repo) / os.fsdecode(name)))
    dirty = bool(changed or names)
    return Repository(commit=commit.decode().strip(), dirty=dirty, dirty_digest=digest.hexdigest() if dirty else None)


def _file_digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b"unreadable"


def _git(repo: str, *arguments: str) -> bytes | None:
    """Read-only, and without running anything the repository's own configuration names."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-C", repo, *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=30, env=environment).stdout
    except (OSError, subprocess.SubprocessError):
        return None
