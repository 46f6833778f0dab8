"""The verbs of the stages: run, plan, build, measure, verify, profile, trace, compare, publish, track."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from k3bench.cli.verb import Verbs, add_verb
from k3bench.errors import RecordError

if TYPE_CHECKING:
    from k3bench.records.comparison import Comparison
    from k3bench.records.plan import Plan
    from k3bench.records.recipe import Recipe
    from k3bench.records.residency import Collected


def _add_run(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "run",
        "Measure a recipe from plan to report; started again, it goes on where it stopped.",
        "k3bench run",
        "k3bench run --profile slurm recipes/two-racks.yaml",
        "k3bench run recipes/laptop.yaml --dry-run",
        "k3bench run recipes/laptop.yaml -- --until measure      what follows -- goes to snakemake",
    )
    verb.add_argument("recipe", nargs="?", default="recipes/laptop.yaml", type=Path, help="default: %(default)s")
    verb.add_argument("--profile", default="laptop", help="a folder of workflow/profiles/: laptop, gpu or slurm")
    verb.add_argument("-n", "--dry-run", action="store_true", help="only say what would be done")
    verb.set_defaults(run=_run, rest=())


def _run(args: argparse.Namespace) -> int:
    from k3bench.head import run_campaign

    return run_campaign(args.recipe, profile=args.profile, dry_run=args.dry_run, rest=tuple(args.rest))


def _add_plan(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "plan",
        "Resolve a recipe into a plan: what runs where, in which drawn order, for how long.",
        "k3bench plan recipes/laptop.yaml",
        "k3bench plan recipes/laptop.yaml --out results/laptop/plan.json",
        "k3bench plan recipes/laptop.yaml --detect 2% --tpot-ms 13.2     what finding 2 % takes, and the cheapest way",
    )
    verb.add_argument("recipe", type=Path)
    verb.add_argument("--out", type=Path, help="also write the plan record here")
    verb.add_argument("--detect", type=_percent, metavar="EFFECT", help="blocks and cost to find an effect, e.g. 2%%")
    verb.add_argument("--tpot-ms", type=float, help="how long a token takes, if results/<recipe> has no comparison")
    verb.add_argument("--start-s", type=float, help="seconds from submission to the first request of a start")
    verb.set_defaults(run=_plan)


def _percent(text: str) -> float:
    """`2%` or `2`."""
    return float(text.strip().removesuffix("%"))


def _plan(args: argparse.Namespace) -> None:
    from k3bench.plan import describe, make_plan
    from k3bench.recipe import load_recipe
    from k3bench.store import write_record

    plan = make_plan(load_recipe(args.recipe))
    # refused before anything is printed
    detection = None if args.detect is None else _detection(args, plan.recipe)
    print(describe(plan))
    if detection is not None:
        print(f"\n{detection}")
    if args.out:
        write_record(args.out, plan)
        print(f"written: {args.out}")


def _detection(args: argparse.Namespace, recipe: Recipe) -> str:
    """From what was measured under this recipe's name where there is such, else from what the arguments say."""
    from k3bench.compare.detect import describe, detect, run_length
    from k3bench.records.comparison import Comparison
    from k3bench.records.noise import Noise
    from k3bench.store import CampaignFolder, read_record

    folder = CampaignFolder(Path("results") / recipe.name)
    noise = read_record(folder.noise, Noise) if folder.noise.exists() else None
    tpot = args.tpot_ms
    if tpot is None and folder.comparison.exists():
        levels = read_record(folder.comparison, Comparison).levels
        tpot = {level.concurrency: level.before_median for level in levels if level.before_median} or None
    return describe(detect(recipe, args.detect, run_length(recipe, tpot_ms=tpot, start_s=args.start_s), noise=noise))


