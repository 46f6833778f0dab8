"""Nsight reports (.nsys-rep): exported with the `nsys` on PATH when its version fits, else the exact command to run.

In: a report. Out: `Trace` of its export. Out of scope: importing .qdstrm streams; finding an `nsys` anywhere else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from k3bench.errors import TraceError
from k3bench.trace.ops import Trace
from k3bench.trace.readers import files, nsys

_EXPORT_TIMEOUT_S = 900
_VERSION = re.compile(r"(\d{4}\.\d+(?:\.\d+)*)")


def read(path: Path) -> Trace:
    """Export into a temporary folder and read that; nothing is left beside the report."""
    tool = shutil.which("nsys")
    if tool is None:
        raise TraceError(
            "an .nsys-rep must be exported first, and no `nsys` is on PATH", where=str(path), fix=_by_hand(path)
        )
    with tempfile.TemporaryDirectory(prefix="k3bench-nsys-") as folder:
        export = Path(folder) / "export.sqlite"
        _export(tool, path, export)
        trace = nsys.read(export)
    sha256, size = files.digest_of_file(path)
    return replace(trace, source=replace(trace.source, path=path, sha256=sha256, size_bytes=size))


def _export(tool: str, path: Path, export: Path) -> None:
    command = [tool, "export", "--type", "sqlite", "-f", "true", "-o", str(export), str(path.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_EXPORT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TraceError(f"`nsys export` did not finish: {error}", where=str(path), fix=_by_hand(path)) from None
    if done.returncode != 0 or not export.is_file():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise TraceError(
            f"`nsys export` of version {version(tool)} failed: {said[-1][:200] if said else 'no message'}",
            where=str(path),
            fix=f"the report was probably collected with another version; {_by_hand(path)}",
        )


def version(tool: str) -> str:
    """What `nsys --version` says, or "unknown"."""
    try:
        said = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = _VERSION.search(said)
    return found.group(1) if found else "unknown"


def _by_hand(path: Path) -> str:
    output = path.name.removesuffix(".nsys-rep") + ".sqlite"
    return f"where it was collected, run: nsys export --type sqlite -f true -o {output} {path.name}"
