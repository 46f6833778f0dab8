"""The publish stage: a comparison record in; out go the report's files: `pr.md`, `index.html`, the figures.

Out of scope: MLflow (`tracking.py`), which comes second, so that one that is down never costs the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import StoreError
from k3bench.publish.figures import Figure
from k3bench.publish.layers import lane_figures
from k3bench.publish.markdown import pull_request, replaced_in
from k3bench.publish.page import page
from k3bench.publish.plots import figures
from k3bench.publish.table import report
from k3bench.records.comparison import Comparison
from k3bench.store import CampaignFolder, read_bytes, read_record, write_atomic


@dataclass(frozen=True)
class Report:
    """The report's files by name. The same record gives the same bytes."""

    files: dict[str, bytes]

    @property
    def pull_request(self) -> str:
        """The section for the pull request."""
        return self.files["pr.md"].decode()


def render(record: Comparison, *, extra: tuple[Figure, ...] = ()) -> Report:
    """Everything that is shown of a record. `extra` are figures that need more than the record: lane pictures."""
    document = report(record)
    drawn = (*figures(record), *extra)
    files = {"pr.md": pull_request(document).encode(), "index.html": page(record, document, drawn)}
    for figure in drawn:
        files.update(figure.files)
    return Report(files)


def publish(comparison: Path, *, out: Path | None = None, records: Path | None = None) -> Report:
    """Write the report of a comparison file into a folder, each file whole or not at all. Returns what was written.

    `out` is `report/` beside the comparison unless named; `records` is where the traces' pictures are looked for.
    """
    out = out or comparison.parent / "report"
    record = read_record(comparison, Comparison)
    done = render(record, extra=tuple(lane_figures(record, records or records_of(comparison))))
    for name, data in sorted(done.files.items()):
        write_atomic(out / name, data)
    return done


def records_of(comparison: Path) -> Path:
    """The folder a comparison was made from: beside it, or the recorded campaign of the same name."""
    own = comparison.absolute().parent
    recorded = own.parent / "recorded" / own.name
    return own if CampaignFolder(own).plan.exists() or not recorded.exists() else recorded


def put_into(text_file: Path, record: Comparison) -> bool:
    """Put the section into a longer markdown file, in place of its older self. True if the file changed."""
    try:
        old = read_bytes(text_file).decode() if text_file.exists() else ""
    except UnicodeDecodeError:
        raise StoreError("not a text file", where=str(text_file), fix="name a markdown file") from None
    new = replaced_in(old, pull_request(report(record)), record.campaign)
    if new == old:
        return False
    write_atomic(text_file, new.encode())
    return True
