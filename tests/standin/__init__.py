"""Stands in for TensorRT-LLM where there is no GPU: programs with its command lines, which serve nano K3.

`install(folder)` makes a `bin/` of trtllm-llmapi-launch, trtllm-serve, trtllm-eval, nsys and python3. They check their
arguments and YAML keys against the documented ones, join all ranks of a Slurm step, take arguments apart as the real
one does. Out of scope: speed, and everything that only a GPU shows.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
#: Programs of the standard library only start fast: there are sixteen of them a server.
LIGHT = {"trtllm-llmapi-launch": "launch.py", "nsys": "nsys.py"}
HEAVY = {"trtllm-serve": "serve.py", "trtllm-eval": "evaluate.py"}


def install(folder: Path) -> Path:
    """Write the programs; returns the folder that goes first on PATH."""
    programs = folder / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    root = f"{HERE.parents[1]}:{HERE.parents[1] / 'workflow'}"
    for name, script in LIGHT.items():
        _write(programs / name, f'exec {sys.executable} -S -E {HERE / script} "$@"')
    for name, script in HEAVY.items():
        _write(programs / name, f'PYTHONPATH={root} exec {sys.executable} {HERE / script} "$@"')
    for name in ("python3", "python"):
        _write(programs / name, f'PYTHONPATH={HERE / "packages"}:{root} exec {sys.executable} "$@"')
    return programs


def _write(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
