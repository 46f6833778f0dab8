"""Columns of a foreign sqlite file, by name, as integer arrays. A file that lies gives one clear error.

In: a plain sqlite path. Out: arrays and strings. Out of scope: what the tables mean (`nsys.py`).
"""

from __future__ import annotations

import gc
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from k3bench.errors import TraceError
from k3bench.trace.ops import Ints
from k3bench.trace.progress import Progress

_ROWS_AT_ONCE = 20_000
_DAMAGED = "export again with `nsys export --type sqlite -f true FILE.nsys-rep`, and remove the damaged file first"


class Tables:
    """The plain tables of a file. Views and virtual tables are not looked at: they could run code or never end."""

    def __init__(self, connection: sqlite3.Connection, where: str, size_bytes: int) -> None:
        self._connection, self.where = connection, where
        #: no row takes less than this, so more rows than that are a loop in a damaged file
        self._max_rows = size_bytes // 4 + 1000
        names = self._rows("SELECT name FROM sqlite_master WHERE type='table' AND sql LIKE 'CREATE TABLE%'")
        self.columns = {name: self._columns_of(name) for (name,) in names if isinstance(name, str)}

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(row[1] for row in self._rows(f"PRAGMA table_info({quoted(table)})"))

    def has(self, table: str, *columns: str) -> bool:
        """The table exists with these columns."""
        return table in self.columns and self.columns[table] >= set(columns)

    def integers(
        self, table: str, wanted: dict[str, int | None], condition: str = "", often_constant: tuple[str, ...] = ()
    ) -> dict[str, Ints]:
        """Columns as arrays. A default replaces NULL and a missing column; None means the column must be there."""
        missing = [c for c, default in wanted.items() if default is None and c not in self.columns[table]]
        if missing:
            raise self.error(f"table {table} has no column {', '.join(missing)}", _DAMAGED)
        term = {c: _term(c, default) for c, default in wanted.items() if c in self.columns[table]}
        constant = self._constants(table, {c: term[c] for c in often_constant if c in term})
        read = [c for c in term if c not in constant]
        query = f"SELECT {', '.join(term[c] for c in read)} FROM {quoted(table)} {condition}"
        flat = self._flat_integers(query, table, read)
        matrix = np.frombuffer(flat, np.int64).reshape(-1, len(read)) if flat else np.empty((0, len(read)), np.int64)
        found = {c: np.ascontiguousarray(matrix[:, i]) for i, c in enumerate(read)}
        filled = {c: constant.get(c, wanted[c]) for c in wanted if c not in found}
        return found | {c: np.full(len(matrix), value, np.int64) for c, value in filled.items()}

    def _constants(self, table: str, term: dict[str, str]) -> dict[str, int]:
        """The columns that have one value: reading them row by row would cost far more than looking for another."""
        first = self._rows(f"SELECT {', '.join(term.values())} FROM {quoted(table)} LIMIT 1") if term else []
        value = {c: v for c, v in zip(term, first[0] if first else (), strict=False) if isinstance(v, int)}
        if value and not self._any_other(table, [term[c] for c in value], list(value.values())):
            return value
        return {c: v for c, v in value.items() if not self._any_other(table, [term[c]], [v])}

    def _any_other(self, table: str, terms: list[str], values: list[int]) -> bool:
        """Some row has another value in some of the columns."""
        other = " OR ".join(f"{t} IS NOT {v}" for t, v in zip(terms, values, strict=True))
        return bool(self._rows(f"SELECT 1 FROM {quoted(table)} WHERE {other} LIMIT 1"))

    def _flat_integers(self, query: str, table: str, columns: list[str]) -> array[int]:
        flat = array("q")
        collecting = gc.isenabled()
        gc.disable()  # rows hold integers only: the collector would walk millions of tuples to find no cycle
        try:
            cursor = self._connection.execute(query)
            progress = Progress(f"reading {table}", self._last_row(table) * len(columns))
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                flat.extend(chain.from_iterable(rows))
                progress.advance_to(len(flat))
                if len(flat) > self._max_rows * len(columns):
                    raise self.error(f"table {table} does not end", _DAMAGED)
        except (TypeError, OverflowError):
            raise self.error(
                f"{self._first_non_integer(table, columns)} holds something that is no integer", _DAMAGED
            ) from None
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.error(f"the sqlite file is damaged: {error}", _DAMAGED) from None
        finally:
            if collecting:
                gc.enable()
        return flat

    def _last_row(self, table: str) -> int:
        """About how many rows there are, for a progress bar; 0 where the table has no row ids."""
        try:
            ((last,),) = self._connection.execute(f"SELECT max(rowid) FROM {quoted(table)}").fetchall()
        except sqlite3.Error:
            return 0
        return last if isinstance(last, int) else 0

    def _first_non_integer(self, table: str, columns: list[str]) -> str:
        for column in columns:
            query = f"SELECT 1 FROM {quoted(table)} WHERE typeof({quoted(column)}) != 'integer' LIMIT 1"
            if self._rows(query):
                return f"column {column} of {table}"
        return f"table {table}"

    def rows(self, table: str, columns: tuple[str, ...], condition: str = "") -> list[tuple[Any, ...]]:
        """Some columns as Python values; for small tables."""
        return self._rows(f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)} {condition}")

    def strings(self) -> dict[int, str]:
        """The string table, by id."""
        if not self.has("StringIds", "id", "value"):
            return {}
        pairs = self.rows("StringIds", ("id", "value"))
        return {i: v for i, v in pairs if isinstance(i, int) and isinstance(v, str)}

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            found = self._connection.execute(query).fetchmany(self._max_rows)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            raise self.error(f"the sqlite file is damaged: {error}", _DAMAGED) from None
        return found

    def error(self, what: str, fix: str) -> TraceError:
        """A refusal that names this file."""
        return TraceError(what, where=self.where, fix=fix)


@contextmanager
def tables(path: Path, where: str) -> Iterator[Tables]:
    """Read-only, no journal, no schema tricks."""
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield Tables(connection, where, path.stat().st_size)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise TraceError(f"the sqlite file is damaged: {error}", where=where, fix=_DAMAGED) from None
    finally:
        connection.close()


def _term(column: str, default: int | None) -> str:
    return quoted(column) if default is None else f"ifnull({quoted(column)}, {default})"


def quoted(name: str) -> str:
    """An identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'
