"""The levels' results become the headline: the primary level's verdict, with the counts over all levels.

In: `LevelResult`s. Out: `Headline`. The primary level was named before the data; no other level can take its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from k3bench.compare.levels import words_of
from k3bench.records.comparison import Headline, LevelResult


def headline_of(levels: Sequence[LevelResult], primary: int, metric: str, n_planned: int) -> Headline:
    """A disagreement headlines no number, and nobody can say that it regresses nothing."""
    level = levels[primary]
    quiet = level.word in ("disagreement", "insufficient_replication")
    tested = [None if r.word == "disagreement" else r.non_inferior for r in levels]
    return Headline(
        word=level.word,
        concurrency=level.concurrency,
        metric=metric,
        delta_pct=None if quiet else level.delta_pct,
        ci95=None if quiet else level.ci95,
        n_observations=level.n_observations,
        n_planned=n_planned,
        agreement=level.agreement.word,
        agreement_p=level.agreement.p,
        flags=level.flags,
        n_levels=len(levels),
        levels_by_word=words_of(levels),
        n_non_inferior=sum(t is True for t in tested),
        regresses_nothing=None if any(t is None for t in tested) else all(tested),
        margin_pct=level.margin_pct,
    )
