"""What both trtllm-serve and trtllm-eval take, checked against the documented flags and keys of a version."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from k3bench.errors import K3Error
from k3bench.serving.trtllm.known import known, versions


class Asked:
    """Flags under their own names, and the YAML file's keys, which overwrite them."""

    def __init__(self, words: Sequence[str]) -> None:
        listed = known(versions()[-1])
        given = listed.read_words(words)
        self.flags: dict[str, Any] = {listed.flags[word][0]: value for word, value in given.items()}
        for word, value in given.items():
            refuse(listed.flag_problem(word, value))
        self.config: dict[str, Any] = yaml.safe_load(Path(self.flags["config"]).read_text()) or {}
        for _, problem, cure in listed.key_problems(self.config):
            refuse((problem, cure))
        if (self.config.get("kv_cache_config") or {}).get("dtype") == "fp8":
            refuse(("K3 has no FP8 KV cache", "leave it out"))

    def get(self, name: str, default: Any = None) -> Any:
        """A key, else the flag of its name."""
        return self.config.get(name, self.flags.get(name, default))


def refuse(problem: tuple[str, str] | None) -> None:
    """End as a command line tool does."""
    if problem is not None:
        print(f"Error: {problem[0]} ({problem[1]})", file=sys.stderr, flush=True)
        raise SystemExit(2)


def asked(words: Sequence[str]) -> Asked:
    """The arguments, or exit status 2 with one line."""
    try:
        return Asked(words)
    except (K3Error, KeyError, OSError) as error:
        refuse((str(error), "see --help"))
        raise
