"""The metric dictionary (`dictionary.yaml`) in; for an object of a known format: our metrics, and why the rest is null.

A word of another tool is one of our metrics only by formula, denominator, statistic and percentile rule, never by name.
Out of scope: facts that are no metric (readers), validity (`gate.py`, `requests.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from k3bench.errors import RecordError
from k3bench.imports.foreign import Fields
from k3bench.records.base import Model, Name, first_problem

Statistic = Literal["median", "mean", "p99", "max", "single"]
Percentile = Literal["linear", "upper_middle", "compressed", "none"]
Over = Literal["requests", "tokens", "chunks", "run"]

#: Foreign unit -> (our unit, factor). A unit that is not here is refused, never guessed.
UNITS: Mapping[str, tuple[str, float]] = {
    "ns": ("ms", 1e-6),
    "us": ("ms", 1e-3),
    "ms": ("ms", 1.0),
    "s": ("ms", 1e3),
    "sec": ("ms", 1e3),
    "seconds": ("ms", 1e3),
    "tok/s": ("tok/s", 1.0),
    "tokens/sec": ("tok/s", 1.0),
}
#: ms and tokens/s of anything that was ever measured lie between these.
MIN_VALUE, MAX_VALUE = 1e-9, 1e12


class Definition(Model):
    """What a number is: two numbers may be compared only if all of this is the same."""

    formula: Name
    over: Over
    statistic: Statistic
    percentile: Percentile = "none"


class Our(Definition):
    """One of our metrics."""

    unit: str


class Word(Definition):
    """One foreign word. `is_` names the metric it is, `resembles` the one it is often taken for."""

    word: str
    unit: str
    is_: Name | None = Field(default=None, alias="is")
    near: str | None = None
    resembles: Name | None = None
    why: str | None = None
    source: Literal["summary", "records"] = Field(default="summary", alias="from")


class Detect(Model):
    """By which paths an object is known: all of `has` and, if given, one of `any`."""

    has: tuple[str, ...] = ()
    any: tuple[str, ...] = ()


class Format(Model):
    """One foreign format. `refuse` says why a known format is no serving result."""

    tool: Name
    detect: Detect
    reader: Name | None = None
    refuse: str | None = None
    lines: Literal["one", "each"] = "each"
    token_source: Name = "unknown"
    facts: dict[Name, str] = {}
    words: tuple[Word, ...] = ()
    more: tuple[Word, ...] = ()

    @property
    def all_words(self) -> tuple[Word, ...]:
        """The shared words and the format's own."""
        return self.words + self.more


class Dictionary(Model):
    """All formats, in the order in which they are tried."""

    formulas: dict[Name, str]
    ours: dict[Name, Our]
    token_sources: dict[Name, str]
    shared: dict[Name, tuple[Word, ...] | dict[Name, str]] = {}
    formats: dict[Name, Format]

    @model_validator(mode="after")
    def _only_like_with_like(self) -> Self:
        for name, entry in self.formats.items():
            for word in entry.all_words:
                problem = self._problem(word)
                if problem:
                    raise ValueError(f"{name}: {word.word}: {problem}")
            if entry.token_source not in self.token_sources:
                raise ValueError(f"{name}: token source {entry.token_source} has no meaning")
        return self

    def _problem(self, word: Word) -> str | None:
        if word.formula not in self.formulas:
            return f"formula {word.formula} is not explained"
        target = word.is_ or word.resembles
        if target not in self.ours:
            return f"{target} is none of our metrics"
        if word.is_ is None:
            return None if word.why else "resembles, but not why it is another"
        ours = self.ours[word.is_]
        differs = [f for f in Definition.model_fields if getattr(ours, f) != getattr(word, f)]
        if differs and word.near is None:
            return f"is no {word.is_}: {', '.join(differs)} differ"
        return None


def parse_dictionary(text: str, *, where: str) -> Dictionary:
    """Read and check a dictionary. Raises `RecordError` for a word that claims to be what it is not."""
    try:
        return Dictionary.model_validate_json(json.dumps(yaml.safe_load(text)), strict=True)
    except ValidationError as error:
        raise RecordError(first_problem(error), where=where, fix="state formula, over, statistic, percentile") from None


@cache
def dictionary() -> Dictionary:
    """The dictionary that comes with k3bench."""
    path = resources.files("k3bench.imports").joinpath("dictionary.yaml")
    return parse_dictionary(path.read_text(encoding="utf-8"), where="dictionary.yaml")


def convert(value: float, unit: str, where: str) -> tuple[str, float]:
    """A value in our unit. Raises `RecordError` for a unit that is not known."""
    if unit not in UNITS:
        known = ", ".join(UNITS)
        raise RecordError(f"unit {unit[:40]!r} is not known", where=where, fix=f"known units: {known}")
    ours, factor = UNITS[unit]
    if value and not MIN_VALUE <= abs(value * factor) <= MAX_VALUE:
        raise RecordError(f"{value:g} {unit} is no measured value", where=where, fix="restore the file")
    return ours, value * factor


def words_found(fields: Fields, entry: Format) -> Iterator[tuple[Word, float]]:
    """The summary words that are one of our metrics and that the object holds, in our unit."""
    for word in entry.all_words:
        if word.is_ is None or word.source == "records":
            continue
        value = fields.number(word.word)
        if value is not None:
            unit, number = convert(value, _unit(word, fields), f"{fields.where}: {word.word}")
            if unit != dictionary().ours[word.is_].unit:
                raise RecordError(f"in {unit}, not a unit of {word.is_}", where=f"{fields.where}: {word.word}")
            yield word, number


def _unit(word: Word, fields: Fields) -> str:
    if word.unit != "stored":
        return word.unit
    return fields.text(word.word.rpartition("/")[0] + "/unit") or "(none)"


def why_null(metric: str, fields: Fields, entry: Format) -> str:
    """Why an object of this format does not give a metric: what it has instead, or what it lacks."""
    instead = [
        f"{w.word} is another quantity: {w.why}"
        for w in entry.all_words
        if w.resembles == metric and (fields.get(w.word) is not None or w.source == "records")
    ]
    asked = [w.word for w in entry.all_words if w.is_ == metric]
    absent = f"the file has no {' or '.join(asked)}" if asked else "the format has no such number"
    return "; ".join([*instead] or [absent])
