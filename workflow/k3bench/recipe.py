"""A recipe file in, a validated `Recipe` out, or a `RecipeError` with file, line, reason, cure and the valid choices.

Checks what the data alone cannot know: that the preset and the policies exist and the context suffices.
Out of scope: drawing orders and names (`plan.py`). No torch.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from k3bench.errors import RecipeError
from k3bench.records.builds import BUILDS
from k3bench.records.recipe import K3MODEL, Recipe
from k3model.config import ConfigError, preset
from k3model.policy import PolicyError, policies

#: A recipe is a page, not a data set.
MAX_RECIPE_BYTES = 256 * 1024
#: K3's own limit (its text configuration).
MAX_POSITIONS = 1_048_576


def load_recipe(path: Path) -> Recipe:
    """Read, parse and validate a recipe file. Raises `RecipeError` with file and line."""
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise RecipeError(
                "larger than any recipe", where=str(path), fix=f"keep it under {MAX_RECIPE_BYTES // 1024} KiB"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot read the recipe: {error}", where=str(path), fix="name a YAML file, e.g. recipes/laptop.yaml"
        ) from None
    return parse_recipe(text, where=str(path), name=path.stem)


def parse_recipe(text: str, *, where: str, name: str) -> Recipe:
    """Parse recipe text; `name` is the name it must carry (the file's stem)."""
    try:
        _refuse_aliases(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(
            f"not valid YAML: {getattr(error, 'problem', None) or error}",
            where=f"{where}{line}",
            fix="compare with recipes/laptop.yaml; indentation is by spaces",
        ) from None
    if not isinstance(data, dict) or tree is None:
        raise RecipeError("a recipe is a mapping of keys to values", where=where, fix="start from recipes/laptop.yaml")
    _refuse_duplicate_keys(tree, where)
    if data.get("schema") != Recipe.SCHEMA:
        raise RecipeError(
            f"schema is {data.get('schema')!r}",
            where=f"{where}:{_line(tree, ('schema',))}",
            fix=f"write `schema: {Recipe.SCHEMA}`",
        )
    try:
        recipe = Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise _explain(error, tree, where) from None
    if recipe.name != name:
        raise RecipeError(
            f"name is {recipe.name!r} but the file is {name!r}",
            where=f"{where}:{_line(tree, ('name',))}",
            fix=f"write `name: {name}` or rename the file: results lie under results/<name>/",
        )
    for loc, problem, cure in chain(_unknown_to_k3model(recipe), _beyond_k3(recipe), _unknown_to_trtllm(recipe)):
        raise RecipeError(problem, where=f"{where}:{_line(tree, loc)} ({'.'.join(loc)})", fix=cure)
    return recipe


def _unknown_to_trtllm(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """What the pinned TensorRT-LLM would not take, or K3 not run on."""
    if recipe.engine.name == "trtllm":
        from k3bench.serving.trtllm.refusals import problems

        yield from problems(recipe)


def _unknown_to_k3model(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Presets, options, policies and contexts that the engine does not have."""
    if recipe.engine.name not in K3MODEL:
        return
    for arm in ("before", "after"):
        try:
            policies(getattr(recipe.arms, arm).policy)
        except PolicyError as error:
            yield ("arms", arm, "policy"), *_said(error)
    try:
        config = preset(recipe.engine.preset, **recipe.engine.options)
        if config.collectives == "distributed" and recipe.engine.ranks != config.tp_size:
            problem = f"{config.tp_size} ranks need peers that answer, and the recipe does not say so"
            yield (
                ("engine", "options"),
                problem,
                "add `collectives: distributed`, or `collectives: absent` for one rank",
            )
    except (ConfigError, TypeError) as error:
        yield ("engine", "preset"), *_said(error)


def _beyond_k3(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """More positions than K3 has."""
    work = recipe.workload
    need = work.isl_tokens + work.osl_tokens
    longer = "isl_tokens" if work.isl_tokens >= work.osl_tokens else "osl_tokens"
    if need > MAX_POSITIONS and recipe.engine.name in (*K3MODEL, "trtllm"):
        problem = f"isl_tokens + osl_tokens = {need} is beyond K3's {MAX_POSITIONS} positions"
        yield ("workload", longer), problem, f"shorten workload.{longer}"


def _said(error: Exception) -> tuple[str, str]:
    """What an error of k3model says, as problem and cure."""
    return getattr(error, "what", str(error)), getattr(error, "fix", "") or "see python -m k3model --help"


def _explain(error: ValidationError, tree: yaml.Node, where: str) -> RecipeError:
    """pydantic's first complaint in the words of the person who wrote the recipe."""
    problems = error.errors(include_url=False)
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    loc, kind = _without_tag(tuple(first["loc"]))
    if first["type"] == "impossible":
        loc = tuple(first["ctx"]["at"].split("."))
    path = ".".join(map(str, loc)) or "recipe"
    place = f"{where}:{_line(tree, loc)}"
    if first["type"] == "extra_forbidden":
        cure = _choose(loc[-1], _fields_at(loc[:-1], kind), "valid keys here")
        return RecipeError(f"unknown key `{path}`", where=place, fix=cure)
    if first["type"] == "missing":
        shown = f"valid keys here: {', '.join(_fields_at(loc[:-1], kind))}" if kind else ""
        cure = _MEANINGS.get(path) or f"add it; {shown or 'recipes/laptop.yaml shows every key'}"
        return RecipeError(f"`{path}` is missing", where=place, fix=cure)
    if first["type"] in ("union_tag_not_found", "union_tag_invalid", "literal_error"):
        problem, cure = _no_choice(first, path)
        return RecipeError(problem, where=place, fix=cure)
    if first["type"] == "impossible":
        return RecipeError(first["ctx"]["problem"], where=f"{place} ({path})", fix=first["ctx"]["cure"])
    if first["type"] == "value_error":
        return RecipeError(str(first["ctx"]["error"]), where=f"{place} ({path})", fix="change the value named above")
    message, given = str(first["msg"]), first["input"]
    return RecipeError(
        f"`{path}` is {given!r}: {message[0].lower()}{message[1:]}", where=place, fix=_cure(loc, given, first["type"])
    )


def _no_choice(problem: ErrorDetails, path: str) -> tuple[str, str]:
    """Problem and cure where one of a few words was to be written."""
    if problem["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        return f"`{path}` is {problem['input']!r}, which is no choice", _choose(problem["input"], choices)
    tag = problem["ctx"].get("tag")
    said = "missing" if tag is None else f"{tag!r}, which is no choice"
    return f"`{path}.kind` is {said}", _choose(tag, list(BUILDS))


def _without_tag(loc: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
    """A place as it is written, and the kind of build it lies in: pydantic puts the kind into the path."""
    return (loc[:2] + loc[3:], str(loc[2])) if loc[:1] == ("builds",) and len(loc) > 2 else (loc, "")


def _choose(given: Any, choices: list[str], label: str = "choose from") -> str:
    close = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
    return f"{f'did you mean `{close[0]}`? ' if close else ''}{label}: {', '.join(choices)}"


def _cure(loc: tuple[Any, ...], given: Any, problem: str) -> str:
    key = str(loc[-1]) if loc else ""
    if loc[:1] == ("builds",) and key == "image":
        return "an image is named by digest: repo/name@sha256:<64 hex>"
    if isinstance(given, str) and given[:1].isdigit():
        return f"write a bare number: the unit is in the key's name (`{key}`), so `2` and not `2 %`, `60` and not `1h`"
    schema = "see workflow/schemas/recipe.schema.json for what is valid here"
    usual = f"write a whole number, e.g. `{key}: 4`" if problem.startswith("int_") else schema
    return _MEANINGS.get(".".join(map(str, loc)), usual)


#: What belongs at a place, by its full path.
_MEANINGS = {
    "primary_level": "name the one level whose verdict is the headline, e.g. `primary_level: 1`",
    "blocks": "a whole number of ABBA/BAAB blocks per observation; 2 blocks (4 pairs) are the least for a verdict",
    "workload.levels": "a list of concurrency levels, e.g. `levels: [1, 2, 4]`",
    "workload.batches": "at least 5 batches a point: its value is their median (k3model: 1 of 250 steps)",
    "name": "the file's name without .yaml: results lie under results/<name>/",
}


def _fields_at(loc: tuple[Any, ...], kind: str = "") -> list[str]:
    """The valid keys of the (sub)model at a path, and within a kind of build."""
    model: Any = BUILDS[kind] if kind else Recipe
    for part in loc[2:] if kind else loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        model = _model_in(annotation)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model_in, getattr(annotation, "__args__", ())) if m), None)


def _line(tree: yaml.Node, loc: tuple[Any, ...]) -> int:
    """The line of the deepest node of a path that exists; keys are found by value, list items by index."""
    node, line = tree, tree.start_mark.line
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            hit = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if hit is None:
                break
            line, node = hit[0].start_mark.line, hit[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return line + 1


def _refuse_aliases(text: str) -> None:
    """Anchors can make a small file endless; a recipe needs none."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"alias *{event.anchor}: recipes use no YAML anchors")


def _refuse_duplicate_keys(node: yaml.Node, where: str) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                raise RecipeError(
                    f"key `{key.value}` is given twice",
                    where=f"{where}:{key.start_mark.line + 1}",
                    fix="keep one of them",
                )
            seen.add(key.value)
            _refuse_duplicate_keys(value, where)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_duplicate_keys(value, where)
