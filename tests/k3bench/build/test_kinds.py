"""Builds from wheels, images and what is installed, and what a recipe may not say about builds."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from k3bench.build import build_pair
from k3bench.errors import BuildError, RecipeError
from k3bench.plan import describe
from k3bench.records.plan import Plan
from k3bench.runnable import runnable
from k3bench.store import CampaignFolder

from .conftest import TWO_PAIRS

Planned = Callable[..., Plan]
IMAGE = f"registry.example/team/engine@sha256:{'a' * 64}"
OTHER_IMAGE = f"registry.example/team/engine@sha256:{'b' * 64}"
INSTALLED = {"before": "{policy: before}", "after": "{policy: after}"}
OPENAI = {
    "engine": "openai, serving: {command: [serve, --image, '{image}', --port, '{port}']}",
}


def wheel(path: Path, **files: str) -> Path:
    """A wheel file with a package k3model and what is given."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("k3model/__init__.py", "")
        for name, text in files.items():
            file.writestr(f"k3model/{name}.py", text)
        file.writestr("torch-9.9.9.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    return path


def test_a_wheel_is_known_by_its_sha256_and_unpacked_into_its_own_folder(planned: Planned, tmp_path: Path) -> None:
    """The versions it brings along are those that will be imported."""
    paths = [wheel(tmp_path / f"{n}.whl", value=f"VALUE = {n}\n") for n in (1, 2)]
    builds = {n: json.dumps({"kind": "wheel", "path": str(p)}) for n, p in zip(("old", "new"), paths, strict=True)}
    made = build_pair(planned(builds=builds), "p1", root=tmp_path / "r")
    assert [b.wheel_digest for b in made.values()] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths]
    assert made["after"].versions["torch"] == "9.9.9"
    how = runnable(made["after"], tmp_path / "r")
    assert how.folder is not None
    assert (how.folder / "k3model/value.py").read_text() == "VALUE = 2\n"
    assert how.environment["PYTHONPATH"].split(":")[0] == str(how.folder)


def test_a_file_that_is_no_wheel_is_refused(planned: Planned, tmp_path: Path) -> None:
    """Before anything is called built."""
    (tmp_path / "1.whl").write_text("hello")
    good = wheel(tmp_path / "2.whl")
    builds = {n: json.dumps({"kind": "wheel", "path": str(p)}) for n, p in (("old", tmp_path / "1.whl"), ("new", good))}
    with pytest.raises(BuildError, match="not a wheel"):
        build_pair(planned(builds=builds), "p1", root=tmp_path / "r")
    builds["old"] = json.dumps({"kind": "wheel", "path": str(tmp_path / "none.whl")})
    with pytest.raises(BuildError, match="cannot read the wheel"):
        build_pair(planned(builds=builds), "p1", root=tmp_path / "r")


def test_a_wheel_cannot_write_outside_its_folder(planned: Planned, tmp_path: Path) -> None:
    """Names in an archive are data that may lie."""
    bad = wheel(tmp_path / "1.whl")
    with zipfile.ZipFile(bad, "a") as file:
        file.writestr("../../../escaped.py", "x")
    builds = {
        "old": json.dumps({"kind": "wheel", "path": str(bad)}),
        "new": json.dumps({"kind": "wheel", "path": str(wheel(tmp_path / "2.whl", a="1"))}),
    }
    build_pair(planned(builds=builds), "p1", root=tmp_path / "r")
    assert not [p for p in tmp_path.rglob("escaped.py") if "tree" not in p.parts]


def test_an_image_is_recorded_by_digest_and_nothing_is_pulled(planned: Planned, tmp_path: Path) -> None:
    """Its digest is all that is known of it here."""
    builds = {
        "old": json.dumps({"kind": "image", "image": IMAGE}),
        "new": json.dumps({"kind": "image", "image": OTHER_IMAGE}),
    }
    made = build_pair(planned(builds=builds, **OPENAI), "p1", root=tmp_path / "r")
    assert (made["before"].image, made["before"].source_digest, made["before"].place) == (IMAGE, "a" * 64, None)
    assert made["after"].origin == f"image {'b' * 12}"
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("image", ["team/engine", "team/engine:1.2", "team/engine@sha256:abc"])
def test_an_image_without_a_digest_is_refused(planned: Planned, image: str) -> None:
    """A tag can be moved to another image while a campaign runs."""
    builds = {
        "old": json.dumps({"kind": "image", "image": image}),
        "new": json.dumps({"kind": "image", "image": IMAGE}),
    }
    with pytest.raises(RecipeError, match="image"):
        planned(builds=builds, **OPENAI)


