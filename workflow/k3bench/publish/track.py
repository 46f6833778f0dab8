"""The second half of publishing: records and report of a campaign -> MLflow and `receipt.json`.

In: a comparison file, the campaign's records. Out: a `Receipt`; differences; a rebuilt database. Out of scope: how
MLflow is written (`tracking.py`), the report (`stage.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from k3bench.errors import K3Error
from k3bench.evidence import Evidence
from k3bench.publish import tracking, views
from k3bench.publish.gather import gather
from k3bench.publish.layers import lane_figures
from k3bench.publish.markdown import mlflow_note
from k3bench.publish.projected import Projected
from k3bench.publish.projection import project
from k3bench.publish.stage import records_of, render
from k3bench.publish.table import report
from k3bench.publish.target import Target, target_for
from k3bench.records.comparison import Comparison
from k3bench.records.receipt import Link, Receipt, SyncedRun
from k3bench.store import CampaignFolder, read_bytes, read_record, write_record

#: MLflow cuts a note at 8,000 characters without a word.
NOTE_CHARS = 7_800
Say = Callable[[str], None]


class Wanted(NamedTuple):
    """What MLflow should hold of one campaign."""

    record: Comparison
    experiment: str
    runs: list[Projected]


def wanted(comparison: Path, records: Path) -> Wanted:
    """Read a campaign and project it."""
    record = read_record(comparison, Comparison)
    files = _report_files(comparison.parent / "report", record, records)
    note = mlflow_note(report(record), limit=NOTE_CHARS)
    campaign = gather(record, records, files=files, note=note)
    named = campaign.evidence.plan.recipe.tracking.experiment if isinstance(campaign.evidence, Evidence) else None
    return Wanted(record, named or record.campaign, project(campaign))


def _report_files(folder: Path, record: Comparison, records: Path) -> dict[str, bytes]:
    """The report on disk where it is of this very record, otherwise the same bytes rendered again."""
    section = folder / "pr.md"
    if not section.exists() or record.digest() not in read_bytes(section).decode(errors="replace"):
        return render(record, extra=tuple(lane_figures(record, records))).files
    return {path.name: read_bytes(path) for path in sorted(folder.iterdir()) if path.is_file()}


def track(comparison: Path, *, records: Path, out: Path | None = None, say: Say = print) -> Receipt:
    """Sync one campaign and write its receipt. Doing it twice changes nothing. Raises `TrackingError`."""
    target = target_for(_results(comparison))
    receipt = _sync(target, wanted(comparison, records), say)
    write_record(out or CampaignFolder(comparison.parent).receipt, receipt)
    return receipt


def _results(comparison: Path) -> Path:
    """`results/` of `results/<campaign>/comparison.json`."""
    return comparison.absolute().parent.parent


def _sync(target: Target, what: Wanted, say: Say) -> Receipt:
    with tracking.connected(target) as client:
        done = tracking.sync_with(client, target, what.experiment, what.record.campaign, what.runs)
        warnings = views.write(client, done.experiments, what.record)
    for warning in warnings:
        say(f"warning: {warning}")
    say(
        f"{what.record.campaign}: {len(done.written)} MLflow runs written, {len(done.skipped)} as they were, "
        f"{done.superseded} superseded, in {target.shown}"
    )
    return _receipt(target, what, done, tuple(warnings))


def _receipt(target: Target, what: Wanted, done: tracking.Synced, warnings: tuple[str, ...]) -> Receipt:
    return Receipt(
        campaign=what.record.campaign,
        comparison=what.record.digest(),
        tracking_uri=target.shown,
        mlflow_version=done.version,
        experiments=done.experiments,
        runs=tuple(
            SyncedRun(
                key=run.key,
                name=run.name,
                role="verdict" if run.role == "verdict" else "measurement",
                run_id=done.run_ids[run.key],
                digest=run.digest,
            )
            for run in what.runs
        ),
        superseded=done.superseded,
        links=tuple(
            Link(name=name, fragment=fragment)
            for name, fragment in views.links(done.experiments, what.record, done.run_ids)
        ),
        warnings=warnings,
    )


def check(comparison: Path, *, records: Path) -> list[str]:
    """Differences between the records and MLflow, a sentence each."""
    what = wanted(comparison, records)
    target = target_for(_results(comparison))
    return tracking.differences(target, what.experiment, what.record.campaign, what.runs)


def rebuild(results: Path, *, say: Say = print) -> list[Receipt]:
    """A new local database from every campaign under `results`; the old file is kept beside it."""
    receipts: list[Receipt] = []

    def sync_all(fresh: Target) -> None:
        for comparison in sorted(results.glob("*/comparison.json")):
            records = records_of(comparison)
            try:
                receipt = _sync(fresh, wanted(comparison, records), say)
            except K3Error as error:
                say(f"left out: {comparison.parent.name}: {error.what}")
                continue
            receipts.append(receipt.model_copy(update={"tracking_uri": target.shown}))
            write_record(CampaignFolder(comparison.parent).receipt, receipts[-1])

    target = target_for(results.absolute())
    kept = tracking.rebuild(target, sync_all)
    say(f"rebuilt {target.shown} from {len(receipts)} campaigns" + (f"; the old one is {kept}" if kept else ""))
    return receipts
