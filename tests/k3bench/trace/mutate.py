"""Broken copies of trace files, by seed: cut off, bytes flipped, columns dropped, types swapped, values replaced."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRANGE: list[Any] = [None, "text", "", 1.5, -1, 0, 2**63 - 1, -(2**63), 2**40, b"\x00\xff", "stream 7", "1e999999999"]


def mutated(source: Path, folder: Path, seed: int) -> Path:
    """One broken copy."""
    dice = random.Random(f"{source.name} {seed}")
    sqlite = ".sqlite" in source.name
    kinds: list[Callable[[Path, Path, random.Random], Path]] = [_cut_packed, _cut, _flip]
    kinds += (
        [_sqlite_value, _sqlite_column, _sqlite_table, _sqlite_column_all]
        if sqlite
        else [_json_value, _json_key, _json_text]
    )
    return dice.choice(kinds)(source, folder, dice)


def plain(source: Path) -> bytes:
    """The unpacked content."""
    raw = source.read_bytes()
    return lzma.decompress(raw) if source.suffix == ".xz" else gzip.decompress(raw)


def _written(source: Path, folder: Path, content: bytes) -> Path:
    path = folder / ("mutated" + Path(source.stem).suffix)
    path.write_bytes(content)
    return path


def _cut_packed(source: Path, folder: Path, dice: random.Random) -> Path:
    raw = source.read_bytes()
    path = folder / ("mutated" + "".join(source.suffixes[-2:]))
    path.write_bytes(raw[: dice.randrange(len(raw))])
    return path


def _cut(source: Path, folder: Path, dice: random.Random) -> Path:
    content = plain(source)
    return _written(source, folder, content[: dice.randrange(len(content))])


def _flip(source: Path, folder: Path, dice: random.Random) -> Path:
    content = bytearray(plain(source))
    for _ in range(dice.choice([1, 8, 100])):
        content[dice.randrange(len(content))] = dice.randrange(256)
    return _written(source, folder, bytes(content))


def _sqlite(
    source: Path, folder: Path, dice: random.Random, change: Callable[[sqlite3.Connection, str, list[str]], None]
) -> Path:
    path = _written(source, folder, plain(source))
    base = sqlite3.connect(path)
    tables = [n for (n,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    likely = [
        t for t in tables if "CUPTI" in t or "GRAPH" in t or t in ("NVTX_EVENTS", "StringIds", "DIAGNOSTIC_EVENT")
    ]
    table = dice.choice(likely)
    columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
    change(base, table, columns)
    base.commit()
    base.close()
    return path


def _sqlite_value(source: Path, folder: Path, dice: random.Random) -> Path:
    def change(base: sqlite3.Connection, table: str, columns: list[str]) -> None:
        rows = [r for (r,) in base.execute(f'SELECT rowid FROM "{table}"')]
        for row in dice.sample(rows, min(len(rows), dice.choice([1, 3, 40]))):
            column = dice.choice(columns)
            try:
                base.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (dice.choice(STRANGE), row))
            except sqlite3.Error:
                continue

    return _sqlite(source, folder, dice, change)


def _sqlite_column_all(source: Path, folder: Path, dice: random.Random) -> Path:
    def change(base: sqlite3.Connection, table: str, columns: list[str]) -> None:
        try:
            base.execute(f'UPDATE "{table}" SET "{dice.choice(columns)}" = ?', (dice.choice(STRANGE),))
        except sqlite3.Error:
            base.execute(f'DELETE FROM "{table}"')

    return _sqlite(source, folder, dice, change)


def _sqlite_column(source: Path, folder: Path, dice: random.Random) -> Path:
    def change(base: sqlite3.Connection, table: str, columns: list[str]) -> None:
        try:
            base.execute(f'ALTER TABLE "{table}" DROP COLUMN "{dice.choice(columns)}"')
        except sqlite3.Error:
            base.execute(f'DROP TABLE "{table}"')

    return _sqlite(source, folder, dice, change)


def _sqlite_table(source: Path, folder: Path, dice: random.Random) -> Path:
    def change(base: sqlite3.Connection, table: str, columns: list[str]) -> None:
        base.execute(f'DROP TABLE "{table}"')
        if dice.random() < 0.5:
            query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
            base.execute(f'CREATE VIEW "{table}" AS {query}' + ", ".join(f'i AS "{c}"' for c in columns) + " FROM n")

    return _sqlite(source, folder, dice, change)


def _rows(document: Any) -> list[Any]:
    rows = document.get("traceEvents") or [*document.get("recs", ()), *document.get("nodes", ())]
    return [row for row in rows if isinstance(row, dict)]


def _json_value(source: Path, folder: Path, dice: random.Random) -> Path:
    document = json.loads(plain(source))
    for row in dice.sample(_rows(document), dice.choice([1, 3, 40])):
        place = row["args"] if row.get("args") and dice.random() < 0.5 else row
        place[dice.choice(sorted(place))] = dice.choice(
            [v for v in STRANGE if not isinstance(v, bytes)] + [[], {}, [1], True]
        )
    return _written(source, folder, json.dumps(document).encode())


def _json_key(source: Path, folder: Path, dice: random.Random) -> Path:
    document = json.loads(plain(source))
    for row in dice.sample(_rows(document), dice.choice([1, 5, 200])):
        del row[dice.choice(sorted(row))]
    if dice.random() < 0.2:
        document[dice.choice(sorted(document))] = dice.choice([None, [], {}, 5, "x"])
    return _written(source, folder, json.dumps(document).encode())


def _json_text(source: Path, folder: Path, dice: random.Random) -> Path:
    text = plain(source).decode()
    for _ in range(dice.choice([1, 5])):
        at = dice.randrange(len(text))
        text = (
            text[:at]
            + dice.choice(
                ['"', "{", "}", "]", ",", "1e999999999", "NaN", "\\u0000", "\ud83d".encode("utf-8", "replace").decode()]
            )
            + text[at:]
        )
    return _written(source, folder, text.encode())
