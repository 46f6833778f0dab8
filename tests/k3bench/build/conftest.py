"""Tiny repositories, and recipes that build from them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from k3bench.plan import make_plan
from k3bench.recipe import parse_recipe
from k3bench.records.plan import Plan

RECIPE = """
schema: k3bench.recipe/1
name: built
title: two builds of a tiny package
engine: {{name: {engine}, preset: nano, device: cpu}}
arms:
  before: {before}
  after: {after}
{rest}
workload: {{isl_tokens: 8, osl_tokens: 5, levels: [1]}}
observations: {observations}
blocks: 1
primary_level: 1
"""
ONE, TWO_PAIRS = "[{id: obs1}]", "[{id: obs1, pair: p1, rebuild: true}, {id: obs2, pair: p2, rebuild: true}]"
NAMES = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Repo:
    """A git repository with a package k3model of a few lines."""

    def __init__(self, path: Path, first: str = "VALUE = 1\n") -> None:
        self.path = path
        (path / "k3model").mkdir(parents=True)
        (path / "k3model/__init__.py").write_text("")
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit(first)

    def git(self, *words: str) -> str:
        """Ask git in the repository."""
        env = os.environ | NAMES
        done = subprocess.run(["git", *words], cwd=self.path, env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, text: str, name: str = "k3model/value.py") -> None:
        """Change a file without committing it."""
        (self.path / name).write_text(text)

    def commit(self, text: str, name: str = "k3model/value.py") -> str:
        """Change a file, commit it; returns the full commit."""
        self.write(text, name)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", f"{name} is {len(text)} long")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository with two commits on main; `main~1` holds VALUE = 1, `main` holds VALUE = 2."""
    made = Repo(tmp_path / "a repository")
    made.commit("VALUE = 2\n")
    return made


def recipe_text(
    *,
    before: str = "{policy: before, build: old}",
    after: str = "{policy: before, build: new}",
    engine: str = "k3model-served",
    rest: str = "",
    observations: str = ONE,
) -> str:
    """A recipe as a person would write it."""
    return RECIPE.format(before=before, after=after, engine=engine, rest=rest, observations=observations)


@pytest.fixture
def planned() -> Callable[..., Plan]:
    """A plan of a recipe whose builds are given as YAML lines: `old="{kind: git, ...}"`."""

    def make(*, extra: str = "", builds: dict[str, str] | None = None, **parts: str) -> Plan:
        rest = "\n".join([*(["builds:"] if builds else []), *(f"  {k}: {v}" for k, v in (builds or {}).items()), extra])
        return make_plan(parse_recipe(recipe_text(rest=rest, **parts), where="built.yaml", name="built"))

    return make
