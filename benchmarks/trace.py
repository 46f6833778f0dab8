"""How long and how much memory `k3bench trace` takes for large files, beside Holistic Trace Analysis in the same run.

In: sizes, a folder for the files, perhaps a Python that has HTA. Out: a table on standard output.
Out of scope: correctness (the tests), other machines.

    python benchmarks/trace.py --kernels 100000 1000000 --hta /path/to/venv/bin/python
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from trace_files import write_capture_record, write_kineto, write_sqlite

#: HTA's load and the three analyses that come nearest; rounding off, as its default would shorten every kernel.
_HTA = """
import sys, time
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_temporal_breakdown(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


@dataclass(frozen=True)
class Cost:
    """One run of one program, start-up included."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    ok: bool

    def row(self, what: str) -> str:
        state = "" if self.ok else "  FAILED"
        return f"{what:34s} {self.wall_s:8.2f} {self.cpu_s:8.2f} {self.peak_mb:9.0f}{state}"


def cost_of(command: list[str], environment: dict[str, str] | None = None) -> Cost:
    """Run and wait; wall, processor time of the child and its peak memory."""
    started = time.monotonic()
    child = subprocess.Popen(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    peak = usage.ru_maxrss / 1000.0
    return Cost(time.monotonic() - started, usage.ru_utime + usage.ru_stime, peak, child.returncode == 0)


def ours(path: Path, out: Path, *more: str) -> Cost:
    """The whole command: read, attribute, measure, write the record."""
    return cost_of(
        [sys.executable, "-m", "k3bench.trace", str(path), "--families", "--quiet", "--out", str(out), *more]
    )


def theirs(python: str, path: Path) -> Cost:
    """HTA on the same file."""
    return cost_of([python, "-c", _HTA, str(path)], {"HTA_DISABLE_NS_ROUNDING": "1"})


def compare(n: int, folder: Path, hta: str | None) -> None:
    """Both formats at one size."""
    sqlite, kineto, capture = (folder / f"{n}.{end}" for end in ("sqlite", "json", "capture.json"))
    write_sqlite(sqlite, n)
    print(ours(sqlite, folder / "out.json").row(f"ours, sqlite {n:.0e} ({size(sqlite)})"), flush=True)
    if n > _LARGEST_JSON:
        sqlite.unlink()
        return
    write_kineto(kineto, n)
    write_capture_record(capture)
    mine = ours(kineto, folder / "out.json", "--capture", str(capture))
    print(mine.row(f"ours, Kineto {n:.0e} ({size(kineto)})"), flush=True)
    if hta:
        other = theirs(hta, kineto)
        print(other.row(f"HTA, Kineto {n:.0e}"), flush=True)
        ratio = (other.wall_s / mine.wall_s, other.cpu_s / mine.cpu_s, other.peak_mb / mine.peak_mb)
        print(f"{'HTA over ours':34s} {ratio[0]:8.1f} {ratio[1]:8.1f} {ratio[2]:9.1f}", flush=True)
    for path in (sqlite, kineto):
        path.unlink()


_LARGEST_JSON = 2_000_000


def size(path: Path) -> str:
    """Size of a file in MB."""
    return f"{path.stat().st_size / 1e6:.0f} MB"


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--hta", metavar="PYTHON", help="a Python with HolisticTraceAnalysis 0.5")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    args = parser.parse_args()
    print(f"{'':34s} {'wall s':>8s} {'CPU s':>8s} {'peak MB':>9s}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for n in args.kernels:
            compare(n, folder, args.hta)
    print(f"{os.cpu_count()} processors; load average {os.getloadavg()[0]:.1f}; page size {resource.getpagesize()}")


if __name__ == "__main__":
    main()
