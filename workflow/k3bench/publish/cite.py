"""Numbers with their origin: a field of the comparison record in, marked text out. The only place that rounds.

Out of scope: sentences. A field that is None becomes a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from k3bench.publish.spans import foreign, value

DASH = "–"
MINUS = "−"


@dataclass(frozen=True)
class At:
    """A place in a record: what stands there (`raw`) and how to get there (`path`). Follows attributes and indices."""

    raw: Any
    path: str = ""

    def __getattr__(self, name: str) -> At:
        if name.startswith("__"):
            raise AttributeError(name)
        return At(getattr(self.raw, name), f"{self.path}.{name}" if self.path else name)

    def __getitem__(self, key: int | str) -> At:
        return At(self.raw[key], f"{self.path}[{key}]")

    def __iter__(self) -> Iterator[At]:
        return (self[i] for i in range(len(self.raw)))

    def items(self) -> Iterator[tuple[str, At]]:
        """Entries of a mapping in key order."""
        return ((key, self[key]) for key in sorted(self.raw))

    def __len__(self) -> int:
        return len(self.raw)

    def __bool__(self) -> bool:
        """False for a field that holds nothing: None, an empty list, False."""
        return self.raw is not None and self.raw is not False and self.raw != ()


def _number(at: At, pattern: str) -> str:
    if at.raw is None:
        return DASH
    text = format(at.raw, pattern)
    if float(text) == 0:
        text = text.replace("-", "+" if "+" in pattern else "")
    return value(text.replace("-", MINUS), at.path)


def fixed(at: At, decimals: int) -> str:
    """A plain number with that many decimals."""
    return _number(at, f".{decimals}f")


def ms(at: At) -> str:
    """A time or rate as the main table prints it: four decimals, fewer where the number is long."""
    return _number(at, ".4f" if at.raw is None or abs(at.raw) < 1000 else ".1f")


def delta(at: At, decimals: int = 2) -> str:
    """A change in percent, its sign always shown."""
    return _number(at, f"+.{decimals}f")


def size(at: At, decimals: int = 2) -> str:
    """A change in percent without its sign, for sentences that name the direction."""
    return DASH if at.raw is None else value(format(abs(at.raw), f".{decimals}f"), at.path)


def percent(at: At, decimals: int = 2) -> str:
    """A number that is a percentage already, or a share 0..1 given by `share`."""
    return _number(at, f".{decimals}f")


def share(at: At, decimals: int = 0) -> str:
    """A share between 0 and 1 (or a small log-ratio) as percent; a share too small to show is not shown as none."""
    if at.raw is None:
        return DASH
    text = f"{100 * at.raw:.{decimals}f}"
    return value("< 1" if at.raw > 0 and decimals == 0 and text == "0" else text, at.path)


def short(at: At) -> str:
    """The shortest form that gives the number back: margins, published figures, counts."""
    if at.raw is None:
        return DASH
    text = repr(at.raw) if not float(at.raw).is_integer() else str(int(at.raw))
    return value(text.replace("-", MINUS), at.path)


def published(at: At) -> str:
    """A published change, as short as it was published, its sign always shown."""
    if at.raw is None:
        return DASH
    return value(f"{at.raw:+}".replace("-", MINUS), at.path)


def interval(at: At, decimals: int = 2) -> str:
    """Both bounds of a change in percent."""
    if at.raw is None:
        return DASH
    return f"{delta(at.low_pct, decimals)} to {delta(at.high_pct, decimals)}"


def p_value(at: At) -> str:
    """`p = 0.026`, or `p < 0.001`."""
    if at.raw is None:
        return f"p {DASH}"
    if at.raw < 0.001:
        return f"p {value('< 0.001', at.path)}"
    return f"p = {p_number(at)}"


def p_number(at: At) -> str:
    """A probability with two significant digits."""
    if at.raw is None:
        return DASH
    if at.raw < 0.001:
        return value("< 0.001", at.path)
    return value(f"{at.raw:.2f}" if at.raw >= 0.1 else f"{at.raw:.2g}", at.path)


def count(at: At) -> str:
    """A whole number."""
    return DASH if at.raw is None else value(str(int(at.raw)), at.path)


def tally(rows: At, indices: Sequence[int]) -> str:
    """How many of a list's entries: the citation names each entry that is counted."""
    return value(str(len(indices)), f"{rows.path}[{','.join(map(str, indices))}]#")


def entry(mapping: At, key: str) -> str:
    """A count in a mapping where a missing key means none."""
    return value(str(mapping.raw.get(key, 0)), f"{mapping.path}[{key}]")


def words(at: At) -> str:
    """Text of the record that we did not write."""
    return DASH if at.raw in (None, "") else foreign(str(at.raw))
