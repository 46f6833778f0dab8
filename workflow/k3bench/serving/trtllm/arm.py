"""A recipe, an arm and its build in, the arm's commands and its server's life out.

The YAML file lies beside the campaign's records, the same bytes for every start. Out of scope: what the words mean
(`settings.py`, `commands.py`), the step itself (`slurm_step.py`), load.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import ServingError
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, PlannedObservation
from k3bench.records.recipe import Recipe, Serving
from k3bench.runnable import runnable
from k3bench.serving.arms import ServedArm
from k3bench.serving.process import free_port
from k3bench.serving.trtllm.commands import LAUNCHER, Commands, Place
from k3bench.serving.trtllm.refusals import PLAIN
from k3bench.serving.trtllm.settings import settings, spec_of
from k3bench.serving.trtllm.slurm_step import StepServer, refuse_outside_slurm, start_step
from k3bench.store import CampaignFolder, write_atomic


@dataclass(frozen=True, kw_only=True)
class TrtllmArm(ServedArm):
    """One arm; `side` is the arm whose settings it has (in a zero-change observation both are `before`)."""

    recipe: Recipe
    side: Arm
    build: Build
    root: Path

    def commands(self, port: int | None = None) -> Commands:
        """Every command line of this arm. Raises `ServingError` for a folder that a launcher would take apart."""
        check_folder(self.root)
        found = settings(self.recipe, self.side, port=port)
        return Commands(
            settings=found,
            place=place_of(self.recipe, self.build, self.root),
            size=self.recipe.resources,
            mpi=spec_of(self.recipe).mpi,
            config=CampaignFolder(self.root).server_config(self.side),
            environment={**found.environment, **runnable(self.build, self.root).environment},
        )

    def start(self, log: Path) -> StepServer:
        """Start the arm's server over all ranks. Raises `ServingError`."""
        port = self._port()
        commands, name = self.commands(port), step_name(log)
        return self.begin(commands, commands.server(name, log.absolute()), log, port)

    def start_profiled(self, log: Path, stem: Path) -> StepServer:
        """The same under nsys."""
        port = self._port()
        commands, name = self.commands(port), step_name(log)
        words = commands.profiled_server(name, log.absolute(), stem, spec_of(self.recipe).profiled_steps)
        return self.begin(commands, words, log, port)

    def begin(self, commands: Commands, words: tuple[str, ...], log: Path, port: int) -> StepServer:
        """Write the YAML file, start the step, wait for it."""
        size = self.recipe.resources
        refuse_outside_slurm(size.nodes)
        self.write_config(commands)
        return start_step(
            words,
            name=step_name(log),
            log=log,
            port=port,
            ranks=size.nodes * size.gpus_per_node,
            nodes=size.nodes,
            limit_s=self.serving.ready_limit_s,
            poll_s=spec_of(self.recipe).ready_poll_s,
        )

    def write_config(self, commands: Commands) -> None:
        """The file that `--config` names."""
        write_atomic(commands.config, commands.settings.yaml_text().encode())

    def _port(self) -> int:
        return spec_of(self.recipe).port or free_port()


def trtllm_arm(
    recipe: Recipe, observation: PlannedObservation, builds: Mapping[Arm, Build], arm: Arm, root: Path
) -> TrtllmArm:
    """What serves an arm of an observation."""
    return TrtllmArm(
        serving=recipe.engine.serving or Serving(),
        endpoint=None,
        command=(),
        environment={},
        recipe=recipe,
        side=observation.arm(arm),
        build=builds[arm],
        root=root.absolute(),
    )


def check_folder(root: Path) -> None:
    """Raises `ServingError` for a campaign's folder whose name does not survive its way to the ranks."""
    if not PLAIN.match(str(root)) or re.search(r"[,%:]", str(root)):
        raise ServingError(
            f"the folder {str(root)!r} holds a character that srun or trtllm-llmapi-launch takes apart",
            fix="move the clone to a path of letters, digits and _ . / - only",
        )


def step_name(log: Path) -> str:
    """A step is found again by the name of its log."""
    return f"k3-{log.stem}"


def place_of(recipe: Recipe, build: Build, root: Path) -> Place:
    """Where an arm's programs lie: in its build, in the recipe's folder, or on PATH."""
    spec, folder = spec_of(recipe), CampaignFolder(root)
    tree = folder.tree(build.place) if build.place and build.python_path is not None else None
    programs = spec.programs
    if programs and not programs.startswith("/"):
        programs = str((tree or root) / programs)
    launcher = f"{programs}/{LAUNCHER}" if programs else LAUNCHER
    if tree is not None:
        launcher = str(tree / (build.python_path or ".") / "tensorrt_llm" / "llmapi" / LAUNCHER)
    container = spec.container
    image = build.image or (container.image if container else None)
    if image is None:
        return Place(launcher=launcher, programs=programs)
    mounts = (*(container.mounts if container else ()), f"{root}:{root}:rw")
    return Place(launcher, programs, image, mounts, container.mount_home if container else True)
