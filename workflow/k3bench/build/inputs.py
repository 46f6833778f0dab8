"""A recipe's build in, everything that decides what it becomes out: commit, patch, wheel, image, each by digest.

Cheap and without a work tree, so that it can be asked for both arms before anything is made.
Out of scope: making it (`place.py`).
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from k3bench.build.repository import Source, resolve
from k3bench.errors import BuildError
from k3bench.records.base import digest_of
from k3bench.records.builds import BuildSpec, GitBuild, ImageBuild, WheelBuild
from k3bench.records.recipe import K3MODEL, Recipe
from k3bench.runnable import PACKAGE, source_digest
from k3bench.store import CampaignFolder

#: A change that is larger is a commit.
MAX_PATCH_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Inputs:
    """What one build is made from. `installed` is the digest of the installed k3model, for builds of that kind."""

    spec: BuildSpec
    is_k3: bool
    source: Source | None = None
    patch: bytes = b""
    wheel: Path | None = None
    wheel_digest: str | None = None
    installed: str | None = None

    @property
    def patch_digest(self) -> str | None:
        """sha256 of the patch file."""
        return _sha256(self.patch)

    @property
    def dirty_digest(self) -> str | None:
        """sha256 of the uncommitted changes that were declared."""
        return _sha256(self.source.changes) if self.source else None

    @property
    def digest(self) -> str:
        """The same inputs make the same thing, whatever name or ref led to them."""
        spec = self.spec.model_dump(mode="json", exclude={"ref", "repository", "minutes", "path", "patch", "dirty"})
        made_of = [self.patch_digest, self.dirty_digest, self.wheel_digest, self.installed]
        return digest_of([spec, self.source.commit if self.source else None, made_of, self.is_k3])

    def sources_in(self, tree: Path) -> str | None:
        """Digest of the sources of k3model in a tree; None for engines that run something else.

        Raises `BuildError` where they should be there and are not.
        """
        if not self.is_k3 or isinstance(self.spec, ImageBuild):
            return None
        home = tree / self.python_path
        if not (home / PACKAGE / "__init__.py").is_file():
            fix = "say with `python_path` in which folder of the build it lies"
            raise BuildError(f"the build holds no package {PACKAGE}", where=str(home), fix=fix)
        return source_digest(home / PACKAGE)

    @property
    def python_path(self) -> str:
        """The folder of the tree that goes on PYTHONPATH."""
        return self.spec.python_path if isinstance(self.spec, GitBuild) else "."

    @property
    def has_tree(self) -> bool:
        """Whether making it leaves a tree to run from."""
        return isinstance(self.spec, GitBuild | WheelBuild) or (self.is_k3 and self.spec.kind == "installed")


def gather(recipe: Recipe, spec: BuildSpec, *, base: Path, folder: CampaignFolder, where: str) -> Inputs:
    """Resolve and read. Raises `BuildError` for what is not there."""
    is_k3 = recipe.engine.name in K3MODEL
    if isinstance(spec, GitBuild):
        source = resolve(spec, base=base, mirrors=folder.place(".mirrors"), where=where)
        patch = _read(base / spec.patch, where) if spec.patch else b""
        return Inputs(spec, is_k3, source=source, patch=patch)
    if isinstance(spec, WheelBuild):
        wheel = base / spec.path
        return Inputs(spec, is_k3, wheel=wheel, wheel_digest=_digest_of_file(wheel, where))
    return Inputs(spec, is_k3, installed=source_digest(package_folder()) if spec.kind == "installed" else None)


def package_folder() -> Path:
    """Where the installed k3model lies."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise BuildError(f"package {PACKAGE} is not installed", fix="run ./k3 setup")
    return Path(found.origin).parent


def _read(path: Path, where: str) -> bytes:
    try:
        if path.stat().st_size > MAX_PATCH_BYTES:
            raise BuildError("larger than any patch", where=f"{where}: {path}", fix="commit it and name the commit")
        return path.read_bytes()
    except OSError as error:
        raise BuildError(
            f"cannot read the patch: {error.strerror}", where=f"{where}: {path}", fix="make it with: git diff > FILE"
        ) from None


def _digest_of_file(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        fix = "name a .whl file that this machine can read"
        raise BuildError(f"cannot read the wheel: {error.strerror}", where=f"{where}: {path}", fix=fix) from None


def _sha256(data: bytes) -> str | None:
    return hashlib.sha256(data).hexdigest() if data else None
