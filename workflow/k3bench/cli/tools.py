"""The verbs beside the way of the data: show, ui, import, check-pr, selfcheck, schemas, test."""

from __future__ import annotations

import argparse
from pathlib import Path

from k3bench.cli.verb import Verbs, add_verb


def _add_show(verbs: Verbs) -> None:
    verb = add_verb(verbs, "show", "Print a campaign's verdict and where to look.", "k3bench show results/laptop")
    verb.add_argument("folder", type=Path)
    verb.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> None:
    from k3bench.publish.terminal import summary
    from k3bench.records.comparison import Comparison
    from k3bench.store import CampaignFolder, read_record

    folder = CampaignFolder(args.folder)
    print(summary(read_record(folder.comparison, Comparison), folder))


def _add_import(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "import",
        "Turn result files of other benchmarks, or a pull request's published figures, into a reported record.",
        "k3bench import run.json --show",
        "k3bench import b1.json b2.json b3.json b4.json --as rack1.before",
        "k3bench import a1.json a2.json a3.json a4.json --as rack1.after",
        "k3bench import c1.json c2.json c4.json c8.json --as rack1.before.2    one run at four concurrencies",
        "k3bench import figures.json --name pr-17103 --out results/recorded/pr-17103/reported.json",
    )
    verb.add_argument("files", type=Path, nargs="+", metavar="FILE")
    verb.add_argument("--as", dest="place", metavar="OBSERVATION.ARM[.RUN]", help="run n of both arms is pair n")
    verb.add_argument("--show", action="store_true", help="print metrics and reasons as one JSON object; write nothing")
    verb.add_argument("--entry", type=int, metavar="N", help="of a file with several runs: only this one, from 1")
    verb.add_argument("--level", type=int, metavar="N", help="the concurrency, where the file states none")
    verb.add_argument("--name", help="the record's name; default: imported, or the folder's")
    verb.add_argument("--into", type=Path, metavar="FOLDER", help="default: results/<name>")
    verb.add_argument("--out", type=Path, help="the record file of a pull request's figures")
    verb.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> None:
    from k3bench.imports.command import Request, run

    asked = {name: getattr(args, name) for name in ("place", "show", "entry", "level", "name", "into", "out")}
    for text in run(Request(files=tuple(args.files), **asked)):
        print(text)


def _add_schemas(verbs: Verbs) -> None:
    verb = add_verb(
        verbs, "schemas", "Write the JSON schemas of the recipe and all records.", "k3bench schemas workflow/schemas"
    )
    verb.add_argument("folder", type=Path)
    verb.set_defaults(run=_schemas)


def _schemas(args: argparse.Namespace) -> None:
    from k3bench.schemas import write_schemas

    for path in write_schemas(args.folder):
        print(path)


def _add_test(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "test",
        "Run the project's tests.",
        "k3bench test",
        "k3bench test --all",
        "k3bench test tests/k3bench/compare -x",
    )
    verb.add_argument("--all", action="store_true", help="also the long fault and soak lists")
    verb.add_argument("rest", nargs=argparse.REMAINDER, help="arguments for pytest")
    verb.set_defaults(run=_test)


def _test(args: argparse.Namespace) -> int:
    from k3bench.head import run_tests

    return run_tests(everything=args.all, rest=tuple(args.rest))


def _add_ui(verbs: Verbs) -> None:
    verb = add_verb(verbs, "ui", "The MLflow UI on loopback, with the links to look at.", "k3bench ui --port 5001")
    verb.add_argument("--results", type=Path, default=Path("results"))
    verb.add_argument("--port", type=int, default=5000)
    verb.set_defaults(run=_ui)


def _ui(args: argparse.Namespace) -> int:
    from k3bench.publish.ui import serve

    return serve(args.results, port=args.port)


def _add_selfcheck(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "selfcheck",
        "Hold the statistics against a file of golden cases; exit 1 on a miss.",
        "k3bench selfcheck statistics --cases cases.json",
    )
    verb.add_argument("what", choices=("statistics",))
    verb.add_argument("--cases", type=Path, required=True)
    verb.set_defaults(run=_selfcheck)


def _selfcheck(args: argparse.Namespace) -> int:
    import json

    from k3bench.compare.selfcheck import selfcheck
    from k3bench.errors import RecordError
    from k3bench.store import read_bytes

    try:
        cases = json.loads(read_bytes(args.cases))
    except ValueError as error:
        raise RecordError(f"not JSON: {error}", where=str(args.cases), fix="name a file of golden cases") from None
    rows = selfcheck(cases)
    for row in rows:
        values = f"{row.expected!s:>24} {row.got!s:>24} {row.tolerance!s:>10}"
        print(f"{'ok  ' if row.ok else 'MISS'} {row.id:5} {row.quantity:48} {values}")
    missed = sum(not row.ok for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} quantities within tolerance")
    return 1 if missed else 0


def _add_check_pr(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "check-pr",
        "Hold a pull request's tables against themselves: what holds, what does not follow, what is missing.",
        "k3bench check-pr description.md",
        "k3bench check-pr figures.json",
    )
    verb.add_argument("file", type=Path, help="Markdown or JSON")
    verb.set_defaults(run=_check_pr)


def _check_pr(args: argparse.Namespace) -> None:
    from k3bench.compare.check_pr import check_pr, describe
    from k3bench.store import read_bytes

    print(describe(check_pr(read_bytes(args.file).decode("utf-8", errors="replace"), where=str(args.file))))


VERBS = (_add_show, _add_ui, _add_import, _add_check_pr, _add_selfcheck, _add_schemas, _add_test)
