"""Every number that a report prints stands in the record, at the field it cites."""

from __future__ import annotations

import functools
import re
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
from synthetic import CASES, case

from k3bench.compare.campaign import campaign
from k3bench.compare.reported import reported_comparison
from k3bench.evidence import read_evidence
from k3bench.publish.lookup import exact
from k3bench.publish.spans import Token, tokens
from k3bench.publish.table import report
from k3bench.records.comparison import Comparison
from k3bench.records.reported import Reported
from k3bench.store import recorded_campaigns

#: Digits that our own words may hold: confidence levels, the square of r, the schema of a name.
OWN_WORDS = re.compile(r"95 % (CI|bound|interval)|90 % (CI|interval)|\(one-sided, 95 %\)|r²|K3|k3bench|\[95|step p99")


def lines_of(record: Comparison) -> list[str]:
    return [line for line in report(record).lines() if not line.startswith("./k3")]


RECORDED = recorded_campaigns(Path(__file__).parents[3] / "results" / "recorded")


def every_case() -> list[str]:
    """Synthetic cases, and every campaign that is kept with the project."""
    return [*CASES, *RECORDED]


@functools.cache
def record_of(name: str) -> Comparison:
    if name in CASES:
        return case(name)
    found = read_evidence(Path(RECORDED[name]))
    if isinstance(found, Reported):
        return reported_comparison(found)
    return campaign(found.plan, found.points, **found.others())


@pytest.mark.parametrize("name", every_case())
def test_every_cited_number_is_the_rounded_field(name: str) -> None:
    """A number in the report equals its field, rounded to the digits shown, or the field as percent."""
    record, cited = record_of(name), 0
    for line in lines_of(record):
        for token in tokens(line):
            if token.kind == "value":
                assert _says(token, exact(record, token.path)), f"{token.text!r} is not {token.path}"
                cited += 1
    assert cited > 30


@pytest.mark.parametrize("name", every_case())
def test_no_number_is_written_without_its_field(name: str) -> None:
    """Outside cited fields, names and foreign text, the report holds no digit that is not a word of ours."""
    for line in lines_of(record_of(name)):
        own = "".join(token.text for token in tokens(line) if token.kind in ("text", "bold"))
        assert not re.search(r"\d", OWN_WORDS.sub("", own)), own


def _says(token: Token, value: object) -> bool:
    if isinstance(value, str):
        return token.text == value
    text = token.text.replace("−", "-")
    if text.startswith("<"):
        bound = float(text.removeprefix("<"))
        return abs(float(value)) < bound or 100 * abs(float(value)) < bound  # type: ignore[arg-type]
    shown = Decimal(text)
    step = Decimal(1).scaleb(shown.as_tuple().exponent)  # type: ignore[arg-type]
    found = Decimal(repr(float(value)))  # type: ignore[arg-type]
    wanted = [found, abs(found), 100 * found]
    return any(abs(w.quantize(step, ROUND_HALF_EVEN) - shown) <= step / 1000 or _tie(w, shown, step) for w in wanted)


def _tie(value: Decimal, shown: Decimal, step: Decimal) -> bool:
    """Binary floats round ties by what they really are; half a step is what rounding may move at most."""
    return abs(value - shown) <= step / 2
