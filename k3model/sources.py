"""Which sources a process runs, as one digest, so that a bench can tell that what it built is what it measures."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


@functools.cache
def source_digest() -> str:
    """sha256 over names and contents of this package's Python and JSON files, as they lie there now."""
    package, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".json")):
        total.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()
