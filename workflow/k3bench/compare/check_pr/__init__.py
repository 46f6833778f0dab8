"""Does a pull request's performance section follow from its own numbers? Text in, findings out.

In: the section as Markdown or JSON text. Out: `Finding`s: what holds, what does not follow from what is shown, what is
missing for a verdict. Nothing in the text is executed, fetched or believed; out of scope: judging the change itself.
"""

from __future__ import annotations

from k3bench.compare.check_pr.arithmetic import arithmetic
from k3bench.compare.check_pr.bands import noise_claims
from k3bench.compare.check_pr.figures import Figures, figures_of
from k3bench.compare.check_pr.finding import Finding, describe
from k3bench.compare.check_pr.mechanism import mechanism
from k3bench.compare.check_pr.page import page_of
from k3bench.compare.check_pr.sameness import missing, restatements, sameness

__all__ = ["Finding", "check_pr", "describe", "read_figures"]


def read_figures(text: str, *, where: str = "") -> Figures:
    """What the text shows. Raises `RecordError` where it holds no before/after figures at all."""
    return figures_of(page_of(text, where=where), where=where)


def check_pr(text: str, *, where: str = "") -> list[Finding]:
    """Every finding, in reading order: arithmetic, noise, mechanism, restated metrics, sameness, what is missing."""
    figures = read_figures(text, where=where)
    return [
        *arithmetic(figures),
        *noise_claims(figures),
        *mechanism(figures),
        *restatements(figures),
        *sameness(figures),
        *missing(figures),
    ]
