"""A repository and a ref in, a full commit and a work tree of it out; and how two commits are related.

Git is asked word by word, runs no hook, no helper program of a transport, and never asks for a password.
Out of scope: what is done in a work tree (`place.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import BuildError
from k3bench.records.builds import GitBuild

#: Generated folders: what a campaign writes is no change of its sources.
NOT_SOURCES = ("results", ".k3", ".snakemake")
#: A recipe that git does not keep yet, as `git status` says it: it asks for a build and is no part of one.
NEW_RECIPE = re.compile(r'\?\? "?recipes/')
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never")
#: Fetching a large repository for the first time takes its time; everything else is quick.
_LIMIT_S, _FETCH_LIMIT_S = 300, 3600


@dataclass(frozen=True)
class Source:
    """One commit, where git can be asked about it, and uncommitted changes that were declared (else empty)."""

    repository: Path
    commit: str
    changes: bytes = b""


def resolve(spec: GitBuild, *, base: Path, mirrors: Path, where: str) -> Source:
    """The full commit that the ref names now. Raises `BuildError`, also for uncommitted changes nobody declared."""
    remote = is_remote(spec.repository)
    repository = _mirror(spec.repository, mirrors, where) if remote else (base / spec.repository)
    if not repository.is_dir():
        fix = "name a folder with a git repository, or an https or ssh address"
        raise BuildError("there is no repository", where=f"{where}: {repository}", fix=fix)
    try:
        commit = git(repository, *resolve_words(spec.ref))
    except BuildError:
        raise BuildError(
            f"{spec.ref!r} names no commit of {spec.repository}", where=where, fix=f"choose from: {_refs(repository)}"
        ) from None
    changes = b"" if remote else _uncommitted(spec, repository, commit, where)
    return Source(repository, commit, changes)


def is_remote(repository: str) -> bool:
    """An address rather than a folder."""
    return re.match(r"[a-z+]+://|[^/]+@[^/:]+:", repository) is not None


def mirror_of(address: str, mirrors: Path) -> Path:
    """Where the copy of a remote repository lies."""
    return mirrors / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.git"


def command(folder: Path, *words: str) -> list[str]:
    """Git in a folder, without hooks and helpers."""
    return ["git", *_SAFE, "-C", str(folder), *words]


def clone_words(address: str, folder: Path) -> tuple[str, ...]:
    """A bare copy of everything."""
    return ("clone", "--quiet", "--mirror", "--", address, str(folder))


def resolve_words(ref: str) -> tuple[str, ...]:
    """The commit that a ref names."""
    return ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")


def checkout_words(tree: Path, commit: str) -> tuple[str, ...]:
    """A work tree of its own."""
    return ("worktree", "add", "--quiet", "--force", "--detach", str(tree.absolute()), commit)


def _refs(repository: Path) -> str:
    try:
        told = git(repository, "for-each-ref", "--format=%(refname:short)", "--count=12", "--sort=-committerdate")
    except BuildError as error:
        return f"(git: {error.what})"
    return ", ".join(told.split()) or "(it has no branch and no tag)"


def _mirror(address: str, mirrors: Path, where: str) -> Path:
    """A bare copy of a remote repository, fetched anew each time a ref is resolved."""
    folder = mirror_of(address, mirrors)
    try:
        if (folder / "HEAD").exists():
            git(folder, "remote", "update", "--prune", limit_s=_FETCH_LIMIT_S)
        else:
            mirrors.mkdir(parents=True, exist_ok=True)
            git(mirrors, *clone_words(address, folder), limit_s=_FETCH_LIMIT_S)
    except BuildError as error:
        fix = "check the address and that this machine may read it; a path to a clone works too"
        raise BuildError(f"cannot fetch the repository: {error.what}", where=f"{where}: {address}", fix=fix) from None
    return folder


def _uncommitted(spec: GitBuild, repository: Path, commit: str, where: str) -> bytes:
    """What a checkout holds beyond the commit it stands at. Another or a full commit means none of it."""
    if spec.ref.lower() == commit and spec.dirty == "refuse":
        return b""
    at_head = _ask(repository, "rev-parse", "--verify", "--quiet", "HEAD") == commit
    asked = ("status", "--porcelain", "--untracked-files=normal", "--", *_sources())
    names = [line for line in _ask(repository, *asked).splitlines() if not NEW_RECIPE.match(line)] if at_head else []
    if not names:
        if spec.dirty == "declared" and not at_head:
            problem = f"`dirty: declared`, but the checkout does not stand at {spec.ref!r}"
            raise BuildError(problem, where=where, fix="remove it, or name the ref that is checked out, e.g. HEAD")
        return b""
    if spec.dirty == "refuse":
        files = shown([line[3:] for line in names])
        raise BuildError(
            f"the checkout has uncommitted changes, which a build at {spec.ref!r} would leave out: {files}",
            where=f"{where}: {repository}",
            fix=f"commit them, or `ref: {commit}` leaves them out, or `dirty: declared` builds and reports them",
        )
    return _changes(repository)


def shown(names: list[str]) -> str:
    """The first few files of a list, and how many more there are."""
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest


def _changes(repository: Path) -> bytes:
    """Everything that differs from HEAD, new files included, as a patch; the checkout's own index stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(repository, "read-tree", "HEAD", env=index)
        git(repository, "add", "--all", "--", *_sources(), env=index)
        tree = git(repository, "write-tree", env=index)
        command = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "HEAD", tree)
        return _run(repository, command, limit_s=_LIMIT_S)


