"""`k3bench trace`: arguments in, record and lines out. In: an argument parser, parsed arguments. Out: an exit code.

Exit codes: 0 fine, 1 a value differs from `--against`, 2 the trace cannot answer (the message names the cure).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from k3bench.errors import K3Error, TraceError
from k3bench.records.reported import Reported
from k3bench.records.residency import Arm, Profiled, Residency, TraceResidency
from k3bench.store import read_record, write_record
from k3bench.trace import against, lines
from k3bench.trace.agree import WITHIN_PCT_OF_BUSY, agreement
from k3bench.trace.analysis import Asked, analyse
from k3bench.trace.arguments import add_arguments
from k3bench.trace.families import Grammar, read_patterns
from k3bench.trace.headroom import headroom, published
from k3bench.trace.summary import disagreements, summaries


def run(args: argparse.Namespace) -> int:
    """Do what the arguments ask; refusals go to standard error."""
    try:
        if args.published:
            print(published(read_record(args.published, Reported), str(args.published)))
            return 0
        if args.agree:
            return _agree(args)
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


def _agree(args: argparse.Namespace) -> int:
    first, second = (read_record(path, Residency) for path in args.agree)
    rows = agreement(first, second)
    print("\n".join(lines.of_agreement(rows)))
    return 0 if all(abs(row.difference_pct_of_busy) <= WITHIN_PCT_OF_BUSY for row in rows) else 1


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
