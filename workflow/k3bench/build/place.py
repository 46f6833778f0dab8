"""Inputs by digest in, a folder that holds what they make out: made once, found again, never half.

A place is named by its key. One without `made.json` was broken off and is made anew; one that was changed afterwards is
refused. Out of scope: resolving refs (`repository.py`), what a build is called and compared with (`pair.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from k3bench.build.inputs import Inputs, package_folder
from k3bench.build.repository import apply, changes_since, keep_changes, shown, tree_digest, untracked, work_tree
from k3bench.errors import BuildError, ServingError
from k3bench.records.base import digest_of
from k3bench.records.builds import BuildSpec, GitBuild, ImageBuild, Made
from k3bench.records.plan import VERSIONED
from k3bench.runnable import CACHES, PACKAGE, source_digest
from k3bench.serving.process import spawn
from k3bench.store import CampaignFolder, read_record, write_atomic, write_record

#: The largest wheel anyone builds, unpacked; more is a bomb.
MAX_WHEEL_BYTES = 64 * 1024**3


def make(folder: CampaignFolder, place: str, inputs: Inputs, *, own_caches: bool, where: str) -> Made:
    """Find or make the place. Raises `BuildError`; what a command said is in `build.log` there."""
    home, marker = folder.place(place), folder.place(place) / "made.json"
    with _alone(home):
        if marker.exists():
            made = read_record(marker, Made)
            _refuse_changed(folder, place, inputs, made, where)
            return made
        shutil.rmtree(home, ignore_errors=True)
        for name in CACHES.values() if own_caches else ():
            (folder.cache(place) / name).mkdir(parents=True)
        home.mkdir(parents=True, exist_ok=True)
        made = _MAKERS[inputs.spec.kind](folder, place, inputs, where)
        write_record(marker, made)
        return made


def _refuse_changed(folder: CampaignFolder, place: str, inputs: Inputs, made: Made, where: str) -> None:
    """What is measured later is what was built, or nothing is."""
    tree = folder.tree(place)
    changed = changes_since(tree) if inputs.source else []
    if changed or inputs.sources_in(tree) not in (None, made.source_digest):
        raise BuildError(
            f"the sources were changed after they were built{': ' if changed else ''}{shown(changed)}",
            where=f"{where}: {tree}",
            fix=f"remove the folder {folder.place(place)}: it is built again",
        )


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Two arms, or two heads, may want the same place at once: one makes it, the other finds it made."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_git(folder: CampaignFolder, place: str, inputs: Inputs, where: str) -> Made:
    spec, tree = inputs.spec, folder.tree(place)
    assert isinstance(spec, GitBuild)
    assert inputs.source is not None
    work_tree(inputs.source, tree)
    for name, patch in (("uncommitted.patch", inputs.source.changes), ("change.patch", inputs.patch)):
        if patch:
            write_atomic(folder.place(place) / name, patch)
            apply(tree, folder.place(place) / name, where=where)
    sources, output = tree_digest(tree), None
    if spec.command:
        _run_command(spec, folder, place, where)
        keep_changes(tree)
        output = _output_digest(tree)
    return _made(inputs, inputs.sources_in(tree) or sources, tree / spec.python_path, output)


def _make_wheel(folder: CampaignFolder, place: str, inputs: Inputs, where: str) -> Made:
    tree = folder.tree(place)
    tree.mkdir()
    try:
        with zipfile.ZipFile(inputs.wheel or "") as wheel:
            if sum(item.file_size for item in wheel.infolist()) > MAX_WHEEL_BYTES:
                raise BuildError("the wheel unpacks to more than any wheel holds", where=where)
            wheel.extractall(tree)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise BuildError(f"not a wheel: {error}", where=f"{where}: {inputs.wheel}", fix="name a .whl file") from None
    for libraries in [*tree.glob("*.data/purelib"), *tree.glob("*.data/platlib")]:
        shutil.copytree(libraries, tree, dirs_exist_ok=True)
    return _made(inputs, inputs.sources_in(tree) or str(inputs.wheel_digest), tree)


def _make_image(folder: CampaignFolder, place: str, inputs: Inputs, where: str) -> Made:
    """Nothing is pulled: the digest in its name says all that is known of it here."""
    return Made(key=inputs.digest, source_digest=image_digest(inputs.spec), output_digest=None, versions={})


def image_digest(spec: BuildSpec) -> str:
    """The sha256 in an image's name."""
    assert isinstance(spec, ImageBuild)
    return spec.image.rpartition(":")[2]


def _make_installed(folder: CampaignFolder, place: str, inputs: Inputs, where: str) -> Made:
    """A copy of the installed package, without what Python compiled of it; other engines have caches only."""
    if inputs.is_k3:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package_folder(), folder.tree(place) / PACKAGE, ignore=ignore)
    return _made(inputs, source_digest(package_folder()), folder.tree(place))


_MAKERS = {"git": _make_git, "wheel": _make_wheel, "image": _make_image, "installed": _make_installed}


def _made(inputs: Inputs, sources: str, first: Path, output: str | None = None) -> Made:
    return Made(key=inputs.digest, source_digest=sources, output_digest=output, versions=versions(first))


def versions(first: Path | None = None) -> dict[str, str]:
    """Versions of what can change a decode step, as a process sees them that has `first` before everything else."""
    found = {name: _version(name) for name in VERSIONED}
    for distribution in metadata.distributions(path=[str(first)]) if first else ():
        name = distribution.metadata["Name"].lower()
        found |= {name: distribution.version} if name in VERSIONED else {}
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _run_command(spec: GitBuild, folder: CampaignFolder, place: str, where: str) -> None:
    """The build's own command in its work tree; whatever it started ends with it, and it ends with this process."""
    log = folder.place(place) / "build.log"
    caches = {name: str(folder.cache(place).absolute() / sub) for name, sub in CACHES.items()}
    try:
        process = spawn(spec.command, log, caches if folder.cache(place).exists() else {}, folder.tree(place))
    except ServingError as error:
        raise BuildError(error.what, where=where, fix="check the first word of the build's command") from None
    try:
        code = process.wait(60 * spec.minutes)
    except subprocess.TimeoutExpired:
        problem = f"the build command took more than {spec.minutes} minutes"
        raise BuildError(problem, where=f"{where}: {log}", fix="raise `minutes` of the build") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code:
        said = log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        raise BuildError(
            f"the build command ended with status {code}: {said[-1] if said else '(it said nothing)'}",
            where=f"{where}: {log}",
            fix="read the log; the command runs in the work tree, word by word, without a shell",
        )


def _output_digest(tree: Path) -> str:
    """sha256 over names and contents of what the command left, apart from what Python compiles by itself."""
    total = hashlib.sha256()
    for name in (n for n in untracked(tree) if "__pycache__" not in n):
        if (tree / name).is_file():
            with (tree / name).open("rb") as file:
                total.update(digest_of([name, hashlib.file_digest(file, "sha256").hexdigest()]).encode())
    return total.hexdigest()
