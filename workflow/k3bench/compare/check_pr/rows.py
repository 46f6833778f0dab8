"""Before/after rows of one metric, wherever a page shows them: in tables, or as two outputs of a benchmark client.

In: tables and facts. Out: `Row`s, every number as it was printed. A sweep without observation ids finds its owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from k3bench.compare.check_pr.columns import Kind, Role, delta_in, factor_in, kind_of, number_in, role_of, unit_of
from k3bench.compare.check_pr.page import Fact, Grid, Page
from k3bench.compare.published import Printed

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@dataclass(frozen=True)
class Row:
    """One before/after comparison of one metric; `factor` is a gain written as `1.05x`, either way round."""

    observation: str | None
    level: int | None
    metric: str
    before: Printed | None
    after: Printed | None
    delta: Printed | None
    job: str | None = None
    rack: str | None = None
    build: str | None = None
    factor: Printed | None = None
    #: of before and after where their headers differ; `after` is then held in the unit of `before`
    units: tuple[str, str] | None = None

    @property
    def ratio(self) -> float | None:
        """after/before from the levels, else from the delta."""
        if self.before is not None and self.after is not None and self.before.value > 0:
            return self.after.value / self.before.value
        return None if self.delta is None or self.delta.value <= -100.0 else 1.0 + self.delta.value / 100.0


def rows_of(page: Page) -> list[Row]:
    """Rows of all tables; where no table has any, of two client outputs under a before and an after heading."""
    return _merge([row for grid in page.grids for row in _rows(grid)]) or _rows_of_outputs(page.facts)


def _rows(grid: Grid) -> Iterator[Row]:
    roles = [role_of(c) for c in grid.columns]
    if not {"before", "after", "delta", "arrow"} & set(roles):
        return
    metric_of_grid = kind_of(" ".join((*grid.columns, grid.title))) or "tpot"
    roles = _of_metric(roles, grid.columns, metric_of_grid)
    units = _units(roles, grid.columns)
    for cells in grid.rows:
        at = first_cells(roles, cells)
        before, after = number_in(at.get("before", "")), number_in(at.get("after", ""))
        if "arrow" in at:
            before, after = _both(at["arrow"], before, after)
        if re.search(r"zero[- ]change|\bA/A\b", at.get("observation", ""), re.I):
            continue  # both sides are the same build: no observation of the change
        before, after = _time(before), _in_unit(_time(after), units)
        factor = factor_in(at.get("delta", ""))
        delta = None if factor else delta_in(at.get("delta", ""))
        if sum(x is not None for x in (before, after, delta)) == 0 or (
            delta is None and (before is None or after is None)
        ):
            continue
        yield Row(
            observation=_observation(at.get("observation", ""), grid.title),
            level=level_of(at.get("level", ""), grid.title),
            metric=_metric(at.get("metric", ""), metric_of_grid),
            before=before,
            after=after,
            delta=delta,
            job=_named(at.get("job", "")),
            rack=_named(at.get("rack", "")),
            build=_named(at.get("build", "")),
            factor=factor,
            units=units,
        )


def _of_metric(roles: Sequence[Role | None], columns: Sequence[str], metric: Kind) -> list[Role | None]:
    """Without the columns of other metrics, where some before, after or delta column names the table's own."""
    shown = zip(roles, columns, strict=True)
    kinds = [kind_of(c) if role in ("before", "after", "delta", "arrow") else None for role, c in shown]
    if metric not in kinds:
        return list(roles)
    return [role if kind in (None, metric) else None for role, kind in zip(roles, kinds, strict=True)]


def _units(roles: Sequence[Role | None], columns: Sequence[str]) -> tuple[str, str] | None:
    """Units of the before and the after column, where both give one and they differ."""
    if "before" not in roles or "after" not in roles:
        return None
    before, after = (unit_of(columns[roles.index(role)]) for role in ("before", "after"))
    return (before, after) if before and after and before != after else None


def _in_unit(after: Printed | None, units: tuple[str, str] | None) -> Printed | None:
    if after is None or units is None:
        return after
    scale = _SECONDS[units[1]] / _SECONDS[units[0]]
    return Printed(after.value * scale, after.half * scale)


def _time(shown: Printed | None) -> Printed | None:
    """A time is positive, or it was not shown."""
    return shown if shown is not None and shown.ends[0] > 0 else None


def _named(cell: str) -> str | None:
    """A name; None for the many ways to write that there is none."""
    return None if cell.strip().lower() in ("", "-", "--", "–", "—", "?", "n/a", "na", "null", "none", "tbd") else cell


