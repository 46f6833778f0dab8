"""Golden cases against the rule: a parsed cases file comes in, one row a quantity goes out.

In: `{"cases": [{id, input, expected, tolerance}]}`. Out: `Row`s with expected, got, tolerance, ok.
Out of scope: what the kinds of cases mean (`cases`), reading files, printing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from k3bench.compare.cases import compute
from k3bench.errors import StatisticsError

_NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
#: What is left of a difference when the expected value itself is printed with twelve digits.
_PRINTED = 1e-11
#: An expected 0 has no relative size.
_NOTHING = 1e-12


@dataclass(frozen=True)
class Row:
    """One quantity of one case. `got` is None where the tool knows no such quantity: that is a miss."""

    id: str
    quantity: str
    expected: Any
    got: Any
    tolerance: str
    ok: bool


def selfcheck(document: Mapping[str, Any]) -> list[Row]:
    """Every quantity of every case. A case of an unknown kind is a row that says so, not a silent pass."""
    cases = document.get("cases")
    if not isinstance(cases, list) or not cases:
        raise StatisticsError(
            "no cases in this file", where="cases", fix='a cases file holds {"cases": [{"id", "input", "expected"}]}'
        )
    return [row for case in cases for row in check_case(case)]


def check_case(case: Mapping[str, Any]) -> list[Row]:
    """The rows of one case."""
    missing = [key for key in ("id", "input", "expected") if key not in case]
    if missing:
        raise StatisticsError(f"a case without {', '.join(missing)}", where=str(case.get("id", "?")))
    name, tolerance = str(case["id"]), str(case.get("tolerance", "rel 1e-6"))
    try:
        got = compute(case["input"], case["expected"])
    except StatisticsError as error:
        return [Row(name, "(whole case)", "a result", error.what, tolerance, False)]
    leaves = list(_leaves(case["expected"], ()))
    return [row for path, value in leaves if (row := _row(name, path, value, got, tolerance)) is not None]


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield path, value


def _row(case: str, path: tuple[str, ...], expected: Any, got: Mapping[str, Any], tolerance: str) -> Row | None:
    seen = _at(got, path)
    if seen is None and isinstance(expected, str):
        return None  # prose inside a case: nothing to compute
    limit = limit_for(tolerance, path, expected)
    if path[-1] == "flags" and isinstance(expected, list) and isinstance(seen, list):
        return Row(case, ".".join(path), expected, seen, "same set", set(expected) == set(seen))
    ok = seen is None if expected is None else seen is not None and limit.holds(expected, seen)
    return Row(case, ".".join(path), expected, seen, limit.text, ok)


def _at(tree: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


@dataclass(frozen=True)
class Limit:
    """How far a number may be off: relative, absolute, or rounded to so many decimals."""

    text: str
    rel: float = 0.0
    absolute: float = 0.0

    def holds(self, expected: Any, got: Any) -> bool:
        """Numbers within the limit, sequences entry by entry, everything else equal."""
        if isinstance(expected, bool) or isinstance(got, bool) or isinstance(expected, str) or expected is None:
            return bool(expected == got)
        if isinstance(expected, (int, float)):
            return isinstance(got, (int, float)) and self._close(float(expected), float(got))
        if isinstance(expected, Sequence) and isinstance(got, Sequence) and not isinstance(got, str):
            return len(expected) == len(got) and all(self.holds(e, g) for e, g in zip(expected, got, strict=True))
        return False

    def _close(self, expected: float, got: float) -> bool:
        if math.isnan(got) or math.isinf(got):
            return False
        nothing = _NOTHING if expected == 0 and self.rel else 0.0
        return abs(expected - got) <= max(self.absolute, (self.rel + _PRINTED) * abs(expected), nothing)


def limit_for(tolerance: str, path: tuple[str, ...], expected: Any) -> Limit:
    """The limit a case's tolerance text sets for one quantity.

    Grammar: `exact`, `rel X` or `abs X`; in brackets `PM ... X` for Paule-Mandel lines; `published N decimals` for
    a group called so.
    """
    text = tolerance.strip()
    published = re.search(r"published\s+(\d+)\s+decimals", text)
    if published and path and path[0] == "published":
        return Limit(f"{published[1]} decimals", absolute=0.5000001 * 10.0 ** -int(published[1]))
    if path and path[0] == "not_the_formula":
        return Limit("as printed", absolute=_half_last_digit(expected))
    if text.startswith("exact"):
        return Limit("exact", rel=1e-9)
    first = re.search(rf"(rel|abs)\s+{_NUMBER}", text)
    kind, size = (first[1], float(first[2])) if first else ("rel", 1e-6)
    special = re.search(r"PM[^)]*", text)
    if special and kind == "rel" and any(part.startswith("PM") for part in path):
        only_tau2 = "tau2" in special[0]
        if not only_tau2 or path[-1] == "tau2":
            size = max(size, float(re.findall(_NUMBER, special[0])[-1]))
    return Limit(f"rel {size:g}", rel=size) if kind == "rel" else Limit(f"abs {size:g}", absolute=size)


def _half_last_digit(value: Any) -> float:
    """Half a unit of the last decimal shown: 8.2 stands for 8.15 to 8.25."""
    text = repr(value)
    return 0.5 * 10.0 ** -(len(text.split(".")[1]) if "." in text else 0)
