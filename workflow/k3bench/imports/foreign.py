"""A foreign result file in; its JSON objects out, each with the place it came from.

Sizes are bounded; text is only data. Out of scope: which format it is (`detect.py`), what numbers mean.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3bench.errors import RecordError, StoreError
from k3bench.store import read_bytes

#: A result file of a single run: thousands of requests with every chunk stay below it.
MAX_FOREIGN_BYTES = 64 * 1024 * 1024
#: More tokens or requests than any run has.
MAX_COUNT = 10**12
CURE = "write the file again: run the benchmark to its end, or copy it whole"


@dataclass(frozen=True)
class Fields:
    """A JSON object that may lie: every access checks, and every refusal names the file and the field."""

    value: dict[str, Any]
    where: str

    def get(self, path: str) -> Any:
        """The value at `a/b/0`, or at the first alternative of `a|b` that is there; None if absent."""
        for alternative in path.split("|"):
            found: Any = self.value
            for part in alternative.split("/"):
                if isinstance(found, dict):
                    found = found.get(part)
                elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                    found = found[int(part)]
                else:
                    found = None
                if found is None:
                    break
            if found is not None:
                return found
        return None

    def number(self, path: str) -> float | None:
        """A finite number, or None where there is none."""
        found = self.get(path)
        return None if found is None else finite(found, f"{self.where}: {path}")

    def count(self, path: str) -> int | None:
        """A whole number of at least 0, or None where there is none."""
        found = self.number(path)
        if found is not None and (not 0 <= found <= MAX_COUNT or found != int(found)):
            raise RecordError(f"{found:g} is no count", where=f"{self.where}: {path}", fix=CURE)
        return None if found is None else int(found)

    def text(self, path: str) -> str | None:
        """Text, or None where there is none. Bounded: a name is no novel."""
        found = self.get(path)
        if found is None or isinstance(found, str):
            return plain(found[:200]) if found else None
        return str(found)[:200] if isinstance(found, int | float) else None

    def numbers(self, path: str) -> list[float] | None:
        """A list of finite numbers, or None where there is none."""
        found = self.items(path)
        return None if found is None else [finite(x, f"{self.where}: {path}/{i}") for i, x in enumerate(found)]

    def items(self, path: str) -> list[Any] | None:
        """A list, or None where there is none."""
        found = self.get(path)
        if found is None or isinstance(found, list):
            return found
        raise RecordError(f"a {kind_of(found)}, not a list", where=f"{self.where}: {path}", fix=CURE)

    def sub(self, path: str) -> Fields | None:
        """The object at a path, or None where there is none."""
        found = self.get(path)
        return Fields(found, f"{self.where}: {path}") if isinstance(found, dict) else None


def plain(text: str) -> str:
    """Foreign text that a terminal can print: control characters are no part of a name."""
    return "".join(c if c.isprintable() else "?" for c in text)


def finite(value: Any, where: str) -> float:
    """A number of any JSON kind as a float. Raises `RecordError` for everything that is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"{kind_of(value)} {str(value)[:40]!r} is no number", where=where, fix=CURE)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise RecordError(f"{found} is no finite number", where=where, fix=CURE)
    return found


def kind_of(value: Any) -> str:
    """What JSON calls the type of a value."""
    kinds = {dict: "object", list: "list", str: "text", bool: "truth value", type(None): "null"}
    return kinds.get(type(value), "number")


@dataclass(frozen=True)
class ForeignFile:
    """One file: its base name, digest and JSON objects. `lines` says that it has one object a line."""

    name: str
    digest: str
    entries: tuple[Fields, ...]
    lines: bool


def read_foreign(path: Path) -> ForeignFile:
    """Read JSON, or one JSON object a line. Raises `RecordError` for anything else, `StoreError` without a file."""
    where = str(path)
    if path.is_dir():
        raise StoreError("it is a folder, not a file", where=where, fix="name the result files in it, one by one")
    if not path.is_file():
        raise StoreError("there is no such file", where=where, fix="name a result file of a benchmark")
    data = read_bytes(path)
    if len(data) > MAX_FOREIGN_BYTES:
        raise RecordError(
            f"{len(data) / 2**20:.0f} MiB is larger than any result file",
            where=where,
            fix="import the tool's summary file instead of its raw log",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"not text: byte {error.start} is no UTF-8", where=where, fix=CURE) from None
    if not text.strip():
        raise RecordError("the file is empty", where=where, fix=CURE)
    objects, lines = _parse(text, where)
    return ForeignFile(plain(path.name[:255]), hashlib.sha256(data).hexdigest(), tuple(objects), lines)


def _parse(text: str, where: str) -> tuple[list[Fields], bool]:
    try:
        whole = json.loads(text)
    except RecursionError:
        raise RecordError("nested too deeply for a result file", where=where, fix=CURE) from None
    except ValueError as error:
        lines = list(_lines(text, where, error))
        return lines, True
    if isinstance(whole, list) and whole and all(isinstance(x, dict) for x in whole):
        return [Fields(x, f"{where} [{i}]") for i, x in enumerate(whole)], False
    if not isinstance(whole, dict) or not whole:
        raise RecordError(
            f"the file holds a {kind_of(whole)}, not a result", where=where, fix="name a result file of a benchmark"
        )
    return [Fields(whole, where)], False


def _lines(text: str, where: str, first_error: ValueError) -> Iterator[Fields]:
    """One object a line, if the first line is one; else the file's own error."""
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    for count, (n, line) in enumerate(lines):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if count == 0:
                raise _not_json(text, where, first_error) from None
            last = "the file is cut off: " if count == len(lines) - 1 else ""
            problem = f"{last}line {n} is not JSON: {error}"[:300]
            raise RecordError(problem, where=f"{where} line {n}", fix=CURE) from None
        if not isinstance(value, dict):
            raise RecordError(f"line {n} holds a {kind_of(value)}, not a result", where=f"{where} line {n}", fix=CURE)
        yield Fields(value, f"{where} line {n}")


def _not_json(text: str, where: str, error: ValueError) -> RecordError:
    if isinstance(error, json.JSONDecodeError):
        cut = text.lstrip()[:1] in "{[" and _open_at_end(text)
        if _looks_like_csv(text):
            return RecordError("a table, not JSON", where=where, fix="import the JSON that the tool writes beside it")
        problem = "the file is cut off: its JSON does not end" if cut else "not JSON"
        return RecordError(f"{problem} (line {error.lineno}, column {error.colno}: {error.msg})", where=where, fix=CURE)
    return RecordError(f"not JSON: {str(error)[:200]}", where=where, fix=CURE)


def _looks_like_csv(text: str) -> bool:
    first = text.lstrip()[:2000].partition("\n")[0]
    return first.count(",") >= 2 and not first.startswith(("{", "["))


def _open_at_end(text: str) -> bool:
    """More brackets opened than closed, outside strings: what a file that stops in the middle looks like."""
    depth, quoted, escaped = 0, False, False
    for char in text:
        if quoted:
            quoted, escaped = escaped or char != '"', char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
    return depth > 0 or quoted
