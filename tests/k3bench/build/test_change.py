"""The locks of two arms differ in what the recipe declares: no more, and no less."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from k3bench.build import build_pair
from k3bench.change import declared, difference
from k3bench.errors import BuildError
from k3bench.records.plan import Plan

from .conftest import Repo

Planned = Callable[..., Plan]
OLD, NEW = "{{policy: before, build: old{}}}", "{{policy: {}, build: new{}}}"


@pytest.fixture
def pair(planned: Planned, repo: Repo, tmp_path: Path) -> Callable[..., dict[str, tuple[str, str]]]:
    """Build before at main~1 and after at main; returns what differs."""

    def make(
        change: str = "", after: str = NEW.format("before", ""), before: str = OLD.format("")
    ) -> dict[str, tuple[str, str]]:
        at = {"old": "main~1", "new": "main"}
        builds = {n: json.dumps({"kind": "git", "repository": str(repo.path), "ref": r}) for n, r in at.items()}
        plan = planned(builds=builds, before=before, after=after, extra=change)
        made = build_pair(plan, "p1", root=tmp_path / "r")
        return difference(plan.recipe, made["before"], made["after"])

    return make


Pair = Callable[..., dict[str, tuple[str, str]]]


def test_the_commit_alone_is_the_change(pair: Pair, repo: Repo) -> None:
    """Other sources are its consequence and are not named beside it."""
    commits = tuple(repo.git("rev-parse", "--short=12", ref) for ref in ("main~1", "main"))
    assert pair() == {"commit": commits}
    assert pair("declared_change: [commit]") == {"commit": commits}


def test_more_than_declared_is_refused_by_name(pair: Pair) -> None:
    """A policy that was switched on by the way would have made the gain."""
    with pytest.raises(BuildError, match=r"differ in policy \(before -> after\), which the recipe does not declare"):
        pair("declared_change: [commit]", after=NEW.format("after", ""))


def test_less_than_declared_is_refused_by_name(pair: Pair) -> None:
    """A change that did not arrive would be measured as no change."""
    with pytest.raises(BuildError, match=r"do not differ in environment\.TLLM_X, which the recipe declares"):
        pair("declared_change: [commit, environment.TLLM_X]")


def test_everything_that_was_declared_and_nothing_else_is_accepted(pair: Pair) -> None:
    """Environment, arguments and policy each count as a field."""
    found = pair(
        "declared_change: [commit, policy, environment.A, arguments]",
        before=OLD.format(", environment: {A: '1', B: '1'}"),
        after=NEW.format("after", ", environment: {A: '2', B: '1'}, arguments: [--fast]"),
    )
    assert set(found) == {"commit", "policy", "environment.A", "arguments"}
    assert found["arguments"] == ("absent", "--fast")


def test_without_a_declaration_the_arms_of_the_recipe_are_one(pair: Pair) -> None:
    """What a person wrote differently is meant to differ."""
    found = pair(after=NEW.format("after", ", environment: {A: '2'}"))
    assert set(found) == {"commit", "policy", "environment.A"}


def test_a_commit_that_changes_no_source_is_no_change(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Only the notes changed between the two refs: there is nothing to measure."""
    repo.commit("words", "NOTES.md")
    at = {"old": "main~1", "new": "main"}
    builds = {n: json.dumps({"kind": "git", "repository": str(repo.path), "ref": r}) for n, r in at.items()}
    with pytest.raises(BuildError, match=r"do not differ in commit \(the sources are the same\)"):
        build_pair(planned(builds=builds), "p1", root=tmp_path / "r")


def test_two_names_of_one_commit_are_no_change(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A branch that was never pushed further than the other."""
    repo.git("branch", "feature")
    at = {"old": "main", "new": "feature"}
    builds = {n: json.dumps({"kind": "git", "repository": str(repo.path), "ref": r}) for n, r in at.items()}
    with pytest.raises(BuildError, match="do not differ in commit"):
        build_pair(planned(builds=builds), "p1", root=tmp_path / "r")


def test_other_versions_that_nobody_declared_are_refused(planned: Planned, tmp_path: Path) -> None:
    """A wheel that brings its own torch changes more than its sources."""
    import zipfile

    builds = {}
    for name, version in (("old", "1.0"), ("new", "2.0")):
        with zipfile.ZipFile(tmp_path / f"{name}.whl", "w") as file:
            file.writestr("k3model/__init__.py", f"# {name}")
            file.writestr("torch-1.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        builds[name] = json.dumps({"kind": "wheel", "path": str(tmp_path / f"{name}.whl")})
    with pytest.raises(BuildError, match=r"versions\.torch \(1\.0 -> 2\.0\)"):
        build_pair(planned(builds=builds), "p1", root=tmp_path / "r")
    plan = planned(builds=builds, extra="declared_change: [wheel, versions.torch]")
    assert build_pair(plan, "p1", root=tmp_path / "r")["after"].versions["torch"] == "2.0"


def test_recipes_kept_in_this_repository_declare_what_their_arms_differ_in(planned: Planned) -> None:
    """The laptop's arms differ in the policy."""
    plan = planned(before="{policy: before}", after="{policy: after}")
    assert declared(plan.recipe) == ("policy",)
