"""Which texts of a trace may stay: kernels, API calls, ranges of the grammar. In: a text. Out: it, or "(removed)".

Out of scope: where the texts lie (`scrub.py`, `scrub_json.py`).
"""

from __future__ import annotations

import re

from k3bench.trace.families import Grammar, is_step

REMOVED = "(removed)"
#: no kernel and no API call looks like this; a path, an address or an assignment does
_TELLING = re.compile(r"(?:^|[\s\"'=(])(?:/|~/|[A-Za-z]:\\)[\w.-]+[/\\]|\w@[\w-]+\.\w|\b[A-Z][A-Z0-9_]{3,}=")


def safe_text(text: str) -> str:
    """A kernel or API name as it is; anything that tells of a place or a person is removed."""
    return REMOVED if _TELLING.search(text) else text


def range_text(text: str) -> str:
    """A range of the grammar or a step as it is, anything else removed."""
    return text if Grammar().knows(text) or is_step(text) else REMOVED