def first_cells(roles: Sequence[Role | None], cells: Sequence[str]) -> dict[Role, str]:
    """The first cell of each role that says something: of two columns of deltas, one may hold a dash."""
    at: dict[Role, str] = {}
    for role, cell in zip(roles, cells, strict=True):
        if role is not None and (_named(at.get(role, "")) is None or role not in at):
            at[role] = cell
    return at


def _both(cell: str, before: Printed | None, after: Printed | None) -> tuple[Printed | None, Printed | None]:
    parts = re.split(r"->|→|=>", cell)
    return (number_in(parts[0]), number_in(parts[1])) if len(parts) == 2 else (before, after)


def _observation(cell: str, title: str) -> str | None:
    found = re.search(r"\d+", cell) or re.search(r"\bobs(?:ervation)?s?\s*#?(\d+)\b(?!\s*(?:and|,|-))", title, re.I)
    if found:
        return found[found.lastindex or 0]
    third = re.search(r"\b(first|second|third|fourth)\s+observation", title, re.I)
    return str(("first", "second", "third", "fourth").index(third[1].lower()) + 1) if third else (cell or None)


def level_of(cell: str, title: str) -> int | None:
    """The concurrency of a cell, or of the words above the table."""
    found = re.search(r"\d+", cell) or re.search(
        r"\b(?:c|conc|concurrency|batch size|bs)\s*(?:=|of)?\s*(\d+)", title, re.I
    )
    return int(found[found.lastindex or 0]) if found else None


def _metric(cell: str, of_grid: Kind) -> Kind:
    return (kind_of(cell) or "other") if cell else of_grid


def _merge(rows: Sequence[Row]) -> list[Row]:
    """A sweep without observation ids belongs to the observation that shows the same figures, else stands alone."""
    named = [r for r in rows if r.observation is not None]
    merged: list[Row] = []
    for row in rows:
        same = next((n for n in named if row.observation is None and _same(n, row)), None)
        if same is None:
            merged.append(row)
    owner = {_key(n): n.observation for n in named}
    loose = [r for r in merged if r.observation is None]
    parent = next((owner[_key(r)] for r in rows if r.observation is None and _key(r) in owner), None)
    fallback = parent or (str(_next_number(named)) if named and loose else None)
    return _united([r if r.observation is not None else _with_observation(r, fallback) for r in merged])


def _united(rows: Sequence[Row]) -> list[Row]:
    """One row a cell: what one table leaves out another may show; where two differ, both stay."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.observation, row.level, row.metric, *_key(row)[2:])
        seen = found.get(key)
        if seen is None:
            found[key] = row
        elif seen.delta is None or row.delta is None or seen.delta.value == row.delta.value:
            names = ("delta", "factor", "job", "rack", "build")
            found[key] = replace(seen, **{n: getattr(seen, n) or getattr(row, n) for n in names})
        elif seen.delta.half != row.delta.half:
            # the same delta printed with more and with fewer decimals: the finer one says more
            found[key] = replace(seen, delta=min(seen.delta, row.delta, key=lambda d: d.half))
        else:
            found[(*key, row.delta.value)] = row
    return list(found.values())


def _key(row: Row) -> tuple[str, int | None, float | None, float | None]:
    return (
        row.metric,
        row.level,
        None if row.before is None else row.before.value,
        None if row.after is None else row.after.value,
    )


def _same(a: Row, b: Row) -> bool:
    return _key(a) == _key(b) and a.before is not None


def _next_number(rows: Sequence[Row]) -> int:
    return 1 + max((int(r.observation) for r in rows if r.observation and r.observation.isdigit()), default=0)


def _with_observation(row: Row, observation: str | None) -> Row:
    return replace(row, observation=row.observation or observation)


def _rows_of_outputs(facts: Sequence[Fact]) -> list[Row]:
    """Benchmark clients' plain output, `Median TPOT (ms): 13.2`, once under a before heading, once under an after."""
    seen: dict[tuple[str, Kind], dict[str, Printed]] = {}
    for fact in facts:
        heading, _, name = fact.path.rpartition(".")
        role, kind, value = role_of(heading), kind_of(name), number_in(fact.value)
        typical = re.match(r"median|mean|output|(?!p\d|max|min|std)\w*\s*(tpot|itl|throughput)", name, re.I)
        if role in ("before", "after") and kind is not None and value is not None and typical:
            seen.setdefault((name.lower(), kind), {}).setdefault(role, value)
    both = [(name, kind, v["before"], v["after"]) for (name, kind), v in seen.items() if len(v) == 2]
    both.sort(key=lambda row: not row[0].startswith("median"))
    first = {kind: Row(None, None, kind, before, after, None) for _, kind, before, after in reversed(both)}
    return list(reversed(first.values()))
