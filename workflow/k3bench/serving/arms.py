"""Recipe and observation in, what serves each arm out: an address, or a command with its environment.

Out of scope: starting it (`process.py`), loading it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, PlannedObservation
from k3bench.records.recipe import K3MODEL, EngineSpec, Recipe, Serving
from k3bench.runnable import runnable, same_sources
from k3bench.serving.endpoint import model_card
from k3bench.serving.process import Server, start_server
from k3bench.serving.stream import Target

NVIDIA_DRIVER = Path("/dev/nvidiactl")
#: Vocabulary for random prompts where neither recipe nor server names one.
DEFAULT_VOCAB = 10_000


@dataclass(frozen=True)
class ServedArm:
    """One arm. Exactly one of `endpoint` and `command` is set. `folder` is where a process runs the arm's own build."""

    serving: Serving
    endpoint: str | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    build: Build
    folder: Path | None = field(default=None, kw_only=True)

    def start(self, log: Path) -> Server:
        """Start the arm's server. Raises `ServingError`."""
        limit_s = self.serving.ready_limit_s
        return start_server(
            self.command, log=log, environment=self.environment, ready_limit_s=limit_s, folder=self.folder
        )

    def sources(self, base_url: str) -> tuple[str, str]:
        """What a started server says it runs, and why that is not its build: empty where it is, or nothing is said."""
        told = model_card(base_url).source_digest if self.build.engine in K3MODEL else None
        return f"runs sources {told[:12]}, as built" if told else "", same_sources(self.build, told)

    def target(self, base_url: str) -> tuple[Target, int]:
        """Where requests go, and the vocabulary their prompts are drawn from. Raises `ServingError`."""
        serving = self.serving
        card = None if serving.model and serving.prompt_vocab else model_card(base_url)
        name = serving.model or (card.name if card else "")
        vocab = serving.prompt_vocab or (card.vocab_size if card else None) or DEFAULT_VOCAB
        return Target(base_url.rstrip("/"), name, serving.api, float(serving.request_limit_s)), vocab


def served_arm(
    recipe: Recipe, observation: PlannedObservation, builds: Mapping[Arm, Build], arm: Arm, root: Path
) -> ServedArm:
    """What serves an arm; in a zero-change observation both arms are `before`. `root` is the campaign's folder."""
    if recipe.engine.name == "trtllm":
        from k3bench.serving.trtllm.arm import trtllm_arm

        return trtllm_arm(recipe, observation, builds, arm, root)
    actual = observation.arm(arm)
    spec, build = getattr(recipe.arms, actual), builds[arm]
    serving = recipe.engine.serving or Serving()
    words = serving.command or (k3model_command(recipe) if recipe.engine.name == "k3model-served" else ())
    named = {"{policy}": build.policy, "{stream_interval}": str(recipe.workload.stream_interval)}
    named |= {"{image}": build.image} if build.image else {}
    how = runnable(build, root)
    return ServedArm(
        serving=serving,
        endpoint=(spec.endpoint or serving.endpoint) if serving.endpoint else None,
        command=tuple(_put_in(word, named) for word in (*words, *spec.arguments)),
        environment=how.environment,
        folder=how.folder,
        build=build,
    )


def _put_in(word: str, named: Mapping[str, str]) -> str:
    for name, value in named.items():
        word = word.replace(name, value)
    return word


def k3model_command(recipe: Recipe) -> tuple[str, ...]:
    """The server of this repository with the recipe's preset, shapes and levels."""
    engine, workload = recipe.engine, recipe.workload
    options = [f"--set={name}={value}" for name, value in engine.options.items()]
    return (
        *(sys.executable, "-m", "k3model.server", engine.preset, "--port", "{port}", "--policy", "{policy}"),
        *("--device", device_of(engine), "--seed", str(recipe.seed)),
        *("--batches", ",".join(map(str, sorted(workload.levels)))),
        *("--context", str(workload.isl_tokens + workload.osl_tokens)),
        *("--stream-interval", "{stream_interval}", *options),
    )


def device_of(engine: EngineSpec) -> str:
    """Where a served engine runs: as the recipe says, else on the GPU if this machine has NVIDIA's driver."""
    if engine.device != "auto":
        return engine.device
    return "cuda" if NVIDIA_DRIVER.exists() else "cpu"
