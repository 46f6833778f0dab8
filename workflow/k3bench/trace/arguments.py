"""The arguments of `k3bench trace`: an argument parser in, the same parser with them out.

Apart from the room, so that a machine without msgspec or numpy can still be asked to build and measure.
"""

from __future__ import annotations

import argparse
from pathlib import Path

#: Of the busy time of the kept steps: more without a family means the attribution failed, not that little is "other".
UNATTRIBUTED_LIMIT_PCT = 1.0
WARM_UP_STEPS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `k3bench trace`."""
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="nsys .sqlite/.nsys-rep, Kineto or CUPTI JSON"
    )
    parser.add_argument("--before", nargs="+", type=Path, default=[], metavar="FILE", help="traces of the before arm")
    parser.add_argument("--after", nargs="+", type=Path, default=[], metavar="FILE", help="traces of the after arm")
    parser.add_argument(
        "--collected", type=Path, metavar="DIR", help="traces of an observation, as `k3bench measure` left them"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the residency record")
    parser.add_argument(
        "--families",
        nargs="?",
        const="",
        metavar="PATTERNS",
        help="fail if families cannot be told; PATTERNS is a recipe or a YAML table that maps ranges or kernels",
    )
    parser.add_argument(
        "--capture", type=Path, metavar="FILE", help="the engine's capture record, or a Kineto capture trace"
    )
    parser.add_argument(
        "--against", type=Path, metavar="ORACLE", help="print every value beside the oracle's; exit 1 on a difference"
    )
    parser.add_argument(
        "--warm-up", type=_count, default=WARM_UP_STEPS, metavar="N", help="steps dropped per graph (default 1)"
    )
    parser.add_argument("--unattributed-limit", type=float, default=UNATTRIBUTED_LIMIT_PCT, metavar="PCT")
    parser.add_argument(
        "--claimed-gain", type=float, metavar="MS", help="a claimed gain per step, held against the ideal gain"
    )
    parser.add_argument(
        "--unprofiled-step", type=float, metavar="MS", help="step time of the same run without a profiler"
    )
    parser.add_argument(
        "--agree", nargs=2, type=Path, metavar="RECORD", help="hold two records of one program against each other"
    )
    parser.add_argument(
        "--published", type=Path, metavar="RECORD", help="what published residencies alone say of the headroom"
    )
    parser.add_argument("--accept-lanes", action="store_true", help="take logical lanes for streams")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write one attributed step for the Perfetto UI")
    parser.add_argument(
        "--scrub", type=Path, metavar="FILE", help="write a copy without hosts, users, paths, environment"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but refusals")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
