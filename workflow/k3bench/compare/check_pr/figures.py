"""What a page shows that can be held against something else it shows.

In: a `Page`. Out: `Figures`, every number as it was printed. Out of scope: whether the numbers fit each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k3bench.compare.check_pr.columns import number_in, role_of
from k3bench.compare.check_pr.evidence import Exposure, Family, Probe, exposures_in, families_in, probes_in
from k3bench.compare.check_pr.page import Grid, Page
from k3bench.compare.check_pr.rows import Row, first_cells, level_of, rows_of
from k3bench.compare.published import Printed
from k3bench.errors import RecordError

_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "eight": 8, "ten": 10}


@dataclass(frozen=True)
class Figures:
    """Everything a page shows that can be held against something else it shows."""

    rows: tuple[Row, ...]
    bands: dict[int, Printed]
    band_runs: int | None
    agreement: Printed | None
    families: tuple[Family, ...]
    exposures: tuple[Exposure, ...]
    probes: tuple[Probe, ...]
    stream_interval: int | None
    osl_tokens: int | None
    claims_no_regression: bool
    paired: bool
    prose: str

    @property
    def levels(self) -> list[int]:
        """Concurrencies with a row, lowest first."""
        return sorted({r.level for r in self.rows if r.level is not None})

    def primary(self) -> dict[str, Row]:
        """The rows of the level that most observations show, one an observation."""
        by: dict[int | None, dict[str, Row]] = {}
        for row in self.timed():
            if row.observation is not None:
                by.setdefault(row.level, {}).setdefault(row.observation, row)
        longest = max(by.values(), key=lambda rows: len(rows), default=dict[str, Row]())
        return dict(sorted(longest.items(), key=lambda item: (len(item[0]), item[0])))

    def timed(self) -> list[Row]:
        """Rows of the headline time metric."""
        return [r for r in self.rows if r.metric == "tpot"]


def figures_of(page: Page, *, where: str = "") -> Figures:
    """Read all tables and sentences. Raises `RecordError` where no row has two of before, after and delta."""
    rows = rows_of(page)
    if not rows:
        raise RecordError(
            "no before/after figures found",
            where=where,
            fix="a table needs columns such as concurrency, before, after, delta (%)",
        )
    return Figures(
        rows=tuple(rows),
        bands={level: band for grid in page.grids for level, band in _bands(grid)},
        band_runs=_band_runs(page.prose),
        agreement=_agreement(page),
        families=tuple(families_in(page.grids)),
        exposures=tuple(exposures_in(page)),
        probes=tuple(probes_in(page)),
        stream_interval=_whole(page, r"stream[ _-]?interval"),
        osl_tokens=_whole(page, r"\bosl(?:[ _]tokens)?\b|output[ _](?:len|length|tokens)"),
        claims_no_regression=re.search(r"regress(es|ed)? nothing|no regression|nothing regress", page.prose, re.I)
        is not None,
        paired=re.search(r"\bpaired\b[^.]*\bratios?\b", page.prose, re.I) is not None,
        prose=page.prose,
    )


def _bands(grid: Grid) -> Iterator[tuple[int, Printed]]:
    roles = [role_of(c) for c in grid.columns]
    if "band" not in roles:
        return
    for cells in grid.rows:
        at = first_cells(roles, cells)
        band, level = number_in(at["band"]), level_of(at.get("level", ""), grid.title)
        if band is not None and band.value > 0 and level is not None:
            yield level, band


def _band_runs(prose: str) -> int | None:
    found = re.search(
        r"\b(\d+|" + "|".join(_WORDS) + r")\s+(?:zero[- ]change|unmodified|baseline|A/A|repeat)", prose, re.I
    )
    return (_WORDS.get(found[1].lower()) or int(found[1])) if found else None


def _agreement(page: Page) -> Printed | None:
    """The smallest percentage said of agreement; the observations it is said of are found from the numbers."""
    for fact in page.facts:
        value, last = number_in(fact.value), fact.path.rpartition(".")[2]
        said = re.search(r"agree", fact.path, re.I) and re.search(r"agree\w*$|value|pct|gap", last, re.I)
        if said and value is not None and abs(value.value) < 100.0 and "between" not in last.split()[:1]:
            return value
    for sentence in re.split(r"(?<=[.;])\s|\n", page.prose):
        if re.search(r"\bagree|reproduc", sentence, re.I):
            found = re.findall(r"(\d+\.\d+)\s*%", sentence)
            if found:
                return min((Printed.parse(x) for x in found), key=lambda p: p.value)
    return None


def _whole(page: Page, pattern: str) -> int | None:
    """A whole number given for a setting, in a fact or in the prose."""
    for fact in page.facts:
        if re.search(pattern, fact.path.rpartition(".")[2], re.I) and (found := re.match(r"\D{0,3}(\d+)", fact.value)):
            return int(found[1])
    found = re.search(rf"(?:{pattern})\W{{0,4}}(?:of|is|=|:)?\s*(\d+)", page.prose, re.I)
    return int(found[1]) if found else None
