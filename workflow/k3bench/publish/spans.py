"""Inline text of a report: strings with marks in, tokens out. Out of scope: how a token looks (markdown, HTML).

Sentences stay readable f-strings: a cited number, foreign text, code or bold inside one is wrapped in private-use
characters, which no other text may carry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "value", "foreign", "code", "bold"]

_OPEN, _SEP, _CLOSE = "\ue000", "\ue001", "\ue002"
_PRIVATE = re.compile(r"[\ue000-\uf8ff]")
_MARK = re.compile(f"{_OPEN}(.){_SEP}([^{_SEP}{_CLOSE}]*){_SEP}([^{_CLOSE}]*){_CLOSE}")
_KINDS: dict[str, Kind] = {"v": "value", "f": "foreign", "c": "code", "b": "bold"}

#: Foreign text is data that may lie, and long: nothing longer is shown in a line.
MAX_FOREIGN_CHARS = 400


@dataclass(frozen=True)
class Token:
    """A piece of a line. `path` is where a value stands in the record; empty for every other kind."""

    kind: Kind
    text: str
    path: str = ""


def value(text: str, path: str) -> str:
    """A number (or word) of the record, with the path of the field it was read from."""
    return _mark("v", path, text)


def foreign(text: str) -> str:
    """Text that we did not write: on one line, bounded, escaped by every renderer."""
    line = " ".join(_PRIVATE.sub("", text).split())
    return _mark("f", "", line if len(line) <= MAX_FOREIGN_CHARS else line[: MAX_FOREIGN_CHARS - 1] + "…")


def code(text: str) -> str:
    """A name, path or command."""
    return _mark("c", "", " ".join(_PRIVATE.sub("", text).split()))


def bold(text: str) -> str:
    """Our own words, set in bold. No marks inside."""
    return _mark("b", "", text)


def _mark(kind: str, path: str, text: str) -> str:
    return f"{_OPEN}{kind}{_SEP}{path}{_SEP}{text}{_CLOSE}"


def tokens(line: str) -> list[Token]:
    """Split a line at its marks."""
    found: list[Token] = []
    end = 0
    for match in _MARK.finditer(line):
        if match.start() > end:
            found.append(Token("text", line[end : match.start()]))
        found.append(Token(_KINDS[match[1]], match[3], match[2]))
        end = match.end()
    if end < len(line):
        found.append(Token("text", line[end:]))
    return found


def plain(line: str) -> str:
    """The line without marks, as a person reads it."""
    return "".join(token.text for token in tokens(line))
