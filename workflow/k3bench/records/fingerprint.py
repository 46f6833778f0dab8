"""What a machine was when something was measured on it: the part that may not change, and the part that moves.

In: plain data. Out: a validated `Fingerprint`. Out of scope: reading the machine (`k3bench.fingerprint`).
What could not be read is null, and `absent` says why: null is never zero.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Finite, Grown, Model, Record
from k3bench.records.measurement import Instant

#: What identifies an allocation; nothing else of Slurm's environment is ever written down.
SLURM_IDENTITY = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_PARTITION",
    "SLURM_RESTART_COUNT",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURMD_NODENAME",
)
Count = Annotated[int, Field(ge=0)]


class Host(Grown):
    """The node and its processor. `boot` is what Linux draws anew each time it starts."""

    ADDED: ClassVar[tuple[str, ...]] = ("boot",)

    name: str
    system: str
    kernel: str
    machine: str
    cpu_model: str | None
    cpu_count: Count
    cpus_usable: Count
    governors: tuple[str, ...] | None
    memory_mb: Count | None
    boot: str = ""


class Gpu(Model):
    """One visible GPU, as NVML names it."""

    index: Count
    name: str | None
    uuid: str | None
    memory_mb: Count | None
    power_limit_w: Finite | None
    max_sm_clock_mhz: Count | None
    max_memory_clock_mhz: Count | None


class Repository(Model):
    """The code it ran from. `dirty_digest` is the sha256 of everything that differs from the commit."""

    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    dirty: bool
    dirty_digest: Digest | None


class RankPlace(Model):
    """Where one rank of a distributed model ran: `host` as Slurm names the node, `slurm` its own proof of the rack."""

    index: Count
    local_rank: Count
    host: str
    device: str = "cpu"
    gpu: str | None = None
    gpu_uuid: str | None = None
    slurm: dict[str, str]


class Stable(Grown):
    """What must be equal before and after, and between the arms of a pair, apart from the declared change.

    `ranks` is there for distributed models only.
    """

    ADDED: ClassVar[tuple[str, ...]] = ("ranks",)

    host: Host
    device: str
    gpus: tuple[Gpu, ...]
    driver: str | None
    cuda_driver: str | None
    python: str
    packages: dict[str, str | None]
    repository: Repository | None
    environment: dict[str, str]
    slurm: dict[str, str]
    ranks: tuple[RankPlace, ...] = ()


class GpuState(Model):
    """What moves on a GPU. Violation counters grow by the time the clocks were held down."""

    index: Count
    sm_clock_mhz: Count | None
    memory_clock_mhz: Count | None
    power_w: Finite | None
    temperature_c: Count | None
    throttle_reasons: tuple[str, ...] | None
    power_violation_ns: Count | None
    thermal_violation_ns: Count | None

    @property
    def idle(self) -> bool:
        """Clocks of an idle GPU are low because nobody asked for more; they say nothing about a run."""
        return self.throttle_reasons is not None and "gpu_idle" in self.throttle_reasons


class Moving(Model):
    """What changes by itself."""

    gpus: tuple[GpuState, ...]
    cpu_mhz_low: Finite | None
    cpu_mhz_high: Finite | None
    load_1min: Finite | None
    memory_available_mb: Count | None


class Fingerprint(Record):
    """One look at the machine."""

    SCHEMA: ClassVar[str] = "k3bench.fingerprint/1"
    schema_: Literal["k3bench.fingerprint/1"] = Field(default="k3bench.fingerprint/1", alias="schema")
    taken: Instant
    stable: Stable
    moving: Moving
    absent: dict[str, str]


class Difference(Model):
    """One field that differs, by its dotted name."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field}: {self.before} -> {self.after}"
