"""A version's name in, the flags of trtllm-serve and the keys of its YAML file out, with what each may hold.

The lists are data (`known/<version>.yaml`), read from the project's own references. Out of scope: what a recipe says.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from k3bench.errors import RecipeError

FOLDER = Path(__file__).parent / "known"
SWITCH = "switch"
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "text": (str,),
    "list": (list, tuple),
}


@dataclass(frozen=True)
class Known:
    """One version. `flags` maps every word (without dashes) to its own name and kind."""

    version: str
    commit: str
    flags: Mapping[str, tuple[str, Any]]
    keys: Mapping[str, Any]

    def flag_problem(self, word: str, value: Any) -> tuple[str, str] | None:
        """Problem and cure of one flag, if it has any."""
        if word not in self.flags:
            return f"trtllm-serve of {self.version} has no flag --{word}", _choices(word, self.flags)
        kind = self.flags[word][1]
        fits = isinstance(value, bool) if kind == SWITCH else _fits(value, kind)
        return None if fits else (f"--{word} is {value!r}", f"it takes {_in_words(kind)}")

    def key_problems(self, config: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """(dotted key, problem, cure) of everything in a YAML file that this version does not take."""
        yield from self._problems(config, self.keys, "")

    def _problems(
        self, found: Mapping[str, Any], keys: Mapping[str, Any], above: str
    ) -> Iterator[tuple[str, str, str]]:
        for name, value in found.items():
            path = f"{above}{name}"
            if name not in keys:
                yield path, f"TensorRT-LLM {self.version} has no YAML key {path}", _choices(name, keys)
            elif isinstance(keys[name], dict) and value is not None:
                if isinstance(value, Mapping):
                    yield from self._problems(value, keys[name], f"{path}.")
                else:
                    yield path, f"YAML key {path} is {value!r}", f"it is a group of: {', '.join(keys[name])}"
            elif not isinstance(keys[name], dict) and not _fits(value, keys[name]):
                yield path, f"YAML key {path} is {value!r}", f"it takes {_in_words(keys[name])}"

    def read_words(self, words: Sequence[str]) -> dict[str, str | int | float | bool]:
        """`--tp_size 16 --trust_remote_code` as flags. Raises `RecipeError` for what is no flag with its value."""
        found: dict[str, str | int | float | bool] = {}
        rest = list(words)
        while rest:
            word, _, glued = rest.pop(0).partition("=")
            name = word.removeprefix("--")
            if not word.startswith("--") or name not in self.flags:
                raise RecipeError(f"trtllm-serve of {self.version} has no flag {word}", fix=_choices(name, self.flags))
            kind = self.flags[name][1]
            if kind == SWITCH:
                found[name] = True
            elif not glued and not rest:
                raise RecipeError(f"{word} lacks its value", fix=f"it takes {_in_words(kind)}")
            else:
                found[name] = _value(glued or rest.pop(0), kind)
        return found


def versions() -> list[str]:
    """Every version whose flags and keys are known."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def known(version: str) -> Known:
    """The lists of a version. Raises `RecipeError` for one that is not known."""
    if version not in versions():
        raise RecipeError(
            f"flags and keys of TensorRT-LLM {version} are not known",
            fix=f"choose from: {', '.join(versions())}; or add workflow/k3bench/serving/trtllm/known/{version}.yaml",
        )
    data = yaml.safe_load((FOLDER / f"{version}.yaml").read_text(encoding="utf-8"))
    words = {
        word: (name, flag["kind"]) for name, flag in data["flags"].items() for word in (name, *flag.get("also", ()))
    }
    return Known(version=data["version"], commit=data["commit"], flags=words, keys=data["keys"])


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, list):
        return any(value == choice and isinstance(value, type(choice)) for choice in kind)
    name, _, null = str(kind).partition("/")
    if name == "any" or (null and value is None):
        return True
    return isinstance(value, _KINDS[name]) and (name == "bool" or not isinstance(value, bool))


def _value(text: str, kind: Any) -> str | int | float:
    """A word of a command line as what it stands for; a word that is none stays a word and is refused by its kind."""
    for name, read in (("int", int), ("float", float)):
        if kind == name:
            try:
                return read(text)
            except ValueError:
                return text
    return text


def _in_words(kind: Any) -> str:
    if isinstance(kind, list):
        return "one of: " + ", ".join("null" if c is None else str(c) for c in kind)
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "text": "a text", "list": "a list"}
    name, _, null = str(kind).partition("/")
    return ("true or false" if name == SWITCH else words[name]) + (" or null" if null else "")


def _choices(word: str, valid: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(valid), n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return f"{hint}valid choices: {', '.join(sorted(valid))}"
