"""JSON schemas generated from the records, for editors and for readers in other languages. A test holds them equal."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import k3bench.records as records
from k3bench.records.base import Record
from k3bench.store import write_atomic


def record_kinds() -> Iterator[type[Record]]:
    """Every record class of `k3bench.records`, in name order of its schema id."""
    found = set()
    for module in pkgutil.iter_modules(records.__path__):
        loaded = importlib.import_module(f"k3bench.records.{module.name}")
        for value in vars(loaded).values():
            if isinstance(value, type) and issubclass(value, Record) and hasattr(value, "SCHEMA"):
                found.add(value)
    yield from sorted(found, key=lambda kind: kind.SCHEMA)


def schema_text(kind: type[Record]) -> str:
    """The schema of one record kind, as it lies in `workflow/schemas/`."""
    schema = {"$id": kind.SCHEMA, **kind.model_json_schema(by_alias=True)}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def schema_name(kind: type[Record]) -> str:
    """`k3bench.recipe/1` -> `recipe.schema.json`."""
    return kind.SCHEMA.removeprefix("k3bench.").partition("/")[0] + ".schema.json"


def write_schemas(folder: Path) -> list[Path]:
    """Write every schema; returns the paths."""
    paths = []
    for kind in record_kinds():
        path = folder / schema_name(kind)
        write_atomic(path, schema_text(kind).encode())
        paths.append(path)
    return paths
