"""Everything a comparison is made from, in one value. Only plan and points are needed."""

from __future__ import annotations

from dataclasses import dataclass

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
    residency: tuple[Residency, ...] = ()
    equivalence: tuple[Equivalence, ...] = ()
    #: noise records of earlier campaigns, of whatever setting
    noise: tuple[Noise, ...] = ()
