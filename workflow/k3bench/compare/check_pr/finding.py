"""One thing found about a published claim, and how findings read as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["holds", "does_not_follow", "missing"]
_TITLES: dict[Status, str] = {
    "holds": "holds",
    "does_not_follow": "does not follow from the numbers shown",
    "missing": "missing for a verdict",
}


@dataclass(frozen=True)
class Finding:
    """`values` carries the numbers of the sentence, unrounded, under names with units."""

    status: Status
    subject: str
    text: str
    values: dict[str, float] = field(default_factory=dict)


def describe(findings: Sequence[Finding]) -> str:
    """Three lists: what holds, what does not follow, what is missing."""
    parts = []
    for status, title in _TITLES.items():
        rows = [f"  [{f.subject}] {f.text}" for f in findings if f.status == status]
        parts.append("\n".join([f"{title} ({len(rows)})", *rows]))
    return "\n\n".join(parts)
