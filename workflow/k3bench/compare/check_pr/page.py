"""Markdown or JSON becomes one shape: tables, facts (a name and a value), and the prose.

In: text. Out: `Page`. The same reader then works on both. Sizes are bounded; nothing is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from k3bench.errors import RecordError

#: A pull request's description is smaller by far.
MAX_CHARACTERS = 2_000_000
_FIX = "pass the pull request's performance section as Markdown with its tables, or its figures as JSON"


@dataclass(frozen=True)
class Grid:
    """A table: what stands above it, its header cells, its rows (each as long as the header)."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Fact:
    """`path` is where the value was found, e.g. `workload.stream_interval`, or the words before a colon."""

    path: str
    value: str


@dataclass(frozen=True)
class Page:
    """Everything a text says, in one shape."""

    grids: tuple[Grid, ...]
    facts: tuple[Fact, ...]
    prose: str


def page_of(text: str, *, where: str = "") -> Page:
    """JSON if it begins as JSON, else Markdown. Raises `RecordError` for broken JSON or a file that is too large."""
    if len(text) > MAX_CHARACTERS:
        raise RecordError(f"larger than {MAX_CHARACTERS} characters", where=where, fix=_FIX)
    if not text.lstrip().startswith(("{", "[")):
        return _markdown(text)
    try:
        # numbers stay as they were printed: -3.720 has three decimals
        value = json.loads(text, parse_float=str, parse_int=str, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"begins like JSON and is none: {error}", where=where, fix=_FIX) from None
    return _json(value)


def _no_constant(name: str) -> str:
    raise ValueError(f"{name} is no number")


# --- JSON ---------------------------------------------------------------------------------------------------------


def _json(value: Any) -> Page:
    grids, facts = [], []
    for path, node in _nodes(value, ()):
        title = " ".join(path)
        if isinstance(node, list) and node and all(isinstance(x, Mapping) for x in node):
            columns = tuple(dict.fromkeys(str(key) for row in node for key in row))
            grids.append(Grid(title, columns, tuple(tuple(_cell(row.get(c)) for c in columns) for row in node)))
        elif isinstance(node, Mapping) and node and all(re.fullmatch(r"\d+", str(key)) for key in node):
            rows = tuple((str(key), _cell(cell)) for key, cell in node.items())
            grids.append(Grid(title, ("concurrency", title), rows))
        elif not isinstance(node, Mapping):
            facts.append(Fact(".".join(path), _cell(node)))
    prose = "\n".join(f"{f.path.replace('_', ' ')}: {f.value}" for f in facts)
    return Page(tuple(grids), tuple(facts), prose)


def _nodes(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Tables and leaves, outermost first; rows of a table are not visited again."""
    if path:
        yield path, value
    if isinstance(value, Mapping) and not all(re.fullmatch(r"\d+", str(key)) for key in value):
        for key, inner in value.items():
            yield from _nodes(inner, (*path, str(key)))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(_cell(x) for x in value)
    return str(value)


# --- Markdown -----------------------------------------------------------------------------------------------------


def _markdown(text: str) -> Page:
    lines = text.replace("\r\n", "\n").split("\n")
    grids: list[Grid] = []
    prose: list[str] = []
    facts: list[Fact] = []
    heading = ""
    i = 0
    while i < len(lines):
        if _is_table_at(lines, i):
            end = i
            while end < len(lines) and "|" in lines[end] and lines[end].strip():
                end += 1
            above = next((p for p in reversed(prose) if p.strip()), "")
            grids.append(_grid(f"{heading} {above}".strip(), lines[i:end]))
            i = end
            continue
        line = lines[i]
        if line.lstrip().startswith("#"):
            heading = plain(line.lstrip("# "))
        elif _is_arm_label(plain(line)):
            heading = plain(line)
        prose.append(plain(line))
        fact = _fact(plain(line), heading)
        if fact is not None:
            facts.append(fact)
        i += 1
    for grid in grids:
        facts += _facts_of(grid)
    return Page(tuple(grids), tuple(facts), "\n".join(prose))


def _is_arm_label(line: str) -> bool:
    """A short line that only says whose figures follow: Before, After, main, this PR."""
    text = line.rstrip(": ").lower()
    return (
        re.fullmatch(r"(\w+ ){0,2}(before|after|baseline|main|master|this pr|pr|with this pr)( \S+)?", text) is not None
    )


def plain(text: str) -> str:
    """Without emphasis, code marks, links and HTML tags; typographic minus as a plain one."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]{0,200}>", " ", text)
    return re.sub(r"[*`~]|\\(?=[|_*])|(?<!\w)_|_(?!\w)", "", text).replace("−", "-").replace("–", "-").strip()


def _is_table_at(lines: list[str], i: int) -> bool:
    """A header line followed by a rule of dashes."""
    rule = lines[i + 1].strip() if i + 1 < len(lines) else ""
    return "|" in lines[i] and "-" in rule and "|" in rule and re.fullmatch(r"[|:\-\s]+", rule) is not None


def _grid(title: str, lines: list[str]) -> Grid:
    header = _cells(lines[0])
    rows = tuple(tuple((_cells(line) + [""] * len(header))[: len(header)]) for line in lines[2:])
    return _upright(Grid(title, tuple(header), rows))


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [plain(cell) for cell in re.split(r"(?<!\\)\|", inner)]


def _upright(grid: Grid) -> Grid:
    """Turn a table whose columns are concurrencies, so that every row is a level."""
    levels = [re.fullmatch(r"(?:c|conc|concurrency|bs)?\s*=?\s*(\d+)", c.lower()) for c in grid.columns[1:]]
    if len(levels) < 2 or not all(levels):
        return grid
    columns = ("concurrency", *(row[0] for row in grid.rows))
    rows = tuple((m[1], *(row[i] for row in grid.rows)) for i, m in enumerate(levels, 1) if m is not None)
    return Grid(grid.title, columns, rows)


def _fact(line: str, heading: str) -> Fact | None:
    """A list item or line of the form `name: value` or `name = value`."""
    match = re.fullmatch(r"(?:[-+•]|\d+[.)])?\s*([^:=|]{1,80}?)\s*[:=]\s+?(\S.{0,400})", line) or re.fullmatch(
        r"(?:[-+•]|\d+[.)])?\s*([\w .-]{1,60}?)\s*=\s*(\S.{0,400})", line
    )
    if match:
        return Fact(f"{heading}.{match[1].strip()}", match[2].strip())
    item = re.fullmatch(r"(?:[-+•]|\d+[.)])\s+(.{1,500})", line)
    return Fact(f"{heading}.item", item[1]) if item else None


def _facts_of(grid: Grid) -> list[Fact]:
    """Rows of a table as facts: the first cell names them, the rest is their value."""
    return [Fact(f"{grid.title}.{row[0]}", "; ".join(c for c in row[1:] if c)) for row in grid.rows if row[0]]
