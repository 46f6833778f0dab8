"""The three tools that can collect a trace: how each is found, started, and what it leaves.

In: the program to run, the stem of its files. Out: a command, the trace file, versions. Out of scope: running it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sqlite3
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

from k3bench.errors import MeasureError

Tool = Literal["nsys", "kineto", "cupti"]
_OTHER = "or choose another trace.tool: nsys, kineto, cupti"
_EXPORT_LIMIT_S = 900


class Profiler(Protocol):
    """What a tool must answer."""

    def check(self) -> None:
        """Raises `MeasureError` naming what to install."""

    def command(self, program: list[str], stem: Path) -> list[str]:
        """The program, run so that it can be traced."""

    def trace(self, stem: Path) -> Path:
        """The trace it left. Raises `MeasureError` if there is none."""

    def version(self) -> str | None:
        """The tool's version; None where only the program can tell."""

    def cupti_version(self, trace: Path) -> str | None:
        """The CUPTI that stamped the times; None where only the program can tell."""


class Nsys:
    """Nsight Systems: every node of a graph, from the capture on, so that nodes can be told by their ranges."""

    def check(self) -> None:
        """See `Profiler`."""
        if shutil.which("nsys") is None:
            raise MeasureError(
                "there is no `nsys` on PATH",
                fix=f"install Nsight Systems 2024.2 or later (package nsight-systems-cli) and put it on PATH, {_OTHER}",
            )

    def command(self, program: list[str], stem: Path) -> list[str]:
        """See `Profiler`."""
        options = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node"]
        window = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
        return ["nsys", "profile", *options, *window, "--force-overwrite=true", f"--output={stem}", *program]

    def trace(self, stem: Path) -> Path:
        """Exported at once: the version that collected is the only one sure to read it."""
        report, export = Path(f"{stem}.nsys-rep"), Path(f"{stem}.sqlite")
        if not report.is_file():
            raise MeasureError(
                "nsys wrote no report" + (", only a .qdstrm" if Path(f"{stem}.qdstrm").exists() else ""),
                fix=f"its importer needs libdw.so.1 (Debian and Ubuntu: apt-get install libdw1), {_OTHER}",
            )
        command = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_EXPORT_LIMIT_S)
        if done.returncode or not export.is_file():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise MeasureError(f"`nsys export` failed: {said[-1][:200] if said else 'no message'}", where=str(report))
        return export

    def version(self) -> str | None:
        """See `Profiler`."""
        said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
        found = re.search(r"\d{4}\.\d+(?:\.\d+)*", said)
        return found.group() if found else "unknown"

    def cupti_version(self, trace: Path) -> str | None:
        """From the note about the library it loaded."""
        try:
            with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as base:
                texts = [str(text) for (text,) in base.execute("SELECT text FROM DIAGNOSTIC_EVENT")]
        except sqlite3.Error:
            return None
        found = re.search(r"libcupti\.so\.([\d.]*\d)", "\n".join(texts))
        return found.group(1) if found else None


class InProcess:
    """A profiler that the program itself switches on; it leaves JSON."""

    def __init__(self, module: str, package: str) -> None:
        self.module, self.package = module, package

    def check(self) -> None:
        """See `Profiler`."""
        if importlib.util.find_spec(self.module) is None:
            raise MeasureError(
                f"the package {self.package} is not installed",
                fix=f"pip install {self.package} (of the CUDA version that torch was built with), {_OTHER}",
            )

    def command(self, program: list[str], stem: Path) -> list[str]:
        """See `Profiler`."""
        return program

    def trace(self, stem: Path) -> Path:
        """See `Profiler`."""
        found = Path(f"{stem}.json.gz")
        if not found.is_file():
            raise MeasureError("the profiled run left no trace", where=str(found))
        return found

    def version(self) -> str | None:
        """See `Profiler`."""
        return f"{self.package} {metadata.version(self.package)}"

    def cupti_version(self, trace: Path) -> str | None:
        """The program tells."""
        return None


PROFILERS: dict[Tool, Profiler] = {
    "nsys": Nsys(),
    "kineto": InProcess("torch", "torch"),
    "cupti": InProcess("cupti", "cupti-python"),
}
