"""How a recipe says what its arms run from: a git ref, a wheel, a container image, or what is installed.

In: plain data. Out: validated specs; whatever could be read as an option, a shell word or a secret is refused here.
Out of scope: making any of it (`k3bench.build`), and which arm names which build (`recipe.py`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints

from k3bench.records.base import Digest, Model, Name, Record

#: The build that every recipe has without declaring it: what this environment runs.
INSTALLED = "installed"
#: One line of text that no program takes for an option.
Path_ = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*$", max_length=1000)]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4000)]


def _one_revision(text: str) -> str:
    if ".." in text or "@{" in text:
        raise ValueError(f"{text!r} is no single revision: write a commit, a branch, a tag, or a step back (main~2)")
    return text


def _no_program_no_secret(text: str) -> str:
    address = text.partition("://")[2].partition("/")[0]
    if "::" in text:
        raise ValueError(f"{text!r} would let git run a program: write a path or an https or ssh address")
    if "@" in address and (":" in address.partition("@")[0] or text.startswith("http")):
        raise ValueError("the repository's address holds a password or token: leave it to git's credential helper")
    return text


def _stays_inside(text: str) -> str:
    if ".." in text.split("/"):
        raise ValueError(f"{text!r} leads out of the build: write a folder inside it")
    return text


#: A commit, branch, tag, or a step back from one; never a range and never an option.
Ref = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._/~^+@{}-]*$", max_length=200),
    AfterValidator(_one_revision),
]
Repository = Annotated[Path_, AfterValidator(_no_program_no_secret)]
#: A folder inside what was built.
Inside = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9._][A-Za-z0-9._/-]*$", max_length=300),
    AfterValidator(_stays_inside),
]
#: A tag can be moved; a digest cannot.
ImageName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}$", max_length=500)
]


class GitBuild(Model):
    """Sources at one full commit, in a work tree of their own, with at most one patch on top.

    `dirty: declared` takes the checkout's uncommitted changes along, by digest; otherwise they are refused.
    `command` is run in the work tree, word by word and without a shell, for at most `minutes`. `python_path` is what is
    put on PYTHONPATH.
    """

    kind: Literal["git"]
    repository: Repository = "."
    ref: Ref
    patch: Path_ | None = None
    dirty: Literal["refuse", "declared"] = "refuse"
    command: tuple[Word, ...] = ()
    minutes: Annotated[int, Field(ge=1)] = 120
    python_path: Inside = "."


class WheelBuild(Model):
    """A wheel file, known by its sha256 and unpacked into a folder of its own."""

    kind: Literal["wheel"]
    path: Path_


class ImageBuild(Model):
    """A container image by digest: recorded and handed to what starts the server, never pulled here."""

    kind: Literal["image"]
    image: ImageName


class InstalledBuild(Model):
    """What this environment runs."""

    kind: Literal["installed"] = "installed"


BuildSpec = Annotated[GitBuild | WheelBuild | ImageBuild | InstalledBuild, Field(discriminator="kind")]
#: Every kind with its record.
BUILDS: dict[str, type[Model]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(get_args(BuildSpec)[0])
}
#: Fields of what a build is made from, as the difference of two arms names them.
CODE_FIELDS = ("kind", "commit", "patch", "dirty", "wheel", "image", "command", "python_path", "sources")


class Made(Record):
    """What was made in a place, written last: a place without it was broken off. `key` is the digest of all inputs."""

    SCHEMA: ClassVar[str] = "k3bench.made/1"
    schema_: Literal["k3bench.made/1"] = Field(default="k3bench.made/1", alias="schema")
    key: Digest
    source_digest: Digest
    output_digest: Digest | None
    versions: dict[Name, str]


class Unmade(Record):
    """Stands where a build's record would: its job got no nodes, or was lost. The next start tries again."""

    SCHEMA: ClassVar[str] = "k3bench.unmade/1"
    schema_: Literal["k3bench.unmade/1"] = Field(default="k3bench.unmade/1", alias="schema")
    pair: Name
    arm: Literal["before", "after"]
    reason: str
