"""What planning and building write: the plan with its drawn orders, and one record per arm made runnable."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Grown, Model, Name, Record, digest_of
from k3bench.records.builds import INSTALLED, ImageName, Inside
from k3bench.records.measurement import ARMS_OF, Arm, Order, PointName
from k3bench.records.recipe import Recipe


class PlannedBlock(Model):
    """One ABBA or BAAB block; `levels` is the order in which each of its four runs visits them."""

    number: int
    order: Order
    levels: tuple[int, ...]

    def points(self, attempt: int) -> list[PointName]:
        """The block's points in the order they are measured."""
        return [
            PointName(block=self.number, attempt=attempt, run=run, arm=arm, level=level)
            for run, arm in enumerate(ARMS_OF[self.order])
            for level in self.levels
        ]


class PlannedAllocation(Model):
    """What is submitted as one job: whole blocks of one observation."""

    id: Name
    blocks: tuple[int, ...]


class PlannedObservation(Model):
    """One rack with one build pair, or a zero-change twin of it."""

    id: Name
    rack: Name
    pair: Name
    zero_change: bool
    blocks: tuple[PlannedBlock, ...]
    allocations: tuple[PlannedAllocation, ...]

    def blocks_of(self, allocation: str) -> tuple[PlannedBlock, ...]:
        """The blocks of one allocation. Raises KeyError for a name that is not planned."""
        chosen = {a.id: a.blocks for a in self.allocations}[allocation]
        return tuple(b for b in self.blocks if b.number in chosen)

    def arm(self, arm: Arm) -> Arm:
        """Which arm's build a run of `arm` uses: a zero-change observation runs `before` on both sides."""
        return "before" if self.zero_change else arm


class PlannedProfile(Model):
    """A separate profiled run of one arm; its times are never reported."""

    observation: Name
    arm: Arm
    level: int
    tool: Literal["nsys", "kineto", "cupti"]


class Plan(Record):
    """The lock of a campaign: the resolved recipe and everything drawn from its seed, in submission order."""

    SCHEMA: ClassVar[str] = "k3bench.plan/1"
    schema_: Literal["k3bench.plan/1"] = Field(default="k3bench.plan/1", alias="schema")
    recipe: Recipe
    observations: tuple[PlannedObservation, ...]
    profiles: tuple[PlannedProfile, ...]

    def observation(self, name: str) -> PlannedObservation:
        """One observation by id. Raises KeyError for a name that is not planned."""
        return {o.id: o for o in self.observations}[name]


#: Packages whose versions can change a decode step.
VERSIONED = ("torch", "triton", "numpy")


#: What tells where a build came from and lies, but not what runs: its sources and outputs have digests of their own.
PROVENANCE = {"git_commit", "git_dirty", "repository", "ref", "merge_base", "history", "place"}


class Build(Grown, Record):
    """One arm made runnable. Holds no clock, so the same sources give the same bytes.

    `git_commit` and `git_dirty` are those of the checkout for an installed build, and the build's own commit for a git
    build. `place` is the folder below the campaign's that holds the work tree or the unpacked wheel (`tree/`), the log
    and, for a rebuilt pair, compile caches of its own (`cache/`).
    """

    ADDED: ClassVar[tuple[str, ...]] = (
        *("name", "rebuild", "place", "python_path", "repository", "ref", "merge_base", "history"),
        *("patch_digest", "dirty_digest", "wheel_digest", "image", "command", "output_digest"),
    )
    SCHEMA: ClassVar[str] = "k3bench.build/1"
    schema_: Literal["k3bench.build/1"] = Field(default="k3bench.build/1", alias="schema")
    pair: Name
    arm: Arm
    kind: Literal["installed", "git", "wheel", "image"]
    engine: Name
    preset: str
    policy: str
    environment: dict[Name, str]
    source_digest: Digest
    git_commit: str | None
    git_dirty: bool | None
    versions: dict[Name, str]
    name: Name = INSTALLED
    rebuild: bool = False
    place: Inside | None = None
    python_path: Inside | None = None
    repository: str | None = None
    ref: str | None = None
    merge_base: str | None = None
    history: str | None = None
    patch_digest: Digest | None = None
    dirty_digest: Digest | None = None
    wheel_digest: Digest | None = None
    image: ImageName | None = None
    command: tuple[str, ...] = ()
    output_digest: Digest | None = None

    @property
    def origin(self) -> str:
        """What it is made from, in a word that a table has room for: commit, wheel, image, or the digest of sources."""
        extra = "".join(
            f"+{name} {digest[:12]}"
            for name, digest in (("changes", self.dirty_digest), ("patch", self.patch_digest))
            if digest
        )
        if self.kind == "git":
            return f"{str(self.git_commit)[:12]}{extra}"
        if self.kind == "wheel":
            return f"wheel {str(self.wheel_digest)[:12]}"
        return f"image {self.source_digest[:12]}" if self.kind == "image" else f"installed {self.source_digest[:12]}"

    @property
    def identity(self) -> str:
        """Digest of what runs. The commit is provenance and not part of it: the sources have a digest of their own."""
        return digest_of(self.model_dump(mode="json", exclude=PROVENANCE))
