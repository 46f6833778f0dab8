"""What a page shows besides times: residency by family, hidden or exposed kernels, claims of sameness.

In: tables, facts, prose. Out: `Family`, `Exposure`, `Probe`, as printed. Out of scope: whether they fit each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from k3bench.compare.check_pr.columns import number_in, role_of
from k3bench.compare.check_pr.page import Fact, Grid, Page
from k3bench.compare.published import Printed

_PASSED = re.compile(r"bit(wise|-exact|s?)?[ -]*(identical|exact|equal)|identical|exact match|\bpass", re.I)
_NOT_SHOWN = re.compile(
    r"not (yet )?(run|tested|shown|done|measured)|no (numerical )?(probe|test)|source[- ]only|from source|argued"
    r"|untested|pending|todo|skipped|outstanding|missing",
    re.I,
)


@dataclass(frozen=True)
class Family:
    """Residency of one family; shares in percent."""

    name: str
    busy_before: Printed | None = None
    residency_before: Printed | None = None
    busy_after: Printed | None = None
    residency_after: Printed | None = None
    share_after: Printed | None = None


@dataclass(frozen=True)
class Exposure:
    """A percentage of a kernel said to be hidden or exposed, and the family it is said for."""

    word: str
    percent: Printed
    family: str | None


@dataclass(frozen=True)
class Probe:
    """A claim of sameness."""

    what: str
    claim: str
    shown: bool


def families_in(grids: Sequence[Grid]) -> list[Family]:
    """Columns say busy, residency or share, before or after; a table without an arm takes it from its title."""
    seen: dict[str, dict[str, Printed]] = {}
    for grid in grids:
        roles = [role_of(c) for c in grid.columns]
        if "family" not in roles:
            continue
        for cells in grid.rows:
            name = next((_family_in(c) for r, c in zip(roles, cells, strict=True) if r == "family"), None)
            if name is not None:
                seen.setdefault(name, {}).update(_measures(grid, cells))
    return [Family(name, **values) for name, values in seen.items()]


def _measures(grid: Grid, cells: Sequence[str]) -> dict[str, Printed]:
    found = {}
    row_arm = next((_arm(c) for c in cells if _arm(c) and len(c) < 20), None)
    for column, cell in zip(grid.columns, cells, strict=True):
        what = _measure(column)
        value = number_in(cell)
        if what is None or value is None:
            continue
        arm = _arm(column) or row_arm or _arm(grid.title) or ("after" if what == "share" else "before")
        found["share_after" if what == "share" else f"{what}_{arm}"] = value
    return found


def _measure(column: str) -> str | None:
    text = column.lower().replace("_", " ")
    if "share" in text or "% of" in text or "of busy" in text or "pct" in text:
        return "share"
    if "residency" in text or "overlap" in text:
        return "residency"
    return "busy" if "busy" in text else None


def _arm(text: str) -> str | None:
    found = re.findall(r"\b(before|after|baseline|pre|post)\b", text.lower().replace("_", " "))
    if not found:
        return None
    # of several, the one nearest to the table
    return "before" if found[-1] in ("before", "baseline", "pre") else "after"


def _family_in(text: str) -> str | None:
    found = re.search(r"\b(KDA|MLA|MoE|attention|MLP)\b", text.replace("_", " "), re.I)
    return found[1].upper() if found and found[1].upper() != "MOE" else ("MoE" if found else None)


def exposures_in(page: Page) -> Iterator[Exposure]:
    seen = set()
    found = (*_exposure_cells(page.grids), *_exposure_facts(page.facts), *_exposure_prose(page.prose))
    for word, percent, family in found:
        if (word, percent.value) not in seen:
            seen.add((word, percent.value))
            yield Exposure(word, percent, family)


def _exposure_cells(grids: Sequence[Grid]) -> Iterator[tuple[str, Printed, str | None]]:
    for grid in grids:
        for column, cells in zip(grid.columns, zip(*grid.rows, strict=True), strict=True):
            word = re.search(r"hidden|exposed", column, re.I)
            for cell in cells if word else ():
                value = number_in(cell)
                if word and value is not None:
                    yield word[0].lower(), value, _family_in(column)


def _exposure_facts(facts: Sequence[Fact]) -> Iterator[tuple[str, Printed, str | None]]:
    for fact in facts:
        name = re.search(r"(hidden|exposed)", fact.path, re.I)
        value = number_in(fact.value)
        if name and value is not None and len(fact.value) < 20:
            yield name[1].lower(), value, _family_in(fact.path)


def _exposure_prose(prose: str) -> Iterator[tuple[str, Printed, str | None]]:
    pattern = r"(\d+(?:\.\d+)?)\s*%\s*(?:\w+\s){0,3}?(hidden|exposed)(?=([^.;,%\n]{0,60}))"
    for percent, word, after in re.findall(pattern, prose, re.I):
        yield word.lower(), Printed.parse(percent), _family_in(after)
    for word, between, percent in re.findall(r"(hidden|exposed)([^.;,%\n]{0,50}?)(\d+(?:\.\d+)?)\s*%", prose, re.I):
        yield word.lower(), Printed.parse(percent), _family_in(between)


def probes_in(page: Page) -> Iterator[Probe]:
    """Facts, list items and sentences that speak of forks or tokens and say whether they were compared; each once."""
    seen = set()
    for claim, whole in _claims(page):
        open_ = _NOT_SHOWN.search(whole)
        if open_ is None and _PASSED.search(whole) is None:
            continue
        for what in _probed(whole):
            if what not in seen:
                seen.add(what)
                yield Probe(what, claim, open_ is None)


def _claims(page: Page) -> Iterator[tuple[str, str]]:
    """What is said, and the same with the name it is said of."""
    for fact in page.facts:
        yield fact.value, f"{fact.path.rpartition('.')[2].replace('_', ' ')} {fact.value}"
    for sentence in re.split(r"(?<=[.;])\s|\n", page.prose):
        yield sentence, sentence.replace("_", " ")


def _probed(text: str) -> list[str]:
    numbers = "".join(re.findall(r"\bforks?[ #-]*((?:\d\s*(?:,|and|&)?\s*)+)", text, re.I))
    found = [f"fork {n}" for n in re.findall(r"\d", numbers)]
    greedy = re.search(r"\bgreedy|\btokens? (?:match|equal|identical|compar)", text, re.I)
    return [*found, "greedy tokens"] if greedy else found
