"""The command line: one verb per stage, and `run`, which does them all. Each verb reads files and writes files.

Nothing here computes: every verb is a few lines around the room of its name, imported when it is called.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from k3bench.cli import jobs, stages, tools
from k3bench.errors import K3Error

DESCRIPTION = "Is this change to Kimi K3 decode really faster, by how much, where, and why?"
EXAMPLES = """examples:
  k3bench run                                  the laptop campaign, from recipe to report
  k3bench run recipes/simulated.yaml           a campaign whose answer is known
  k3bench plan recipes/laptop.yaml             what would run where, in which order, for how long
  k3bench show results/laptop                  the verdict of a finished campaign
  k3bench check-pr FILE                        what follows from a pull request's tables, and what does not
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 done, 1 an answer that says no, 2 a refusal."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal must not turn a minus sign into a crash
    args = parse(list(sys.argv[1:] if argv is None else argv))
    try:
        return int(args.run(args) or 0)
    except K3Error as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("stopped; what is measured is kept, the same command goes on from here", file=sys.stderr)
        return 130


def parse(words: list[str]) -> argparse.Namespace:
    """The verb and its arguments. `run ... -- more` keeps what follows `--` for Snakemake: argparse mixes it up."""
    cut = words.index("--") if words[:1] == ["run"] and "--" in words else len(words)
    args = parser().parse_args(words[:cut])
    if words[cut + 1 :]:
        args.rest = tuple(words[cut + 1 :])
    return args


def parser() -> argparse.ArgumentParser:
    """All verbs, in the order of the way of the data, then those for jobs, then the tools."""
    found = argparse.ArgumentParser(
        prog="k3bench", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = found.add_subparsers(metavar="verb", required=True)
    for add in (*stages.VERBS, *jobs.VERBS, *tools.VERBS):
        add(verbs)
    return found
