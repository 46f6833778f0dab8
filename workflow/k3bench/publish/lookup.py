"""From a cited path back to the value in the record. In: record, path. Out: what stands there, unrounded."""

from __future__ import annotations

import re
from typing import Any

from k3bench.records.base import Record

_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[([^\]]*)\]")


def exact(record: Record, path: str) -> Any:
    """The value at a path such as `levels[0].ci95.low_pct`. A count missing from a mapping is 0.

    `equality[0,3]#` is the number of the entries named, each of which must exist.

    Raises KeyError, IndexError or AttributeError for a path that leads nowhere.
    """
    if path.endswith("]#"):
        return _counted(record, path)
    here: Any = record
    for match in _STEP.finditer(path):
        name, key = match[1], match[2]
        if name:
            here = getattr(here, name)
        elif isinstance(here, dict):
            here = here.get(key, 0)
        else:
            here = here[int(key)]
    return here


def _counted(record: Record, path: str) -> int:
    name, _, indices = path.removesuffix("]#").rpartition("[")
    rows = exact(record, name)
    return len([rows[int(i)] for i in indices.split(",") if i])
