"""A document as markdown, in two flavours: for a pull request (folds, bounded, between markers) and for MLflow's notes.

In: `Document`. Out: text, the same bytes for the same document. Out of scope: what the document says.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from k3bench.errors import RecordError
from k3bench.publish.document import Block, Bullets, Details, Document, Fence, Paragraph, Part, Table
from k3bench.publish.spans import Token, plain, tokens

Flavour = Literal["pull_request", "mlflow"]

#: GitHub refuses a description or comment that is longer, in characters.
MAX_CHARS = 65_536
#: Underscores inside a word are no markup.
_SPECIAL = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w))")


def begin_marker(name: str) -> str:
    """The hidden line that opens a report in a longer text."""
    return f"<!-- k3bench:begin {name} -->"


def end_marker(name: str) -> str:
    """The hidden line that closes it."""
    return f"<!-- k3bench:end {name} -->"


def pull_request(document: Document, *, limit: int = MAX_CHARS) -> str:
    """The section between its markers, within `limit` characters: details are cut first, the main table never.

    Raises `RecordError` if even the parts that may not be cut are too long.
    """
    for cut in _cuts(document):
        text = _marked(cut)
        if len(text) <= limit:
            return text
    raise RecordError(
        f"the report needs {len(text)} characters, a pull request takes {limit}",
        where=document.name,
        fix="split the campaign; no table that carries the verdict is ever cut",
    )


def mlflow_note(document: Document, *, limit: int) -> str:
    """The visible parts for MLflow's description, which drops `<details>`; parts that do not fit are left out whole."""
    kept = f"**{_inline(document.title)}**\n"
    for part in document.parts:
        text = _part(part, "mlflow")
        if len(kept) + len(text) > limit:
            break
        kept += text
    return kept


def replaced_in(text: str, section: str, name: str) -> str:
    """`text` with the section of that name put in place of its older self, or at the end where there is none."""
    pattern = re.compile(re.escape(begin_marker(name)) + r".*?" + re.escape(end_marker(name)) + r"\n?", re.DOTALL)
    if len(pattern.findall(text)) > 1:
        raise RecordError(
            f"the markers of {name} stand there more than once", where=name, fix="leave one pair of marker lines"
        )
    if pattern.search(text):
        return pattern.sub(lambda _: section, text)
    joint = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    return text + joint + section


def _marked(document: Document) -> str:
    body = "".join(_part(part, "pull_request") for part in document.parts)
    title = f"## {_inline(document.title)}\n"
    return f"{begin_marker(document.name)}\n{title}{body}\n{end_marker(document.name)}\n"


def _part(part: Part, flavour: Flavour) -> str:
    blocks = [text for block in part.blocks if (text := _block(block, flavour))]
    if not blocks:
        return ""
    heading = f"\n### {_inline(part.heading)}\n" if part.heading else ""
    return heading + "".join(f"\n{text}\n" for text in blocks)


def _block(block: Block, flavour: Flavour) -> str:
    match block:
        case Paragraph(line):
            return _inline(line)
        case Bullets(lines):
            return "\n".join(f"- {_inline(line)}" for line in lines)
        case Fence(text):
            return f"```\n{text}\n```"
        case Table():
            return _table(block)
        case Details(summary, blocks):
            if flavour == "mlflow":
                return ""
            inner = "\n\n".join(_block(b, flavour) for b in blocks)
            return f"<details><summary>{_inline(summary)}</summary>\n\n{inner}\n\n</details>"


def _table(table: Table) -> str:
    rules = ["---:" if c.align == "right" else ":---" for c in table.columns]
    rows = [[_inline(c.title) for c in table.columns], rules, *([_inline(cell) for cell in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _inline(line: str) -> str:
    return "".join(_token(token) for token in tokens(line))


def _token(token: Token) -> str:
    match token.kind:
        case "bold":
            return f"**{token.text}**"
        case "code":
            return "`" + token.text.replace("`", "'").replace("|", "\\|") + "`"
        case "foreign":
            return escaped(token.text)
        case _:
            return token.text


def escaped(text: str) -> str:
    """Foreign text that renders as itself: no markup, no HTML, no mention, no issue link."""
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = _SPECIAL.sub(r"\\\1", text)
    text = re.sub(r"^>", "&gt;", text)
    return re.sub(r"#(?=\d)", "&#35;", text).replace("@", "&#64;")


def _cuts(document: Document) -> list[Document]:
    """The document itself, then ever shorter ones: details shrink, then vanish, then long unwanted tables shrink."""
    folds = [_each(document, lambda b, n=n: _fold(b, n)) for n in (200, 50, 10, 0)]
    tables = [_each(folds[-1], lambda b, n=n: _shorten(b, n)) for n in (100, 30, 10)]
    return [document, *folds, *tables]


def _each(document: Document, change) -> Document:  # type: ignore[no-untyped-def]
    parts = tuple(replace(p, blocks=tuple(c for b in p.blocks if (c := change(b)) is not None)) for p in document.parts)
    return replace(document, parts=parts)


def _fold(block: Block, rows: int) -> Block | None:
    if not isinstance(block, Details):
        return block
    if rows == 0:
        return Paragraph(f"{plain(block.summary)}: left out for length, see the page.")
    return replace(block, blocks=tuple(_shorten(b, rows) for b in block.blocks))


def _shorten(block: Block, rows: int) -> Block:
    if isinstance(block, Table) and not block.wanted and len(block.rows) > rows:
        note = ("further rows: see the page", *[""] * (len(block.columns) - 1))
        return replace(block, rows=(*block.rows[:rows], note))
    if isinstance(block, Bullets) and len(block.lines) > rows:
        return Bullets((*block.lines[:rows], "further lines: see the page"))
    return block
