"""The verbs for jobs: status, cancel, cluster."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from k3bench.cli.verb import Verbs, add_verb


def _add_status(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "status",
        "How far a campaign is: blocks done, running, waiting, failed, with jobs, racks and reasons.",
        "k3bench status recipes/two-racks.yaml",
        "k3bench status recipes/two-racks.yaml --watch 10",
    )
    verb.add_argument("recipe", type=Path)
    verb.add_argument("--watch", type=float, metavar="SECONDS", help="look again and again; Ctrl-C ends it")
    verb.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> None:
    from k3bench.measure.status import beside, rows, table

    while True:
        plan = _plan_of(args.recipe)
        print("\n".join([table(rows(plan)), *beside(plan)]), flush=True)
        if args.watch is None:
            return
        time.sleep(max(1.0, args.watch))
        print()


def _add_cancel(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "cancel",
        "End every running or waiting job of a campaign; what is measured is kept.",
        "k3bench cancel recipes/two-racks.yaml",
    )
    verb.add_argument("recipe", type=Path)
    verb.set_defaults(run=_cancel)


def _cancel(args: argparse.Namespace) -> None:
    from k3bench.measure.status import cancel_all

    ended = cancel_all(_plan_of(args.recipe))
    print("\n".join(["cancelled:", *ended]) if ended else "nothing of this campaign runs or waits")


def _plan_of(recipe: Path) -> Path:
    from k3bench.recipe import load_recipe

    return Path("results") / load_recipe(recipe).name / "plan.json"


def _add_cluster(verbs: Verbs) -> None:
    verb = add_verb(
        verbs,
        "cluster",
        "A real Slurm on this machine, to try the slurm profile: eight virtual nodes on two racks.",
        "k3bench cluster up",
        "k3bench run --profile slurm recipes/two-racks.yaml",
        "k3bench cluster down",
    )
    verb.add_argument("action", choices=("up", "env", "down"), help="start it, print its environment, stop it")
    verb.add_argument("--dir", type=Path, help="where it keeps everything (default: one folder a user under /tmp)")
    verb.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB, so that sacct works")
    verb.add_argument("--racks", default="d157,d127", help="rack names (%(default)s)")
    verb.add_argument("--nodes-per-rack", type=int, default=4, metavar="N", help="virtual nodes (%(default)s)")
    verb.add_argument("--gpus-per-node", type=int, default=4, metavar="N", help="pretended GPUs (%(default)s)")
    verb.set_defaults(run=_cluster)


def _cluster(args: argparse.Namespace) -> int:
    from k3bench.cluster import run

    return run(args)


VERBS = (_add_status, _add_cancel, _add_cluster)
