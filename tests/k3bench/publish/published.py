"""The one claim that is kept with the project: the pull request's own figures, as a comparison."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from k3bench.records.comparison import Comparison

RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "pr-17103"


@functools.cache
def PR_17103() -> Comparison:  # noqa: N802 - a constant that takes time to make
    """The comparison that compare makes of the published figures."""
    from k3bench.compare.reported import reported_comparison
    from k3bench.evidence import read_evidence
    from k3bench.records.reported import Reported

    found = read_evidence(RECORDED)
    assert isinstance(found, Reported)
    return reported_comparison(found)


needs_pr_17103 = pytest.mark.skipif(not RECORDED.exists(), reason="results/recorded/pr-17103 is not in this checkout")
