"""Everything of a campaign folder that MLflow will hold. In: folder, comparison, report files. Out: `Campaign`.

Out of scope: turning it into runs (`projection.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from k3bench.evidence import Evidence, read_evidence
from k3bench.publish.projected import Campaign
from k3bench.records.comparison import Comparison
from k3bench.records.measurement import Measurement
from k3bench.records.reported import Reported
from k3bench.records.residency import Residency
from k3bench.store import CampaignFolder, read_bytes, read_record


def gather(record: Comparison, root: Path, *, files: Mapping[str, bytes], note: str) -> Campaign:
    """Read the campaign's records; raw files and superseded fragments only where they are kept."""
    evidence = read_evidence(root)
    if isinstance(evidence, Reported):
        return Campaign(record, evidence, files=files, note=note)
    folder = CampaignFolder(root)
    superseded = tuple(_superseded(folder, evidence))
    return Campaign(
        record,
        evidence,
        superseded=superseded,
        raw=dict(_raw(folder, (*evidence.points, *superseded))),
        residency=dict(_residency(folder, evidence)),
        files=files,
        note=note,
    )


def _superseded(folder: CampaignFolder, evidence: Evidence) -> Iterator[Measurement]:
    """Fragments of broken blocks: kept, counted apart."""
    for allocation in evidence.allocations:
        for ref in allocation.superseded:
            path = folder.point(allocation.observation, ref.point)
            if path.exists():
                yield read_record(path, Measurement)


def _raw(folder: CampaignFolder, points: tuple[Measurement, ...]) -> Iterator[tuple[str, bytes]]:
    for point in points:
        path = folder.raw(point.observation, str(point.name))
        if path.exists():
            yield point.id, read_bytes(path)


def _residency(folder: CampaignFolder, evidence: Evidence) -> Iterator[tuple[str, Residency]]:
    for observation in evidence.plan.observations:
        path = folder.residency(observation.id)
        if path.exists():
            yield observation.id, read_record(path, Residency)