def _add_build(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "build",
        "Make both arms of a build pair runnable, refuse what nobody declared, and record what they are.",
        "k3bench build results/laptop/plan.json p1",
        "k3bench build results/laptop/plan.json p1/before --out results/laptop/builds/p1/before.json",
        "k3bench build recipes/gb300-tep16-pr17103.yaml --dry-run     every job and command, nothing done",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("pair", metavar="PAIR[/ARM]", nargs="?", help="left out with --dry-run: all of them")
    verb.add_argument(
        "--executor", choices=("here", "debug", "local", "slurm"), default="local", help="of build_where: job"
    )
    verb.add_argument("--out", type=Path, help="of one arm; default: builds/PAIR/ARM.json beside the plan")
    verb.add_argument("-n", "--dry-run", action="store_true", help="print every job and command; takes a recipe too")
    verb.set_defaults(run=_build)


def _build(args: argparse.Namespace) -> None:
    from k3bench.build.command import build, in_words
    from k3bench.records.measurement import ARMS
    from k3bench.store import write_record

    if args.dry_run:
        from k3bench.build.dry_run import dry_run

        print("\n".join(dry_run(*_plan_and_folder(args.plan), args.pair)))
        return
    if args.pair is None:
        raise RecordError("which build pair?", where=str(args.plan), fix="write PAIR or PAIR/ARM, e.g. p1")
    pair, arm = args.pair, None
    if "/" in pair or args.out:
        pair, arm = _two_names(args.pair, "PAIR/ARM, e.g. p1/before")
        if arm not in ARMS:
            raise RecordError(f"arm {arm!r} is neither before nor after", where=args.pair)
    chosen = [a for a in ARMS if arm in (None, a)]
    made = build(args.plan, pair, executor=args.executor, arms=[] if args.out else chosen)
    if not made:
        print(f"{pair}: NOT made; its observations will be missing")
    elif args.out:
        write_record(args.out, made[chosen[0]])
    print("\n".join(in_words(made[a]) for a in chosen if a in made))


def _add_measure(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "measure",
        "Measure one allocation exactly once: submit it, adopt it if it runs already, or take what is finished.",
        "k3bench measure results/laptop/plan.json obs1/alloc1 --out results/laptop/observations/obs1/alloc1.json",
        "k3bench measure results/laptop/plan.json --here     every allocation in this process, then profiled runs",
        "k3bench measure recipes/gb300-tep16-pr17103.yaml --dry-run     every job, file and command, without a cluster",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("allocation", nargs="?", metavar="OBS/ALLOCATION", help="default with --here: all of them")
    verb.add_argument("--here", action="store_true", help="in this very process; needs torch, numpy, pydantic, PyYAML")
    verb.add_argument("--executor", choices=("here", "debug", "local", "slurm"), default="local")
    verb.add_argument("--out", type=Path, help="default: the allocation's file under the plan's folder")
    verb.add_argument(
        "-n", "--dry-run", action="store_true", help="print every job, file and command; takes a recipe too"
    )
    verb.set_defaults(run=_measure)


def _measure(args: argparse.Namespace) -> int:
    from k3bench.measure.command import measure

    chosen = _two_names(args.allocation, "OBS/ALLOCATION, e.g. obs1/alloc1") if args.allocation else None
    if args.dry_run:
        from k3bench.measure.dry_run import dry_run

        print("\n".join(dry_run(*_plan_and_folder(args.plan), chosen)))
        return 0
    if args.here:
        _build_missing(args.plan)
        if not chosen and (apart := _measure_apart(args.plan)) is not None:
            return apart
    code = measure(args.plan, chosen, executor="here" if args.here else args.executor, out=args.out)
    if args.here and not chosen:
        _profile_planned(args.plan)
    return code


def _plan_and_folder(path: Path) -> tuple[Plan, Path]:
    """Of a plan, or of a recipe that is not planned yet."""
    from k3bench.plan import make_plan
    from k3bench.recipe import load_recipe
    from k3bench.records.plan import Plan
    from k3bench.store import read_record

    if path.suffix not in (".yaml", ".yml"):
        return read_record(path, Plan), path.parent
    plan = make_plan(load_recipe(path))
    return plan, Path("results") / plan.recipe.name


def _profile_planned(plan_path: Path) -> None:
    """On a machine without Snakemake the profiled runs follow the timed ones, each in a process of its own."""
    from k3bench.measure.profile import profile
    from k3bench.records.plan import Plan
    from k3bench.store import CampaignFolder, read_record

    folder = CampaignFolder(plan_path.parent)
    for run in read_record(plan_path, Plan).profiles:
        out = folder.traces(run.observation)
        print(_in_words(profile(plan_path, run.observation, run.arm, out=out, executor="here"), out))


def _build_missing(plan_path: Path) -> None:
    """On a machine without Snakemake the builds are made on the way."""
    from k3bench.build.command import build
    from k3bench.records.measurement import ARMS
    from k3bench.records.plan import Plan
    from k3bench.store import CampaignFolder, read_record

    plan, folder = read_record(plan_path, Plan), CampaignFolder(plan_path.parent)
    for pair in sorted({o.pair for o in plan.observations}):
        if not all(folder.build(pair, arm).exists() for arm in ARMS):
            build(plan_path, pair, executor="here")


def _measure_apart(plan_path: Path) -> int | None:
    """A process runs one build only: where builds have places of their own, each allocation gets a process."""
    import subprocess
    import sys

    from k3bench.records.plan import Build, Plan
    from k3bench.store import CampaignFolder, read_record

    plan, folder = read_record(plan_path, Plan), CampaignFolder(plan_path.parent)
    if all(read_record(folder.build(o.pair, "before"), Build).place is None for o in plan.observations):
        return None
    names = [f"{o.id}/{a.id}" for o in plan.observations for a in o.allocations]
    words = [sys.executable, "-m", "k3bench", "measure", str(plan_path)]
    codes = [subprocess.run([*words, name, "--here"], check=False).returncode for name in names]
    _profile_planned(plan_path)
    return max(codes)


def _add_compare(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "compare",
        "Compare all planned observations of a campaign and give the verdict, as a record.",
        "k3bench compare results/laptop --out results/laptop/comparison.json",
        "k3bench compare results/recorded/pr-17103 --out results/pr-17103/comparison.json",
    )
    verb.add_argument("folder", type=Path)
    verb.add_argument("--out", type=Path, help="default: results/<campaign>/comparison.json")
    verb.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from k3bench.compare.campaign import campaign, noise_record
    from k3bench.compare.reported import reported_comparison
    from k3bench.evidence import Evidence, read_evidence, read_noise
    from k3bench.store import CampaignFolder, write_record

    found = read_evidence(args.folder)
    recorded = args.folder.absolute().parent.name == "recorded"
    out = args.out or (args.folder.parent.parent / args.folder.name if recorded else args.folder) / "comparison.json"
    if isinstance(found, Evidence):
        comparison = campaign(
            found.plan, found.points, **found.others(), noise=read_noise(Path("results"), args.folder)
        )
        noise = noise_record(found.plan, found.points, blocks=found.blocks, fingerprints=found.fingerprints)
        if noise is not None:
            write_record(CampaignFolder(out.parent).noise, noise)
    else:
        comparison = reported_comparison(found)
    write_record(out, comparison)
    print(f"{comparison.campaign}: {comparison.headline.word}; {out}")
    for doubt in _doubts(comparison):
        print(f"  {doubt}")


def _doubts(comparison: Comparison) -> list[str]:
    """What a reader of the word alone would take for granted."""
    rows = comparison.equality or ()
    failed, flags = sum(row.status == "fail" for row in rows), comparison.headline.flags
    told = {
        f"equality: {failed} of {len(rows)} probes failed": failed > 0,
        "equality: not shown on the builds that were timed": any(row.other_builds for row in rows),
        "environment: not what was declared or timed; see Outstanding": "environment_differs" in flags,
        "environment: not verified": "environment_unverified" in flags,
    }
    return [line for line, on in told.items() if on]


def _add_publish(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "publish",
        "Write the pull-request section, the page and the figures of a comparison.",
        "k3bench publish results/laptop/comparison.json",
        "k3bench publish results/laptop/comparison.json --into ../pr-description.md",
        "k3bench publish results/laptop/comparison.json --records results/laptop --check",
    )
    verb.add_argument("comparison", type=Path)
    verb.add_argument("--out", type=Path, help="default: report/ beside the comparison")
    verb.add_argument("--records", type=Path, help="the campaign's folder; default: the comparison's")
    verb.add_argument("--into", type=Path, metavar="FILE.md", help="put the section into a file")
    verb.add_argument("--check", action="store_true", help="list what MLflow holds differently; exit 1 if any")
    verb.add_argument("--rebuild", action="store_true", help="make the MLflow database anew from all records")
    verb.set_defaults(run=_publish)


def _publish(args: argparse.Namespace) -> int:
    from k3bench.publish import stage, track
    from k3bench.records.comparison import Comparison
    from k3bench.store import read_record

    if args.check:
        found = track.check(args.comparison, records=args.records or args.comparison.parent)
        print("\n".join(found) or "MLflow holds what the records hold")
        return 1 if found else 0
    if args.rebuild:
        print(f"{len(track.rebuild(args.comparison.parent.parent))} campaigns in a new database")
    elif args.into:
        changed = stage.put_into(args.into, read_record(args.comparison, Comparison))
        print(f"{args.into}: {'section written' if changed else 'unchanged'}")
    else:
        out = args.out or args.comparison.parent / "report"
        for name in sorted(stage.publish(args.comparison, out=out).files):
            print(out / name)
    return 0


def _add_track(verbs: Verbs) -> None:
    verb = add_verb(
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
    from k3bench.publish.track import track

    track(args.comparison, records=args.records, out=args.out)
    print(args.out)


def _add_verify(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "verify",
        "Probe that both arms give the same bits and the same greedy tokens, and that the probes can fail.",
        "k3bench verify results/laptop/plan.json obs1 --out results/laptop/observations/obs1/equivalence.json",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("observation")
    verb.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    verb.add_argument("--preset", action="append", default=[], help="instead of the recipe's; may be given again")
    verb.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="per preset; later probes become `not_run` rows"
    )
    verb.add_argument(
        "--executor", choices=("here", "debug", "local", "slurm"), default="local", help="of engines that need a job"
    )
    verb.add_argument("--out", type=Path, help="default: equivalence.json of the observation")
    verb.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    import sys
    from collections import Counter
    from datetime import UTC, datetime

    from k3bench.errors import BuildError
    from k3bench.records.equivalence import nothing_to_probe
    from k3bench.records.plan import Plan
    from k3bench.records.recipe import K3MODEL, SERVED
    from k3bench.runnable import adopt
    from k3bench.store import CampaignFolder, read_build, read_record, write_record

    plan, folder = read_record(args.plan, Plan), CampaignFolder(args.plan.parent)
    pairs = {o.id: o.pair for o in plan.observations}
    out = args.out or folder.equivalence(args.observation)
    try:
        arms = ("before", "after") if args.observation in pairs else ()
        builds = {arm: read_build(folder.build(pairs[args.observation], arm)) for arm in arms}
    except BuildError as error:
        measured = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        write_record(out, nothing_to_probe(plan.recipe, args.observation, reason=str(error), measured=measured))
        print(f"{args.observation}: not verified: {error}")
        return 0
    found, engine = None, plan.recipe.engine.name
    if engine in K3MODEL and "after" in builds:
        adopt(builds["after"], folder.root)
    if plan.recipe.engine.ranks > 1 and args.executor == "slurm":
        from k3bench.verify_job import verify_in_job

        asked_of_ranks = {"device": args.device, "presets": args.preset, "budget_s": args.budget}
        found = verify_in_job(folder.root, args.observation, **asked_of_ranks)
    elif engine not in SERVED or engine in K3MODEL:
        from k3bench.verify import verify

        found = verify(
            plan,
            builds,  # type: ignore[arg-type]
            args.observation,
            device=args.device,
            presets=tuple(args.preset),
            budget_s=args.budget,
            root=folder.root,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    if engine == "trtllm":
        from k3bench.submit import JOBS
        from k3bench.verify_served.job import verify_in_jobs

        found = verify_in_jobs(folder.root, args.observation, jobs=JOBS, executor=args.executor)
    elif engine in SERVED:
        from k3bench.verify_served import verify_served

        asked = verify_served(plan, builds, args.observation, logs=folder.root / "logs")  # type: ignore[arg-type]
        found = found.model_copy(update={"rows": (*found.rows, *asked.rows)}) if found else asked
    assert found is not None
    write_record(out, found)
    counts = Counter(row.status for row in found.rows)
    print(f"{args.observation}: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    return 0


def _add_profile(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "profile",
        "Run one arm once more under a profiler, in a process of its own, and keep the trace. Never timed.",
        "k3bench profile results/x/plan.json obs1/after --out results/x/observations/obs1/traces",
        "k3bench profile results/x/plan.json obs1/before --tool kineto --level 8 --executor here --out /tmp/traces",
    )
    verb.add_argument("plan", type=Path)
    verb.add_argument("arm", metavar="OBS/ARM")
    verb.add_argument("--tool", choices=("nsys", "kineto", "cupti"), help="instead of the recipe's trace.tool")
    verb.add_argument("--level", type=int, help="instead of the recipe's trace.level")
    verb.add_argument("--executor", choices=("here", "debug", "local", "slurm"), default="local")
    verb.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    verb.set_defaults(run=_profile)


def _profile(args: argparse.Namespace) -> None:
    from k3bench.measure.profile import profile

    observation, arm = _two_names(args.arm, "OBS/ARM, e.g. obs1/after")
    found = profile(args.plan, observation, arm, out=args.out, executor=args.executor, tool=args.tool, level=args.level)
    print(_in_words(found, args.out))


def _in_words(found: Collected, folder: Path) -> str:
    steps = (found.profiled_step_ms, found.unprofiled_step_ms)
    times = f", {steps[0]:.3f} ms a step profiled, {steps[1]:.3f} ms without" if None not in steps else ""
    return f"{folder / found.trace}: {found.tool_version}, {found.n_replays} replays{times}"


def _add_trace(verbs: Verbs) -> None:
    from k3bench.trace.arguments import add_arguments

    verb = add_verb(
        verbs,
        "trace",
        "Two-stream residency from GPU traces: exact, by family and step, or a refusal that names the cure.",
        "k3bench trace step.sqlite",
        "k3bench trace --before b.sqlite --after a.sqlite --families --out residency.json",
        "k3bench trace step.sqlite.xz --against step.sqlite.xz.oracle.json",
    )
    add_arguments(verb)
    verb.set_defaults(run=_trace)


def _trace(args: argparse.Namespace) -> int:
    from k3bench.trace.command import run

    return run(args)


def _seconds(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _two_names(text: str, shape: str) -> tuple[str, str]:
    left, slash, right = text.partition("/")
    if not (left and slash and right) or "/" in right:
        raise RecordError(f"{text!r} is not {shape}", fix=f"write {shape}")
    return left, right


VERBS = (
    _add_run,
    _add_plan,
    _add_build,
    _add_measure,
    _add_verify,
    _add_profile,
    _add_trace,
    _add_compare,
    _add_publish,
    _add_track,
)
