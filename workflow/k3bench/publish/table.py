"""A comparison record as a document: the parts of a pull request's performance section, in their order.

In: `Comparison`. Out: `Document`. Out of scope: markdown and HTML (`markdown.py`, `page.py`), figures.
"""

from __future__ import annotations

from k3bench.publish.cite import At, words
from k3bench.publish.claims import claim_level_blocks, claim_observation_blocks, claim_verdict_blocks
from k3bench.publish.document import Block, Document, Part
from k3bench.publish.evidence import equality_blocks, independence_blocks, mechanism_blocks
from k3bench.publish.footer import detail_blocks, outstanding_blocks, provenance_blocks
from k3bench.publish.levels import level_blocks, observation_blocks
from k3bench.publish.verdict import verdict_blocks
from k3bench.publish.words import label
from k3bench.records.comparison import Comparison


def report(comparison: Comparison) -> Document:
    """The whole report. Everything that is visible comes before what is folded away."""
    record = At(comparison)
    claim = comparison.kind == "reported" and comparison.reported is not None
    name = label(comparison.metric)
    parts: tuple[tuple[str, str, tuple[Block, ...]], ...] = (
        ("verdict", "", claim_verdict_blocks(record) if claim else verdict_blocks(record)),
        ("levels", f"{name} by concurrency", claim_level_blocks(record) if claim else level_blocks(record)),
        (
            "observations",
            "Observations and agreement",
            claim_observation_blocks(record) if claim else observation_blocks(record),
        ),
        ("mechanism", "Mechanism: overlap in the trace", mechanism_blocks(record)),
        ("equality", "Equality of results", equality_blocks(record)),
        ("independence", "What is not independent", independence_blocks(record)),
        ("outstanding", "Outstanding", outstanding_blocks(record)),
        ("provenance", "Provenance", provenance_blocks(record, comparison.digest())),
        ("details", "Details", detail_blocks(record)),
    )
    note = " (simulated)" if comparison.simulated else ""
    return Document(
        name=comparison.campaign,
        title=_title(record),
        digest=comparison.digest(),
        parts=tuple(Part(anchor, heading and heading + note, blocks) for anchor, heading, blocks in parts),
    )


def _title(record: At) -> str:
    kind = "Simulated" if record.simulated.raw else "Reported" if record.kind.raw == "reported" else "Measured"
    return f"{kind} decode performance: {words(record.title)}"
