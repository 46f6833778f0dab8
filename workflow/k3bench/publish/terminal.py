"""The report for a terminal: the verdict, the main table, what is missing, where to look. Record in, text out."""

from __future__ import annotations

from k3bench.publish.document import Block, Bullets, Document, Paragraph, Table
from k3bench.publish.spans import plain
from k3bench.publish.table import report
from k3bench.records.comparison import Comparison
from k3bench.store import CampaignFolder

SHOWN = ("verdict", "levels", "outstanding")


def summary(record: Comparison, folder: CampaignFolder) -> str:
    """Plain text; the same words and numbers as the pull-request section."""
    document = report(record)
    lines = [plain(document.title), ""]
    for part in document.parts:
        if part.name in SHOWN:
            lines += [plain(part.heading), *_blocks(part.name, part.blocks), ""] if part.heading else [
                *_blocks(part.name, part.blocks), ""]  # fmt: skip
    return "\n".join([*lines, *_where(document, folder)])


def _blocks(part: str, blocks: tuple[Block, ...]) -> list[str]:
    """The main table without its legend; the other parts whole."""
    kept = [b for b in blocks if isinstance(b, Table)] if part == "levels" else blocks
    lines: list[str] = []
    for block in kept:
        match block:
            case Paragraph(line):
                lines.append(plain(line))
            case Bullets(items):
                lines += [f"  - {plain(item)}" for item in items]
            case Table():
                lines += _table(block)
    return lines


def _table(table: Table) -> list[str]:
    rows = [[c.title for c in table.columns], *([plain(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in rows
    ]


def _where(document: Document, folder: CampaignFolder) -> list[str]:
    files = [folder.report / "pr.md", folder.report / "index.html", folder.comparison, folder.receipt]
    return [f"look at: {path}" for path in files if path.exists()] or [f"record {document.digest}"]