def _sources() -> tuple[str, ...]:
    return (":/", *(f":(exclude,top){name}" for name in NOT_SOURCES))


def work_tree(source: Source, tree: Path) -> None:
    """Check the commit out into a folder of its own; the repository's own checkout is not touched."""
    git(source.repository, "worktree", "prune")
    git(source.repository, *checkout_words(tree, source.commit))


def apply(tree: Path, patch: Path, *, where: str) -> None:
    """Put a patch on a work tree, whole or not at all."""
    try:
        git(tree, "apply", "--whitespace=nowarn", "--", str(patch.absolute()))
    except BuildError as error:
        fix = "make the patch against this very commit: git diff > change.patch"
        raise BuildError(f"the patch does not apply: {error.what}", where=f"{where}: {patch.name}", fix=fix) from None


def tree_digest(tree: Path) -> str:
    """sha256 that stands for every file of a fresh work tree with its patches, which its index keeps from now on."""
    git(tree, "add", "--all", "--", ":/")
    return hashlib.sha256(b"git tree " + git(tree, "write-tree").encode()).hexdigest()


def keep_changes(tree: Path) -> None:
    """What a build command wrote into files that git keeps belongs to the build."""
    git(tree, "add", "--update", "--", ":/")


def changes_since(tree: Path) -> list[str]:
    """Files that differ from what the work tree's index keeps."""
    return sorted(filter(None, git(tree, "diff", "--name-only", "-z", "--no-ext-diff").split("\0")))


def untracked(tree: Path) -> list[str]:
    """Files that git does not keep, ignored ones included: what a build command left."""
    return sorted(filter(None, git(tree, "ls-files", "-z", "--others", "--", ":/").split("\0")))


def relation(before: Source, after: Source) -> tuple[str, str]:
    """The commit that both arms come from, and how far each has gone since. Raises `BuildError` where there is none."""
    if before.commit == after.commit:
        return before.commit, "both arms at the same commit"
    env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(_objects(after.repository))}
    try:
        base = git(before.repository, "merge-base", before.commit, after.commit, env=env).splitlines()[0]
    except BuildError:
        raise BuildError(
            "the arms have no history in common, so no change can be named that lies between them",
            where=f"before {before.commit[:12]}, after {after.commit[:12]}",
            fix="build both arms from branches of one repository; a shallow clone needs git fetch --unshallow",
        ) from None
    span = f"{before.commit}...{after.commit}"
    ahead = git(before.repository, "rev-list", "--left-right", "--count", span, env=env).split()
    return base, _in_words(int(ahead[0]), int(ahead[1]), base)


def _in_words(n_before: int, n_after: int, base: str) -> str:
    if not n_before:
        return f"after is {_commits(n_after)} ahead of before"
    if not n_after:
        return f"after is {_commits(n_before)} behind before"
    return (
        f"the arms have gone apart at {base[:12]}: before has {_commits(n_before)} of its own, "
        f"after {_commits(n_after)}, so that the difference holds what before has alone as well"
    )


def _commits(n: int) -> str:
    return f"{n} commit{'s' if n != 1 else ''}"


def _objects(repository: Path) -> Path:
    return (repository / git(repository, "rev-parse", "--git-path", "objects")).resolve()


def _ask(repository: Path, *words: str) -> str:
    """An answer, or nothing: a bare repository has no checkout to ask about."""
    try:
        return git(repository, *words)
    except BuildError:
        return ""


def git(folder: Path, *words: str, env: Mapping[str, str] | None = None, limit_s: int = _LIMIT_S) -> str:
    """Git's answer without its last line end. Raises `BuildError` with git's own words."""
    return _run(folder, words, env=env, limit_s=limit_s).decode(errors="replace").rstrip("\n")


def _run(folder: Path, words: tuple[str, ...], *, env: Mapping[str, str] | None = None, limit_s: int) -> bytes:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    kept = {name: os.environ[name] for name in ("GIT_SSH_COMMAND", "GIT_CONFIG_GLOBAL") if name in os.environ}
    quiet = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command(folder, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=limit_s,
            env={**plain, **kept, **quiet, **(env or {})},
        )
    except OSError as error:
        raise BuildError(f"cannot run git: {error.strerror}", fix="install git and put it on PATH") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"git {words[0]} took more than {limit_s} s", where=str(folder)) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()
        raise BuildError(said[-1] if said else f"git {words[0]} failed", where=str(folder)) from None
    return done.stdout
