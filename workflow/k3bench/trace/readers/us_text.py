"""Microseconds as text to integer nanoseconds, never through floats.

In: JSON number texts. Out: int64 nanoseconds and how many had digits below one. Out of scope: which clock they are on.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np

from k3bench.trace.ops import NONE, Ints

_DOT, _COMMA = 46, 44
#: 146 years; more is no time of a trace, and expanding a larger exponent would never end
_MAX_NS = 1 << 62
_MAX_DIGITS = 19


def to_ns(texts: Sequence[msgspec.Raw]) -> tuple[Ints, int]:
    """(nanoseconds, count of texts with sub-nanosecond digits). Raises `ValueError` for what is no time."""
    if not texts:
        return NONE, 0
    joined = b",".join(texts)
    scale = _uniform_scale(np.frombuffer(joined, np.uint8), len(texts))
    if scale:
        digits = joined.replace(b".", b"") if scale == 1 else joined
        values = np.fromstring(digits.decode("ascii"), dtype=np.int64, sep=",")
        if values.max() < _MAX_NS // scale:
            return values * scale, 0
    exact = [_one(bytes(text)) for text in texts]
    return np.array([ns for ns, _ in exact], np.int64), sum(sub for _, sub in exact)


def _uniform_scale(raw: np.ndarray, n: int) -> int:
    """1 where every text has exactly three decimals, 1000 where all are whole and short enough, else 0."""
    commas, dots = np.flatnonzero(raw == _COMMA), np.flatnonzero(raw == _DOT)
    digits = int(np.count_nonzero((raw >= 48) & (raw <= 57)))
    ends = np.append(commas, len(raw))
    widths = np.diff(ends, prepend=-1) - 1
    if len(ends) != n or digits + len(dots) + len(commas) != len(raw) or widths.min() < 1 or widths.max() > 20:
        return 0
    if len(dots) == n and np.array_equal(dots + 4, ends) and widths.min() > 4:
        return 1
    return 1000 if len(dots) == 0 else 0


def _one(text: bytes) -> tuple[int, int]:
    try:
        value = Decimal(text.decode("ascii").strip('"'))
        if not value.is_finite() or not -_MAX_DIGITS <= value.adjusted() <= _MAX_DIGITS:
            raise ValueError(f"{text[:40]!r} is no time")
        thousandfold = value.scaleb(3)
        whole = thousandfold.to_integral_value()
    except (InvalidOperation, UnicodeDecodeError):
        raise ValueError(f"{text[:40]!r} is no time") from None
    if abs(whole) >= _MAX_NS:
        raise ValueError(f"{text[:40]!r} is no time")
    return int(whole), int(whole != thousandfold)