def test_a_rebuilt_pair_of_what_is_installed_runs_a_copy_of_its_own(planned: Planned, tmp_path: Path) -> None:
    """Two pairs from equal sources, in two folders, with two sets of empty caches."""
    plan = planned(observations=TWO_PAIRS, **INSTALLED)
    made = [build_pair(plan, pair, root=tmp_path / "r") for pair in ("p1", "p2")]
    places = {str(b.place) for builds in made for b in builds.values()}
    assert [p.partition("/")[0] for p in sorted(places)] == ["p1", "p2"]
    assert len({b.source_digest for builds in made for b in builds.values()}) == 1
    for builds in made:
        how = runnable(builds["after"], tmp_path / "r")
        assert how.folder is not None
        assert (how.folder / "k3model/decode.py").exists()
        assert how.environment["TRITON_CACHE_DIR"].startswith(
            str(CampaignFolder(tmp_path / "r").place(str(builds["after"].place)))
        )
    assert made[0]["before"].identity != made[1]["before"].identity


def test_what_is_installed_and_not_rebuilt_is_left_as_it_is(planned: Planned, tmp_path: Path) -> None:
    """No folder, no variable: campaigns recorded before builds could be made keep their records."""
    made = build_pair(planned(**INSTALLED), "p1", root=tmp_path / "r")["after"]
    assert made.place is None
    assert runnable(made, tmp_path / "r").environment == {}
    assert set(json.loads(made.to_bytes())) == {
        *("arm", "engine", "environment", "git_commit", "git_dirty", "kind", "pair", "policy", "preset", "schema"),
        *("source_digest", "versions"),
    }


def test_the_plan_says_what_will_be_built(planned: Planned) -> None:
    """Before anything is."""
    text = describe(planned(builds={"old": "{kind: git, ref: main~1, patch: fix.patch}", "new": GIT}))
    assert "before from git ref main~1, patch fix.patch" in text
    assert "after from git ref HEAD" in text


GIT = "{kind: git, ref: HEAD}"
IMAGES = [json.dumps({"kind": "image", "image": image}) for image in (IMAGE, OTHER_IMAGE)]
ATTACHED = {
    "engine": "openai, serving: {endpoint: 'http://127.0.0.1:1', restart: none}",
    "before": "{policy: before}",
    "after": "{policy: after, endpoint: 'http://127.0.0.1:2'}",
}
NO_IMAGE_WORD = "openai, serving: {command: [serve, '{port}']}"
NO_BUILDS = {"before": "{policy: before}", "after": "{policy: after, build: other}"}


@pytest.mark.parametrize(
    ("parts", "said", "cure"),
    [
        (NO_BUILDS, "'other' of arm after is not known", "choose from: installed"),
        ({**INSTALLED, "builds": {"spare": GIT}}, "no arm names build 'spare'", "remove it"),
        ({"engine": "k3model", "builds": {"old": GIT, "new": GIT}}, "share one process", "k3model-served"),
        ({"builds": {"old": "{kind: git, ref: a..b}", "new": GIT}}, "no single revision", ""),
        ({"builds": {"old": "{kind: git, ref: --output=x}", "new": GIT}}, "should match pattern", ""),
        ({"builds": {"old": "{kind: git, ref: x, repository: 'ext::sh -c id'}", "new": GIT}}, "run a program", ""),
        (
            {"builds": {"old": "{kind: git, ref: x, repository: 'https://me:secret@h/r'}", "new": GIT}},
            "password or token",
            "",
        ),
        ({"builds": {"old": "{kind: git, ref: x, python_path: ../..}", "new": GIT}}, "leads out of the build", ""),
        ({"builds": {"old": f"{{kind: image, image: '{IMAGE}'}}", "new": GIT}}, "not from a container image", "git"),
        ({"engine": NO_IMAGE_WORD, "builds": {"old": IMAGES[0], "new": IMAGES[1]}}, "where {image} goes", "{image}"),
        ({**ATTACHED, "observations": TWO_PAIRS}, "runs already cannot be started from a build", "rebuild"),
        ({**INSTALLED, "extra": "declared_change: [colour]"}, "no field 'colour'", "policy"),
        (
            {**INSTALLED, "observations": "[{id: a, pair: p1, rebuild: true}, {id: b, pair: p1}]"},
            "both rebuilt and not",
            "its own name",
        ),
    ],
)
def test_a_recipe_that_could_never_be_built_is_refused_by_line(
    planned: Planned, parts: dict[str, object], said: str, cure: str
) -> None:
    """Before a plan is drawn, with the choices there are, and without repeating a secret."""
    with pytest.raises(RecipeError) as refused:
        planned(**parts)
    assert said in str(refused.value)
    assert cure in refused.value.fix
    assert refused.value.where.startswith("built.yaml:")
    assert "secret" not in str(refused.value)
