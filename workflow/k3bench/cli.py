"""The command line: one verb per stage, and `run`, which does them all. Each verb reads files and writes files.

Nothing here computes: every verb is a few lines around the room of its name, imported when it is called.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from k3bench.errors import K3Error, RecordError

DESCRIPTION = "Is this change to Kimi K3 decode really faster, by how much, where, and why?"
EXAMPLES = """examples:
  k3bench run                                  the laptop campaign, from recipe to report
  k3bench run recipes/simulated.yaml           a campaign whose answer is known
  k3bench plan recipes/laptop.yaml             what would run where, in which order, for how long
  k3bench show results/laptop                  the verdict of a finished campaign
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code: 0 done, 1 an answer that says no, 2 a refusal."""
    parser = _parser()
    args = parser.parse_args(argv)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="k3bench", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(metavar="verb", required=True)
    for add in (_add_run, _add_test, _add_plan, _add_build, _add_measure, _add_compare, _add_publish, _add_track):
        add(verbs)
    for add in (_add_show, _add_import, _add_schemas):
        add(verbs)
    return parser


Verbs = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _verb(verbs: Verbs, name: str, help_: str, *examples: str) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name,
        help=help_,
        description=help_,
        epilog="examples:\n" + "\n".join(f"  {e}" for e in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_run(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "run",
        "Measure a recipe from plan to report; started again, it goes on where it stopped.",
        "k3bench run",
        "k3bench run --profile slurm recipes/two-racks.yaml",
        "k3bench run recipes/laptop.yaml --dry-run",
    )
    verb.add_argument("recipe", nargs="?", default="recipes/laptop.yaml", type=Path, help="default: %(default)s")
    verb.add_argument("--profile", default="laptop", help="a folder of workflow/profiles/: laptop, gpu or slurm")
    verb.add_argument("-n", "--dry-run", action="store_true", help="only say what would be done")
    verb.add_argument("rest", nargs="*", metavar="-- ...", help="further arguments for snakemake, after --")
    verb.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from k3bench.head import run_campaign

    return run_campaign(args.recipe, profile=args.profile, dry_run=args.dry_run, rest=tuple(args.rest))


def _add_test(verbs: Verbs) -> None:
    verb = _verb(
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


def _add_plan(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "plan",
        "Resolve a recipe into a plan: what runs where, in which drawn order, for how long.",
        "k3bench plan recipes/laptop.yaml",
        "k3bench plan recipes/laptop.yaml --out results/laptop/plan.json",
    )
    verb.add_argument("recipe", type=Path)
    verb.add_argument("--out", type=Path, help="also write the plan record here")
    verb.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> None:
    from k3bench.plan import describe, make_plan
    from k3bench.recipe import load_recipe
    from k3bench.store import write_record

    plan = make_plan(load_recipe(args.recipe))
    print(describe(plan))
    if args.out:
        write_record(args.out, plan)
        print(f"written: {args.out}")


def _add_build(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "build",
        "Make one arm of a build pair runnable and record what it is.",
        "k3bench build results/laptop/plan.json p1/before --out results/laptop/builds/p1/before.json",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("arm", metavar="PAIR/ARM")
    verb.add_argument("--out", type=Path, required=True)
    verb.set_defaults(run=_build)


def _build(args: argparse.Namespace) -> None:
    from k3bench.build import build_arm
    from k3bench.records.plan import Plan
    from k3bench.store import read_record, write_record

    pair, arm = _two_names(args.arm, "PAIR/ARM, e.g. p1/before")
    if arm not in ("before", "after"):
        raise RecordError(f"arm {arm!r} is neither before nor after", where=args.arm)
    build = build_arm(read_record(args.plan, Plan), pair, arm)  # type: ignore[arg-type]
    write_record(args.out, build)
    print(f"{pair}/{arm}: {build.engine} {build.preset}, policy {build.policy}, identity {build.identity[:12]}")


def _add_measure(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "measure",
        "Measure one allocation exactly once: submit it, adopt it if it runs already, or take what is finished.",
        "k3bench measure results/laptop/plan.json obs1/alloc1 --out results/laptop/observations/obs1/alloc1.json",
        "k3bench measure results/laptop/plan.json --here     every allocation, in this very process",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("allocation", nargs="?", metavar="OBS/ALLOCATION", help="default with --here: all of them")
    verb.add_argument("--here", action="store_true", help="in this very process; needs torch, numpy, pydantic, PyYAML")
    verb.add_argument("--executor", choices=("here", "debug", "local", "slurm"), default="local")
    verb.add_argument("--out", type=Path, help="default: the allocation's file under the plan's folder")
    verb.set_defaults(run=_measure)


def _measure(args: argparse.Namespace) -> int:
    from k3bench.measure.command import measure

    chosen = _two_names(args.allocation, "OBS/ALLOCATION, e.g. obs1/alloc1") if args.allocation else None
    if args.here:
        _build_missing(args.plan)
    return measure(args.plan, chosen, executor="here" if args.here else args.executor, out=args.out)


def _build_missing(plan_path: Path) -> None:
    """On a machine without Snakemake the builds are made on the way."""
    from k3bench.build import build_arm
    from k3bench.records.plan import Plan
    from k3bench.store import CampaignFolder, read_record, write_record

    plan, folder = read_record(plan_path, Plan), CampaignFolder(plan_path.parent)
    for pair in sorted({o.pair for o in plan.observations}):
        for arm in ("before", "after"):
            if not folder.build(pair, arm).exists():
                write_record(folder.build(pair, arm), build_arm(plan, pair, arm))  # type: ignore[arg-type]


def _add_compare(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "compare",
        "Compare all planned observations of a campaign and give the verdict, as a record.",
        "k3bench compare results/laptop --out results/laptop/comparison.json",
        "k3bench compare results/recorded/pr-17103 --out results/pr-17103/comparison.json",
    )
    verb.add_argument("folder", type=Path)
    verb.add_argument("--out", type=Path, required=True)
    verb.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from k3bench.compare.campaign import campaign, noise_record
    from k3bench.evidence import Evidence, read_evidence, read_noise
    from k3bench.store import CampaignFolder, write_record

    found = read_evidence(args.folder)
    if isinstance(found, Evidence):
        comparison = campaign(
            found.plan, found.points, **found.others(), noise=read_noise(Path("results"), args.folder)
        )
        noise = noise_record(found.plan, found.points, blocks=found.blocks)
        if noise is not None:
            write_record(CampaignFolder(args.out.parent).noise, noise)
    else:
        from k3bench.compare.published import published

        comparison = published(found)
    write_record(args.out, comparison)
    print(f"{comparison.campaign}: {comparison.headline.word}")


def _add_publish(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "publish",
        "Write the pull-request section, the page and the figures of a comparison.",
        "k3bench publish results/laptop/comparison.json",
    )
    verb.add_argument("comparison", type=Path)
    verb.add_argument("--out", type=Path, help="default: report/ beside the comparison")
    verb.set_defaults(run=_publish)


def _publish(args: argparse.Namespace) -> None:
    from k3bench.publish.stage import publish

    out = args.out or args.comparison.parent / "report"
    for name in sorted(publish(args.comparison, out=out).files):
        print(out / name)


def _add_track(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "track",
        "Bring MLflow in line with the records; doing it twice changes nothing.",
        "k3bench track results/laptop/comparison.json --records results/laptop --out results/laptop/receipt.json",
    )
    verb.add_argument("comparison", type=Path)
    verb.add_argument("--records", type=Path, required=True)
    verb.add_argument("--out", type=Path, required=True)
    verb.set_defaults(run=_track)


def _track(args: argparse.Namespace) -> None:
    raise NotImplementedError


def _add_show(verbs: Verbs) -> None:
    verb = _verb(verbs, "show", "Print a finished campaign's verdict and where to look.", "k3bench show results/laptop")
    verb.add_argument("folder", type=Path)
    verb.set_defaults(run=_show)


def _show(args: argparse.Namespace) -> None:
    from k3bench.publish.terminal import summary
    from k3bench.records.comparison import Comparison
    from k3bench.store import CampaignFolder, read_record

    folder = CampaignFolder(args.folder)
    print(summary(read_record(folder.comparison, Comparison), folder))


def _add_import(verbs: Verbs) -> None:
    verb = _verb(
        verbs,
        "import",
        "Turn a pull request's published figures (JSON) into a reported record.",
        "k3bench import figures.json --name pr-17103 --out results/recorded/pr-17103/reported.json",
    )
    verb.add_argument("file", type=Path)
    verb.add_argument("--name", required=True)
    verb.add_argument("--out", type=Path, required=True)
    verb.set_defaults(run=_import)


def _import(args: argparse.Namespace) -> None:
    from k3bench.imports.pr_figures import read_pr_figures
    from k3bench.store import write_record

    reported = read_pr_figures(args.file, name=args.name)
    write_record(args.out, reported)
    print(f"{args.out}: {len(reported.deltas)} published rows of {len(reported.observations)} observations")


def _add_schemas(verbs: Verbs) -> None:
    verb = _verb(
        verbs, "schemas", "Write the JSON schemas of the recipe and all records.", "k3bench schemas workflow/schemas"
    )
    verb.add_argument("folder", type=Path)
    verb.set_defaults(run=_schemas)


def _schemas(args: argparse.Namespace) -> None:
    from k3bench.schemas import write_schemas

    for path in write_schemas(args.folder):
        print(path)


def _two_names(text: str, shape: str) -> tuple[str, str]:
    left, slash, right = text.partition("/")
    if not (left and slash and right) or "/" in right:
        raise RecordError(f"{text!r} is not {shape}", fix=f"write {shape}")
    return left, right
