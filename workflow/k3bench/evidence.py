"""Everything a campaign folder holds, read and checked: what `compare` needs and nothing more.

In: a folder by the file contract of results/README.md. Out: frozen records. A missing file is missing evidence, not an
error; a file that lies about its content is an error. Out of scope: judging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from k3bench.errors import RecordError, StoreError
from k3bench.records.base import Record
from k3bench.records.equivalence import Equivalence
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Allocation, Block, Measurement, PointRef
from k3bench.records.noise import Noise
from k3bench.records.plan import Build, Plan
from k3bench.records.reported import Reported
from k3bench.records.residency import Residency
from k3bench.store import CampaignFolder, is_unmade, read_record


@dataclass(frozen=True)
class Evidence:
    """The records of one measured campaign. `points` are those that an allocation accepts and a block closes."""

    plan: Plan
    points: tuple[Measurement, ...]
    blocks: tuple[Block, ...]
    allocations: tuple[Allocation, ...]
    builds: tuple[Build, ...]
    fingerprints: tuple[Fingerprint, ...]
    #: by observation
    residency: Mapping[str, Residency]
    equivalence: tuple[Equivalence, ...]
    #: id of a point -> sha256 of its raw file, for those that are there
    raw: Mapping[str, str]

    def others(self) -> dict[str, Any]:
        """Everything but plan and points, by name: what `compare.campaign` takes beside them."""
        names = ("blocks", "allocations", "builds", "fingerprints", "residency", "equivalence", "raw")
        return {name: getattr(self, name) for name in names}


def read_noise(results: Path, own: Path) -> tuple[Noise, ...]:
    """The noise records of all other campaigns under `results/`; whose setting fits is not decided here."""
    paths = sorted(results.glob("*/noise.json")) + sorted(results.glob("recorded/*/noise.json"))
    found = {path.parent.name: path for path in paths if path.parent.name != own.name}
    return tuple(read_record(path, Noise) for path in found.values())


def read_evidence(root: Path) -> Evidence | Reported:
    """Read a campaign folder. Raises `StoreError` if it holds neither a plan nor reported figures."""
    folder = CampaignFolder(root)
    if folder.reported.exists():
        return read_record(folder.reported, Reported)
    if not folder.plan.exists():
        raise StoreError(
            "no campaign here: neither plan.json nor reported.json",
            where=str(root),
            fix="name a folder under results/, or run the recipe first: ./k3 run recipes/<recipe>.yaml",
        )
    plan = read_record(folder.plan, Plan)
    allocations = tuple(_allocations(folder, plan))
    blocks = tuple(b for o in plan.observations for b in folder.records(o.id, "blocks", Block))
    closed = {(b.observation, ref) for b in blocks for ref in b.points}
    points = tuple(p for a in allocations for p in _accepted_points(folder, a, closed))
    accepted = {(p.observation, p.name.block, p.name.attempt) for p in points}
    return Evidence(
        plan=plan,
        points=points,
        blocks=tuple(b for b in blocks if (b.observation, b.block, b.attempt) in accepted),
        allocations=allocations,
        builds=tuple(_builds(folder, plan)),
        fingerprints=tuple(f for o in plan.observations for f in folder.records(o.id, "fingerprints", Fingerprint)),
        residency=dict(_each(folder, plan, "residency", Residency)),
        equivalence=tuple(found for _, found in _each(folder, plan, "equivalence", Equivalence)),
        raw=dict(_raw_digests(folder, points)),
    )


def _allocations(folder: CampaignFolder, plan: Plan) -> Iterator[Allocation]:
    for observation in plan.observations:
        for allocation in observation.allocations:
            path = folder.allocation(observation.id, allocation.id)
            if path.exists():
                yield read_record(path, Allocation)


def _accepted_points(
    folder: CampaignFolder, allocation: Allocation, closed: Collection[tuple[str, PointRef]]
) -> Iterator[Measurement]:
    """The points that an allocation vouches for and a block's closing record names.

    Raises `StoreError` when one is not there, `RecordError` when one is not what was measured.
    """
    for ref in allocation.accepted:
        if (allocation.observation, ref) not in closed:
            continue
        path = folder.point(allocation.observation, ref.point)
        if not path.exists():
            raise StoreError(
                f"a point is missing that {allocation.allocation}.json of {allocation.observation} lists as measured",
                where=str(path),
                fix="restore the file, or measure its block again: k3bench measure PLAN "
                f"{allocation.observation}/{allocation.allocation}",
            )
        point = read_record(path, Measurement)
        if point.digest() != ref.digest:
            raise RecordError(
                "the point is not the one that was measured: its digest differs from the allocation's",
                where=str(path),
                fix="restore the file from a copy, or move the campaign folder away and measure again",
            )
        yield point


def _raw_digests(folder: CampaignFolder, points: Collection[Measurement]) -> Iterator[tuple[str, str]]:
    """The bytes that lie beside the points; what is in them is not read, what cannot be read is not there."""
    for point in points:
        with suppress(OSError), folder.raw(point.observation, str(point.name)).open("rb") as file:
            yield point.id, hashlib.file_digest(file, "sha256").hexdigest()


def _builds(folder: CampaignFolder, plan: Plan) -> Iterator[Build]:
    for pair in sorted({o.pair for o in plan.observations}):
        for path in (folder.build(pair, "before"), folder.build(pair, "after")):
            if path.exists() and not is_unmade(path.read_bytes()):
                yield read_record(path, Build)


R = TypeVar("R", bound=Record)


def _each(folder: CampaignFolder, plan: Plan, kind: str, record: type[R]) -> Iterator[tuple[str, R]]:
    for observation in plan.observations:
        path = folder.observation(observation.id) / f"{kind}.json"
        if path.exists():
            found = read_record(path, record)
            if getattr(found, "observation", observation.id) != observation.id:
                raise RecordError(
                    f"this is the {kind} record of another observation",
                    where=str(path),
                    fix="move it to its own folder",
                )
            yield observation.id, found
