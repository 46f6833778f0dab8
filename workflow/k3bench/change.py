"""What the two arms of a build pair differ in, and whether that is what the recipe declares: no less and no more.

In: a recipe and two `Build` records (the locks). Out: differences by field, and what does not match.
Out of scope: refusing (`k3bench.build`), reporting (`k3bench.compare`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from k3bench.records.builds import CODE_FIELDS, BuildSpec, GitBuild, ImageBuild, WheelBuild
from k3bench.records.plan import Build
from k3bench.records.recipe import ArmSpec, Recipe

#: Named by the build record, not by the arm of the recipe.
_BY_BUILD = ("policy", "environment", "build")
_ABSENT = "absent"


@dataclass(frozen=True)
class Mismatch:
    """`undeclared`: differs, and should not. `missing`: should differ, and does not. Both empty: as declared."""

    undeclared: dict[str, tuple[str, str]]
    missing: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.undeclared or self.missing)

    def __str__(self) -> str:
        parts = []
        if self.undeclared:
            named = ", ".join(f"{field} ({a} -> {b})" for field, (a, b) in self.undeclared.items())
            parts.append(f"they differ in {named}, which the recipe does not declare")
        if self.missing:
            parts.append(f"they do not differ in {', '.join(self.missing)}, which the recipe declares")
        return "; ".join(parts)


def mismatch(recipe: Recipe, before: Build, after: Build) -> Mismatch:
    """The difference of the locks against the declared change."""
    found, wanted = difference(recipe, before, after), declared(recipe)
    undeclared = {field: values for field, values in found.items() if field not in wanted}
    same = " (the sources are the same)" if before.source_digest == after.source_digest else ""
    missing = tuple(field + (same if field in CODE_FIELDS else "") for field in wanted if field not in found)
    return Mismatch(undeclared, missing)


def difference(recipe: Recipe, before: Build, after: Build) -> dict[str, tuple[str, str]]:
    """Field -> its two values, for every field of the locks that differs.

    Where a cause is named (kind, commit, patch, wheel, ...) its consequence, other sources, is not named again; a cause
    that changes no source is none.
    """
    left = {**_of_arm(recipe.arms.before), **_of_build(before)}
    right = {**_of_arm(recipe.arms.after), **_of_build(after)}
    return {**_differing(left, right), **_code_difference(before, after)}


def declared(recipe: Recipe) -> tuple[str, ...]:
    """What the recipe says shall differ, or, where it says nothing, what its arms differ in."""
    if recipe.declared_change is not None:
        return tuple(dict.fromkeys(recipe.declared_change))
    arms = recipe.arms
    left, right = ({**_of_arm(a), **_of_recipe(a)} for a in (arms.before, arms.after))
    return (*_differing(left, right), *_code_declared(recipe.build_of("before"), recipe.build_of("after")))


def undeclared(recipe: Recipe) -> tuple[str, ...]:
    """What the recipe's own arms differ in beyond its `declared_change`: known before anything is built."""
    if recipe.declared_change is None:
        return ()
    named = declared(recipe.model_copy(update={"declared_change": None}))
    return tuple(field for field in named if field not in recipe.declared_change)


def _of_arm(arm: ArmSpec) -> dict[str, str]:
    """What only the recipe knows of an arm: arguments, address, and what else an engine lets it say."""
    return dict(_flat(arm.model_dump(mode="json", exclude=set(_BY_BUILD))))


def _of_recipe(arm: ArmSpec) -> dict[str, str]:
    return {"policy": arm.policy, **{f"environment.{name}": value for name, value in arm.environment.items()}}


def _of_build(build: Build) -> dict[str, str]:
    named = {"engine": build.engine, "preset": build.preset, "policy": build.policy}
    return named | dict(_flat({"environment": build.environment, "versions": build.versions}))


def _flat(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`{"environment": {"A": "1"}}` -> `environment.A`, `1`. Lists stay whole: their order matters."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif value not in (None, [], ()):
            yield f"{prefix}{name}", _shown(value)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _differing(left: dict[str, str], right: dict[str, str]) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys((*left, *right))
    pairs = {name: (left.get(name, _ABSENT), right.get(name, _ABSENT)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _code_difference(before: Build, after: Build) -> dict[str, tuple[str, str]]:
    causes: dict[str, tuple[str, str]] = {"kind": (before.kind, after.kind)}
    if before.kind == after.kind:
        causes = _differing(_code_of(before), _code_of(after))
    if before.source_digest == after.source_digest and not causes.keys() & {"command", "python_path"}:
        return {}
    return causes or {"sources": (before.source_digest[:12], after.source_digest[:12])}


def _code_of(build: Build) -> dict[str, str]:
    """Causes of other code. The commit of an installed build is that of a checkout: its sources decide."""
    commit = build.git_commit if build.kind == "git" else None
    digests = {"patch": build.patch_digest, "dirty": build.dirty_digest, "wheel": build.wheel_digest}
    fields = {"commit": commit, "python_path": build.python_path if build.kind == "git" else None, "image": build.image}
    short = {name: digest and digest[:12] for name, digest in (digests | {"commit": commit}).items()}
    command = {"command": build.command} if build.command else {}
    return dict(_flat({**fields, **short, **command}))


def _code_declared(before: BuildSpec, after: BuildSpec) -> tuple[str, ...]:
    if before.kind != after.kind:
        return ("kind",)
    if isinstance(before, GitBuild) and isinstance(after, GitBuild):
        return tuple(
            {"ref": "commit"}.get(name, name)
            for name in ("ref", "patch", "dirty", "command", "python_path")
            if getattr(before, name) != getattr(after, name)
        )
    if isinstance(before, WheelBuild) and isinstance(after, WheelBuild) and before.path != after.path:
        return ("wheel",)
    if isinstance(before, ImageBuild) and isinstance(after, ImageBuild) and before.image != after.image:
        return ("image",)
    return ()
