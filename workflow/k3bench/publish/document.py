"""The report as blocks: what every flavour (pull request, MLflow, page) shows. Out of scope: filling, rendering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A table column; its unit stands in the title."""

    title: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Rows of marked lines. `wanted` tables survive every cut."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    wanted: bool = False


@dataclass(frozen=True)
class Paragraph:
    """One marked line."""

    line: str


@dataclass(frozen=True)
class Bullets:
    """A list of marked lines."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Fence:
    """Commands to copy."""

    text: str


@dataclass(frozen=True)
class Details:
    """Folded away where the flavour can fold; cut first where space is short."""

    summary: str
    blocks: tuple[Block, ...]


Block = Paragraph | Table | Bullets | Fence | Details


@dataclass(frozen=True)
class Part:
    """One of the parts of the report. `name` is its anchor; figures of the page are placed by it."""

    name: str
    heading: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """The whole report. `name` is the marker by which a re-run finds it again in a longer text."""

    name: str
    title: str
    digest: str
    parts: tuple[Part, ...]

    def lines(self) -> Iterator[str]:
        """Every marked line, in reading order."""
        yield self.title
        for part in self.parts:
            yield part.heading
            yield from _lines(part.blocks)


def _lines(blocks: tuple[Block, ...]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Paragraph(line):
                yield line
            case Bullets(lines):
                yield from lines
            case Fence(text):
                yield text
            case Table(columns, rows):
                yield from (c.title for c in columns)
                yield from (cell for row in rows for cell in row)
            case Details(summary, inner):
                yield summary
                yield from _lines(inner)
