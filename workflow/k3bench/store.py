"""Where records lie and how they get there: atomic, durable, never overwritten by other content.

In: records and a campaign folder. Out: files, records. Out of scope: what the numbers mean.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from k3bench.errors import BuildError, RecordError, StoreError
from k3bench.records.base import Record
from k3bench.records.builds import Unmade
from k3bench.records.plan import Build

R = TypeVar("R", bound=Record)

#: Nothing k3bench reads back is larger; a bigger file is not ours.
MAX_RECORD_BYTES = 256 * 1024 * 1024


def write_atomic(path: Path, data: bytes) -> None:
    """Write under a temporary name, fsync, rename, fsync the folder. Raises `StoreError` naming what to free."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(
            f"cannot write: {error.strerror or error}",
            where=str(path),
            fix="free space or make the folder writable, then start again: what is on disk stays valid",
        ) from None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_record(path: Path, record: Record) -> str:
    """Write a record in its canonical form; returns its digest."""
    write_atomic(path, record.to_bytes())
    return record.digest()


def write_once(path: Path, record: Record) -> str:
    """Write a record that may never change. The same content again is fine; other content raises `StoreError`."""
    data = record.to_bytes()
    if path.exists() and path.read_bytes() != data:
        raise StoreError(
            "a result of this name exists with other content; results are never overwritten",
            where=str(path),
            fix="measure under a new attempt number, or move the old campaign folder away",
        )
    write_atomic(path, data)
    return record.digest()


def read_record(path: Path, kind: type[R]) -> R:
    """Read and validate one record. Raises `StoreError` (not there) or `RecordError` (not a record)."""
    return kind.from_bytes(read_bytes(path), where=str(path))


def read_build(path: Path) -> Build:
    """The record of one arm made runnable. Raises `BuildError` with the reason where it could not be made."""
    data = read_bytes(path)
    if not is_unmade(data):
        return Build.from_bytes(data, where=str(path))
    unmade = Unmade.from_bytes(data, where=str(path))
    raise BuildError(
        f"build pair {unmade.pair} was not made: {unmade.reason}", fix="start again: what was not made is tried anew"
    )


def is_unmade(data: bytes) -> bool:
    """Whether these bytes say that an arm could not be made."""
    return f'"{Unmade.SCHEMA}"'.encode() in data[-200:]


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of bounded size."""
    try:
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise RecordError("larger than any record", where=str(path), fix="this is not a file k3bench wrote")
        return path.read_bytes()
    except FileNotFoundError:
        cure = "check the path; a record is written by its stage: `k3bench --help` lists the stages"
        raise StoreError("no such file", where=str(path), fix=cure) from None
    except OSError as error:
        fix = "check the path and that you may read it"
        raise StoreError(f"cannot read: {error.strerror or error}", where=str(path), fix=fix) from None


def gzip_bytes(data: bytes) -> bytes:
    """The same gzip bytes for the same data, whatever the clock says."""
    return gzip.compress(data, compresslevel=6, mtime=0)


@dataclass(frozen=True)
class CampaignFolder:
    """The one owner of file names under `results/<recipe>/` (and `results/recorded/<what>/`, which looks the same)."""

    root: Path

    @property
    def plan(self) -> Path:
        """The resolved recipe and everything drawn from its seed."""
        return self.root / "plan.json"

    @property
    def reported(self) -> Path:
        """Published or imported figures, where the campaign was not measured here."""
        return self.root / "reported.json"

    @property
    def comparison(self) -> Path:
        """The result of the compare stage."""
        return self.root / "comparison.json"

    @property
    def noise(self) -> Path:
        """What the campaign's zero-change observations showed, for later campaigns of the same setting."""
        return self.root / "noise.json"

    @property
    def report(self) -> Path:
        """The folder of generated pages, tables and figures."""
        return self.root / "report"

    @property
    def calibrations(self) -> Path:
        """What the load client adds, one record a host and set of levels."""
        return self.root / "calibrations"

    @property
    def receipt(self) -> Path:
        """MLflow ids and links of the last sync."""
        return self.root / "receipt.json"

    def build(self, pair: str, arm: str) -> Path:
        """One arm made runnable."""
        return self.root / "builds" / pair / f"{arm}.json"

    def place(self, place: str) -> Path:
        """What was made for a build: `made.json`, `build.log`, the patches, and the two folders below."""
        return self.root / "builds" / place

    def tree(self, place: str) -> Path:
        """The work tree, the unpacked wheel, or the copy of an installed package."""
        return self.place(place) / "tree"

    def cache(self, place: str) -> Path:
        """Compile caches of a rebuilt pair."""
        return self.place(place) / "cache"

    def server_config(self, arm: str) -> Path:
        """The YAML file that an arm's server is started with."""
        return self.root / "trtllm" / f"{arm}.yaml"

    def observation(self, observation: str) -> Path:
        """Everything of one observation."""
        return self.root / "observations" / observation

    def allocation(self, observation: str, allocation: str) -> Path:
        """The measure rule's output: accepted point ids and digests of one allocation."""
        return self.observation(observation) / f"{allocation}.json"

    def point(self, observation: str, point: str) -> Path:
        """One measured point; no rule's output, so that no rule can delete it."""
        return self.observation(observation) / "points" / f"{point}.json"

    def block(self, observation: str, block: str) -> Path:
        """The closing record of a block: written last, it makes the block's points count."""
        return self.observation(observation) / "blocks" / f"{block}.json"

    def raw(self, observation: str, point: str) -> Path:
        """Per-step values of one point."""
        return self.observation(observation) / "raw" / f"{point}.jsonl.gz"

    def fingerprint(self, observation: str, digest: str) -> Path:
        """The machine's state before or after a block, named by its content."""
        return self.observation(observation) / "fingerprints" / f"{digest}.json"

    def equivalence(self, observation: str) -> Path:
        """Bitwise and greedy-token evidence."""
        return self.observation(observation) / "equivalence.json"

    def traces(self, observation: str) -> Path:
        """The folder of traces of profiled runs, each with the record that makes it count."""
        return self.observation(observation) / "traces"

    def residency(self, observation: str) -> Path:
        """Residency read from the traces of the profiled runs."""
        return self.observation(observation) / "residency.json"

    def records(self, observation: str, kind: str, record: type[R]) -> Iterator[R]:
        """All records of a folder (`points`, `blocks`, `fingerprints`) in name order."""
        for path in sorted((self.observation(observation) / kind).glob("*.json")):
            yield read_record(path, record)


def recorded_campaigns(root: Path) -> dict[str, str]:
    """Name -> folder of every campaign kept under `results/recorded/`: those that hold a plan or reported figures.

    One whose name a campaign measured here has taken is left out: its report would be written over that campaign's.
    """
    found = sorted(p for name in ("plan.json", "reported.json") for p in root.glob(f"*/{name}"))
    return {
        p.parent.name: p.parent.as_posix() for p in found if not (root.parent / p.parent.name / "plan.json").exists()
    }


def summaries(root: Path) -> list[str]:
    """The files that compare begins with: plan or reported figures, and what each observation has."""
    return sorted(p.as_posix() for pattern in ("*.json", "observations/*/*.json") for p in root.glob(pattern))
