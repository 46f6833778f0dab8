"""nsys, stood in for: `profile` runs the program and leaves a report, `export` makes a small SQLite trace of it.

The report holds the policy of its rank, the trace is that of a little decode, serial or forked. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

VALUED = ("-e", "-o", "-f", "-t", "-c", "--cuda-graph-trace")
FLAGS = ("--capture-range-end", "--gpu-metrics-devices")


def main(words: list[str]) -> int:
    """One of the three things that are asked of it."""
    if words == ["--version"]:
        print("NVIDIA Nsight Systems version 2025.3.2.0-stand-in")
        return 0
    if words[:1] == ["export"]:
        return export(words[1:])
    assert words[:1] == ["profile"], words
    return profile(words[1:])


def profile(words: list[str]) -> int:
    """Options, then the program; `%q{NAME}` in the report's name is a variable."""
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, glued, value = word.partition("=")
        assert name in (*VALUED, *FLAGS), f"unknown option {word}"
        options[name] = value if glued else words.pop(0)
    report = re.sub(r"%q\{(\w+)\}", lambda m: os.environ[m[1]], options["-o"])
    child = subprocess.Popen(words)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    time.sleep(1.0)
    Path(f"{report}.nsys-rep").write_text(os.environ.get("K3_STANDIN_POLICY", "before"))
    return child.wait()


def export(words: list[str]) -> int:
    """`--type=sqlite --force-overwrite=true --output=X REPORT`"""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.k3bench.trace.nsys_files import FORKED, SERIAL, decode

    output = next(Path(word.partition("=")[2]) for word in words if word.startswith("--output="))
    decode(output, SERIAL if Path(words[-1]).read_text() == "before" else FORKED)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
