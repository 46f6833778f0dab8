"""`k3bench build --dry-run`: a plan in, every job, command and folder of its builds out, in order; nothing is done.

A line that does not begin with `#` is a command as it would be run. What only git can tell, the commit of a ref, is
written as COMMIT-OF-<build>, and folders are named after the recipe's builds. Out of scope: doing it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from k3bench.build.command import job_spec
from k3bench.build.repository import checkout_words, clone_words, command, is_remote, mirror_of, resolve_words
from k3bench.change import declared
from k3bench.records.builds import GitBuild, ImageBuild, WheelBuild
from k3bench.records.measurement import ARMS
from k3bench.records.plan import Build, Plan
from k3bench.runnable import pretended
from k3bench.store import CampaignFolder


def dry_run(plan: Plan, root: Path, chosen: str | None = None) -> Iterator[str]:
    """All lines, or those of one pair."""
    recipe, folder = plan.recipe, CampaignFolder(root.absolute())
    yield f"# {recipe.name}: builds"
    for pair in sorted({o.pair for o in plan.observations}):
        if chosen in (None, pair):
            yield ""
            yield f"## build pair {pair}{', made anew with compile caches of its own' if recipe.rebuilt(pair) else ''}"
            if recipe.build_where == "job":
                yield job_spec(plan, pair, "slurm").sbatch_line(f"build:{pair}")
            for arm in ARMS:
                yield from _arm(plan, folder, pretended(recipe, pair, arm))
            change = ", ".join(declared(recipe)) or "nothing"
            yield f"# then builds/{pair}/before.json and after.json; refused if they differ in anything but: {change}"


def _arm(plan: Plan, folder: CampaignFolder, build: Build) -> Iterator[str]:
    spec = plan.recipe.build_of(build.arm)
    yield f"# {build.arm}: build {build.name}, {spec.kind}"
    if isinstance(spec, GitBuild) and build.place is not None:
        yield from _git(folder, spec, build)
    elif isinstance(spec, WheelBuild) and build.place is not None:
        yield f"# unpack {spec.path} into {folder.tree(build.place)}"
    elif isinstance(spec, ImageBuild):
        yield f"# {spec.image}: recorded by its digest, pulled by what starts the server"
    else:
        yield "# what is installed, as it is"


def _git(folder: CampaignFolder, spec: GitBuild, build: Build) -> Iterator[str]:
    repository = Path(spec.repository)
    if is_remote(spec.repository):
        mirrors = folder.place(".mirrors")
        repository = mirror_of(spec.repository, mirrors)
        yield shlex.join(command(mirrors, *clone_words(spec.repository, repository)))
    tree = folder.tree(str(build.place))
    yield shlex.join(command(repository, *resolve_words(spec.ref)))
    yield shlex.join(command(repository, *checkout_words(tree, f"COMMIT-OF-{build.name}")))
    if spec.patch:
        yield f"# put {spec.patch} on it"
    if spec.command:
        yield f"# in {tree}, at most {spec.minutes} min:"
        yield shlex.join(spec.command)
