"""Everything a comparison is made from, in one value. Only plan and points are needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from k3bench.records.equivalence import Equivalence
from k3bench.records.fingerprint import Fingerprint
from k3bench.records.measurement import Allocation, Block, Measurement
from k3bench.records.noise import Noise
from k3bench.records.plan import Build, Plan
from k3bench.records.residency import Residency


@dataclass(frozen=True)
class Inputs:
    """Every record of one campaign. Only plan and points are needed; what is not there is listed as outstanding."""

    plan: Plan
    points: tuple[Measurement, ...]
    blocks: tuple[Block, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    builds: tuple[Build, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    #: by observation
    residency: Mapping[str, Residency] = field(default_factory=dict)
    equivalence: tuple[Equivalence, ...] = ()
    #: noise records of earlier campaigns, of whatever setting
    noise: tuple[Noise, ...] = ()
    #: id of a point -> sha256 of the raw file that lies beside it; None where nobody looked
    raw: Mapping[str, str] | None = None
