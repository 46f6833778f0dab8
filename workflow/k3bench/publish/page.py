"""The report as one self-contained page: no network, light and dark, sortable tables, exact values on hover, printable.

In: a document and its figures. Out: the bytes of `index.html`. Out of scope: what they say.

Everything of a record is escaped; a content-security policy refuses every script and connection besides our own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files

from k3bench.publish.document import Block, Bullets, Details, Document, Fence, Paragraph, Part, Table
from k3bench.publish.figures import LIGHT, Figure
from k3bench.publish.lookup import exact
from k3bench.publish.spans import Token, plain, tokens
from k3bench.records.comparison import Comparison

#: Which part of the report a figure stands in; anything else stands with the mechanism.
PLACE = {"tpot": "levels", "forest": "observations", "order": "observations", "noise": "observations"}


def page(record: Comparison, document: Document, figures: Sequence[Figure]) -> bytes:
    """The whole page."""
    style, script = _asset("page.css"), _asset("page.js")
    body = "".join(_part(record, part, [f for f in figures if _place(f) == part.name]) for part in document.parts)
    title = plain(document.title)
    return (
        "<!doctype html>\n"
        f'<html lang="en">\n<head>\n<meta charset="utf-8">\n{_policy(style, script)}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n'
        f"<body>\n<header><h1>{html.escape(title)}</h1>"
        '<button id="theme" type="button">light / dark</button></header>\n'
        f"<main>\n{body}</main>\n<footer>record {html.escape(document.digest)}</footer>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    ).encode()


def _asset(name: str) -> str:
    return files("k3bench.publish").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    allowed = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_sha256(script)}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _place(figure: Figure) -> str:
    return PLACE.get(figure.stem, "mechanism")


def _part(record: Comparison, part: Part, figures: Sequence[Figure]) -> str:
    heading = f"<h2>{_inline(record, part.heading)}</h2>\n" if part.heading else ""
    blocks = [_block(record, block) for block in part.blocks]
    shown = "".join(_figure(f) for f in figures)
    return f'<section id="{part.name}">\n{heading}{"".join(blocks)}{shown}</section>\n'


def _block(record: Comparison, block: Block) -> str:
    match block:
        case Paragraph(line):
            return f"<p>{_inline(record, line)}</p>\n"
        case Bullets(lines):
            return "<ul>" + "".join(f"<li>{_inline(record, line)}</li>" for line in lines) + "</ul>\n"
        case Fence(text):
            return f"<pre>{html.escape(text)}</pre>\n"
        case Table():
            return _table(record, block)
        case Details(summary, blocks):
            inner = "".join(_block(record, b) for b in blocks)
            return f"<details><summary>{_inline(record, summary)}</summary>\n{inner}</details>\n"


def _table(record: Comparison, table: Table) -> str:
    head = "".join(
        f'<th class="{c.align}" scope="col"><button type="button">{_title(record, c.title)}</button></th>'
        for c in table.columns
    )
    rows = "".join(
        "<tr>"
        + "".join(_cell(record, cell, column.align) for cell, column in zip(row, table.columns, strict=True))
        + "</tr>\n"
        for row in table.rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n'


def _title(record: Comparison, line: str) -> str:
    """A column's title; its unit in brackets stays on one line."""
    return re.sub(r"\[[^\]]*\]", r'<span class="unit">\g<0></span>', _inline(record, line))


def _cell(record: Comparison, cell: str, align: str) -> str:
    """A cell sorts by the exact value of its first number, or by its text."""
    key = next((exact(record, t.path) for t in tokens(cell) if t.kind == "value"), None)
    sort = plain(cell) if key is None or isinstance(key, str) else repr(float(key))
    return f'<td class="{align}" data-sort="{html.escape(sort)}">{_inline(record, cell)}</td>'


def _inline(record: Comparison, line: str) -> str:
    return "".join(_token(record, token) for token in tokens(line))


def _token(record: Comparison, token: Token) -> str:
    text = html.escape(token.text.replace(" %", "\u00a0%"))
    match token.kind:
        case "bold":
            return f"<strong>{text}</strong>"
        case "code":
            return f"<code>{text}</code>"
        case "value":
            hover = html.escape(f"{token.path} = {exact(record, token.path)}")
            return f'<data value="{html.escape(str(exact(record, token.path)))}" title="{hover}">{text}</data>'
        case _:
            return text


def _figure(figure: Figure) -> str:
    svg = figure.files.get(f"{figure.stem}.svg")
    if svg is None:
        return ""
    below = "" if figure.caption_inside else f"<figcaption>{html.escape(figure.caption)}</figcaption>"
    return (
        f'<figure id="figure-{figure.stem}" role="img" aria-label="{html.escape(figure.title)}. '
        f'{html.escape(figure.caption)}">{themed(svg.decode(), figure.stem)}{below}</figure>\n'
    )


def themed(svg: str, stem: str) -> str:
    """A light SVG for use inside a page: colours follow the page, ids are its own, dots say their value."""
    svg = svg[svg.index("<svg") :]
    for role in ("paper", "ink", "muted", "grid", "before", "after", "zero", "band"):
        svg = svg.replace(getattr(LIGHT, role), f"var(--{role})")
    svg = re.sub(r'<g id="(hover\|[^"]*)">(.*?)</g>\s*</g>', _tooltips, svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{stem}-\1"', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{stem}-", svg)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _tooltips(match: re.Match[str]) -> str:
    """Give the n-th dot of a group the n-th thing that the group says. The group's id arrives escaped, and stays so."""
    says = match[1].split("|")[2:]
    remaining = iter(says)

    def with_title(use: re.Match[str]) -> str:
        said = next(remaining, "")
        return f"<use {use[1]}><title>{said}</title></use>" if said else use[0]

    inner = re.sub(r"<use ([^>]*)/>", with_title, match[2])
    return f'<g class="dots">{inner}</g></g>'
