"""What a reviewer reads, kept as golden files: a campaign's record beside the section and note that it must give.

A mismatch leaves a `.got` file beside the golden and shows the difference. To take the new text over after reading it:
`K3_UPDATE_GOLDENS=1 ./k3 test tests/k3bench/publish/test_golden.py`.
"""

from __future__ import annotations

import difflib
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from k3bench.publish.markdown import mlflow_note, pull_request
from k3bench.publish.page import page
from k3bench.publish.table import report
from k3bench.records.comparison import Comparison
from k3bench.store import read_record

GOLDEN = Path(__file__).parents[2] / "golden"
CASES = sorted(path.parent.name for path in GOLDEN.glob("publish-*/comparison.json"))


class Visible(HTMLParser):
    """The text of a page as it is read, a line a block, without style and script."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self.silent = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent = tag in ("style", "script")
        if tag in ("h1", "h2", "p", "li", "tr", "summary", "section", "pre"):
            self.lines.append("")
        elif tag in ("td", "th"):
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self.silent = False

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.lines[-1] += re.sub(r"\s+", " ", data)


def visible(record: Comparison) -> str:
    parser = Visible()
    parser.feed(page(record, report(record), ()).decode())
    return "\n".join(line.strip() for line in parser.lines if line.strip()) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_the_report_is_the_one_that_was_read(case: str) -> None:
    """Section, note and page text of each kept campaign are what a person read and approved."""
    record = read_record(GOLDEN / case / "comparison.json", Comparison)
    document = report(record)
    for name, text in (
        ("pr.md", pull_request(document)),
        ("note.md", mlflow_note(document, limit=7800)),
        ("page.txt", visible(record)),
    ):
        # A record that gains a field has another digest and says the same.
        _same(GOLDEN / case / name, text.replace(document.digest, "<digest>"))


def _same(golden: Path, text: str) -> None:
    if os.environ.get("K3_UPDATE_GOLDENS"):
        golden.write_text(text)
    wanted = golden.read_text() if golden.exists() else ""
    got = golden.with_name(golden.name + ".got")
    if text == wanted:
        got.unlink(missing_ok=True)
        return
    got.write_text(text)
    shown = difflib.unified_diff(wanted.splitlines(), text.splitlines(), "golden", "got", lineterm="", n=1)
    pytest.fail("\n".join(list(shown)[:60]))


def test_every_golden_has_its_provenance() -> None:
    """Each kept record says where it comes from; there is one of each kind that a reviewer may meet."""
    assert set(CASES) >= {
        "publish-zero-change", "publish-disagreement", "publish-missing", "publish-improvement", "publish-pr-17103",
    }  # fmt: skip
    for case in CASES:
        assert (GOLDEN / case / "PROVENANCE.md").read_text().strip()
