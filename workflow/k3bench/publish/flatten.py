"""Every number of a record under a readable name. In: a record. Out: (name, value). Out of scope: choosing among them.

A list entry is named by what tells it apart (its concurrency, observation, family, arm) and by its index otherwise, so
that a name means the same in two records of the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from k3bench.records.base import Record

#: Fields that name a list entry, in this order; the first group that is there and unique in the list is used.
NAMES = (
    ("observation", "concurrency"),
    ("concurrency",),
    ("arm", "family"),
    ("arm", "level", "rank"),
    ("family",),
    ("fork",),
    ("graph",),
    ("device",),
    ("metric", "of", "concurrency"),
    ("metric",),
    ("observation",),
    ("name",),
)
#: Large lists whose numbers are logged one by one elsewhere.
ELSEWHERE = {"runs", "inputs", "pictures"}


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Each finite number, sections by the first field: `levels/c1.ci95.low_pct`."""
    for field in type(record).model_fields:
        if field in ELSEWHERE:
            continue
        for path, value in _walk(getattr(record, field), ""):
            yield (f"{field}/{path}" if path else field), value


def _walk(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif isinstance(value, BaseModel):
        for field in type(value).model_fields:
            if field not in ELSEWHERE:
                yield from _walk(getattr(value, field), _join(path, field))
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from _walk(value[key], _join(path, str(key)))
    elif isinstance(value, tuple | list):
        for name, item in zip(_names(value), value, strict=True):
            yield from _walk(item, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names(items: tuple[object, ...] | list[object]) -> list[str]:
    for fields in NAMES:
        found = [_name(item, fields) for item in items]
        if all(found) and len(set(found)) == len(found):
            return [name for name in found if name]
    return [str(i) for i in range(len(items))]


def _name(item: object, fields: tuple[str, ...]) -> str | None:
    values = [getattr(item, field, None) for field in fields]
    if any(v is None for v in values):
        return None
    return ".".join(f"c{v}" if f == "concurrency" else str(v) for f, v in zip(fields, values, strict=True))
