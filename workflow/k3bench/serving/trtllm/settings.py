"""A recipe and one of its arms in, what that arm's server is started with out: flags, YAML keys, environment.

What follows from the workload (TP, batch, token limits, stream interval) is filled in where the recipe leaves it out.
Out of scope: command lines (`commands.py`), refusals (`refusals.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from k3bench.records.measurement import Arm
from k3bench.records.recipe import Recipe
from k3bench.records.trtllm import Trtllm
from k3bench.serving.trtllm.known import Known, known

#: Room for special tokens beyond ISL + OSL, as the project's own K3 sweep leaves it.
SPARE_TOKENS = 128
#: The order of the sweep's command line; other flags come between these and the last ones.
FIRST = ("backend", "host", "port", "tensor_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len")
LAST = ("trust_remote_code",)
#: Words that the sweep uses where a flag has several.
SHORT = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size", "moe_expert_parallel_size": "ep_size"}


@dataclass(frozen=True)
class Settings:
    """One arm. Flags are under their own names (`tensor_parallel_size`), in the order of the command line."""

    model: str
    flags: Mapping[str, str | int | float | bool]
    config: Mapping[str, Any]
    environment: Mapping[str, str]

    def yaml_text(self) -> str:
        """The file that `--config` names, the same bytes for the same keys."""
        return yaml.safe_dump(_plain(self.config), sort_keys=True, default_flow_style=False, width=120)

    def words(self, config: str) -> tuple[str, ...]:
        """Model, flags and the YAML file, as trtllm-serve takes them."""
        found = [self.model]
        for name, value in self.flags.items():
            word = f"--{SHORT.get(name, name)}"
            if value is True:
                found.append(word)
            elif value is not False:
                found += [word, str(value)]
        return (*found, "--config", config)


def spec_of(recipe: Recipe) -> Trtllm:
    """The recipe's TensorRT-LLM part; recipes without one are refused before."""
    assert recipe.engine.trtllm is not None, "the recipe refuses engine trtllm without it"
    return recipe.engine.trtllm


def settings(recipe: Recipe, arm: Arm, *, port: int | None = None) -> Settings:
    """What the server of an arm is started with. Raises `RecipeError` for arguments that are no flags."""
    spec, side = spec_of(recipe), getattr(recipe.arms, arm)
    listed = known(spec.version)
    given = _own_names(listed, spec.flags) | _own_names(listed, listed.read_words(side.arguments))
    flags = _filled(recipe, given) | {"port": port if port is not None else spec.port}
    config = merged(merged({"stream_interval": recipe.workload.stream_interval}, spec.config), side.config)
    return Settings(spec.model, _ordered(flags), config, spec.environment | side.environment)


def _own_names(listed: Known, flags: Mapping[str, Any]) -> dict[str, Any]:
    return {listed.flags[word][0] if word in listed.flags else word: value for word, value in flags.items()}


def _filled(recipe: Recipe, given: Mapping[str, Any]) -> dict[str, Any]:
    work, size = recipe.workload, recipe.resources
    batch = given.get("max_batch_size", max(work.levels))
    filled = {
        "backend": "pytorch",
        "host": "0.0.0.0",
        "tensor_parallel_size": size.nodes * size.gpus_per_node,
        "max_batch_size": batch,
        "max_num_tokens": work.isl_tokens + batch if isinstance(batch, int) else None,
        "max_seq_len": work.isl_tokens + work.osl_tokens + SPARE_TOKENS,
    }
    return filled | dict(given)


def _ordered(flags: Mapping[str, Any]) -> dict[str, Any]:
    between = [name for name in flags if name not in (*FIRST, *LAST)]
    return {name: flags[name] for name in (*FIRST, *between, *LAST) if name in flags}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Groups are merged key by key, everything else is replaced."""
    found = dict(below)
    for name, value in above.items():
        old = found.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        found[name] = merged(old, value) if both else value  # type: ignore[arg-type]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
