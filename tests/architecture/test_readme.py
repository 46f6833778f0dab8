"""Documents are run: every command they show parses, every file they name is there, every example of --help works."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from k3bench.cli import parse, parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "results/README.md"])
OWN = {"setup", "oracles"}  # verbs of the script ./k3 itself


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Verb -> its parser."""
    (found,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


def commands(text: str) -> list[str]:
    """Lines of code that begin with ./k3 or k3bench, comments cut off."""
    lines = [re.split(r"\s{2,}#|\s+#\s|\s{3,}", line.strip())[0].strip() for line in text.splitlines()]
    return [line for line in lines if re.match(r"(\./k3|k3bench)\s+[a-z]", line)]


def code(markdown: str) -> str:
    """Code blocks (fenced, or indented by four) and code spans of a document, a line each."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", markdown, re.MULTILINE)
    return "\n".join([*fenced, *indented, *re.findall(r"`([^`\n]+)`", markdown)])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_command_in_a_document_names_a_verb(path: Path) -> None:
    """A renamed verb is noticed here."""
    for line in commands(code(path.read_text())):
        assert shlex.split(line)[1] in {*verbs(), *OWN}, line


@pytest.mark.parametrize("name", sorted(verbs()))
def test_every_example_of_help_parses(name: str) -> None:
    """What --help shows can be typed."""
    examples = commands(verbs()[name].format_help().partition("examples:")[2])
    assert examples, f"{name} --help has no example"
    for line in examples:
        assert complaint(line) == "", line


def complaint(line: str) -> str:
    """What argparse says of a command line; empty where it has nothing to say."""
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
        parse(shlex.split(line)[1:])
    return said.getvalue()


def test_every_file_that_the_readme_names_is_there() -> None:
    """Links and paths in code spans, except what a run generates."""
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"\]\((?!http)([^)#]+)\)", text) + re.findall(
        r"`((?:workflow|docs|recipes|k3model|results)/[^`* ]+)`", text
    )
    for name in named:
        generated = name.startswith("results/") and not name.startswith(("results/recorded", "results/README"))
        assert generated or (ROOT / name).exists(), name
