"""`k3bench trace`: arguments in, record and lines out. In: an argument parser, parsed arguments. Out: an exit code.

Exit codes: 0 fine, 1 a value differs from `--against`, 2 the trace cannot answer (the message names the cure).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from k3bench.errors import K3Error, TraceError
from k3bench.records.residency import Arm, Profiled, Residency, TraceResidency
from k3bench.store import write_record
from k3bench.trace import against, lines
from k3bench.trace.analysis import UNATTRIBUTED_LIMIT_PCT, WARM_UP_STEPS, Asked, analyse
from k3bench.trace.families import Grammar, read_patterns
from k3bench.trace.headroom import headroom
from k3bench.trace.summary import disagreements, summaries


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


def run(args: argparse.Namespace) -> int:
    """Do what the arguments ask; refusals go to standard error."""
    try:
        if args.scrub:
            return _scrub(args)
        if args.against:
            return _against(args)
        return _record(args)
    except K3Error as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _asked(args: argparse.Namespace, arm: Arm | None = None) -> Asked:
    from k3bench.trace.capture import read_capture

    patterns = read_patterns(Path(args.families)) if args.families else ()
    return Asked(
        arm=arm,
        families=args.families is not None,
        grammar=Grammar(patterns),
        capture=read_capture(args.capture) if args.capture else None,
        profiled=Profiled(unprofiled_step_ms=args.unprofiled_step),
        warm_up=args.warm_up,
        accept_lanes=args.accept_lanes,
        unattributed_limit_pct=args.unattributed_limit,
    )


def _files(args: argparse.Namespace) -> list[tuple[Path, Asked]]:
    """Every trace with what is known about it."""
    plain: list[tuple[Path, Arm | None]] = [(p, None) for p in args.files]
    plain += [(p, "before") for p in args.before] + [(p, "after") for p in args.after]
    found = [(path, _asked(args, arm)) for path, arm in plain]
    if args.collected:
        from k3bench.trace.collected import collected_traces

        found += collected_traces(args.collected, _asked(args))
    if not found:
        raise TraceError("no trace given", fix="name a FILE, or --before and --after files, or --collected DIR")
    return found


def _record(args: argparse.Namespace) -> int:
    traces: list[TraceResidency] = []
    for number, (path, asked) in enumerate(_files(args)):
        analysed = analyse(path, asked)
        traces.append(analysed.result)
        if args.perfetto and number == 0:
            from k3bench.trace.perfetto import write_step

            write_step(args.perfetto, analysed, asked.warm_up)
    record = residency(tuple(traces), args.warm_up, args.claimed_gain)
    if args.out:
        write_record(args.out, record)
    if not args.quiet:
        print("\n".join(lines.of_record(record)))
    return 0


def residency(traces: tuple[TraceResidency, ...], warm_up: int, claimed_gain_ms: float | None = None) -> Residency:
    """The record of some traces, each measured alone."""
    return Residency(
        warm_up_steps=warm_up,
        traces=traces,
        summaries=summaries(traces),
        headroom=headroom(traces, claimed_gain_ms),
        warnings=disagreements(traces),
    )


def _against(args: argparse.Namespace) -> int:
    if len(args.files) != 1:
        raise TraceError("--against takes exactly one FILE", fix="k3bench trace FILE --against FILE.oracle.json")
    oracle = against.read_oracle(args.against)
    if against.is_family_oracle(oracle):
        args.warm_up = 0  # such an oracle holds every complete step
    rows = against.compare(analyse(args.files[0], _asked(args)).result, oracle, str(args.against))
    print("\n".join(lines.of_comparison(rows)))
    return 0 if all(row.agrees for row in rows) else 1


def _scrub(args: argparse.Namespace) -> int:
    from k3bench.trace.scrub import scrub

    if len(args.files) != 1:
        raise TraceError("--scrub takes exactly one FILE", fix="k3bench trace FILE --scrub COPY")
    for line in scrub(args.files[0], args.scrub):
        print(line)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run as a program of its own."""
    parser = argparse.ArgumentParser(prog="k3bench trace", description="Two-stream residency from GPU traces.")
    add_arguments(parser)
    return run(parser.parse_args(argv))
