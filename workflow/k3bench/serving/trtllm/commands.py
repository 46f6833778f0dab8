"""Settings and a place in, the exact command lines out: server, clients, accuracy guard, profiled server.

Every line is a list of words; a shell reads one only where a container needs it, and then nothing but validated names,
quoted by `shlex.join`, and the expansions that are written here. Out of scope: running them (`slurm_step.py`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3bench.records.recipe import Resources
from k3bench.records.trtllm import Accuracy
from k3bench.serving.trtllm.settings import Settings

LAUNCHER = "trtllm-llmapi-launch"
#: Sixteen ranks and their connections need more files than most systems give a process.
OPEN_FILES = 65536
#: PATH of a bare rank behind the build's own programs.
SYSTEM_PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BENCHMARK = "tensorrt_llm.serve.scripts.benchmark_serving"
#: Caches that ranks of one node would race for.
PER_RANK = {"HF_MODULES_CACHE": "hf-modules", "TRITON_CACHE_DIR": "triton-cache"}
#: What makes the ranks of a profiled server mark their steps and stop recording by themselves.
PROFILED = {"TLLM_LLMAPI_ENABLE_NVTX": "1", "TLLM_NVTX_DEBUG": "1", "TLLM_PROFILE_RECORD_GC": "1"}
#: Flags that trtllm-eval shares with trtllm-serve.
EVALUATED = ("backend", "tensor_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len", "trust_remote_code")


@dataclass(frozen=True)
class Place:
    """Where one arm's programs lie, and the container around them, if there is one."""

    launcher: str = LAUNCHER
    programs: str | None = None
    image: str | None = None
    mounts: tuple[str, ...] = ()
    mount_home: bool = True

    def program(self, name: str) -> str:
        """A program by its path where that is known."""
        return f"{self.programs}/{name}" if self.programs else name


@dataclass(frozen=True)
class Commands:
    """All command lines of one arm. `config` is its YAML file."""

    settings: Settings
    place: Place
    size: Resources
    mpi: str
    config: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    # --- the server
    def server(self, name: str, log: Path) -> tuple[str, ...]:
        """One srun for all ranks, named so that its step is found again."""
        return self._ranks(name, log, self._serve())

    def profiled_server(self, name: str, log: Path, stem: Path, steps: tuple[int, int]) -> tuple[str, ...]:
        """The same under nsys, one report a rank: `<stem>.r<rank>.nsys-rep`."""
        first, last = steps
        marked = PROFILED | {"TLLM_PROFILE_START_STOP": f"{first}-{last}"}
        nsys = (
            *("nsys", "profile", "-e", "NSYS_MPI_STORE_TEAMS_PER_RANK=1", "-o", f"{stem}.r%q{{SLURM_PROCID}}"),
            *("-f", "true", "-t", "cuda,nvtx,python-gil", "-c", "cudaProfilerApi", "--cuda-graph-trace", "node"),
            *("--capture-range-end=stop", "--gpu-metrics-devices=none"),
        )
        return self._ranks(name, log, (*nsys, *self._serve()), marked)

    def _serve(self) -> tuple[str, ...]:
        return (self.place.launcher, "trtllm-serve", *self.settings.words(str(self.config)))

    # --- everything else
    def accuracy(self, name: str, log: Path, guard: Accuracy) -> tuple[str, ...]:
        """trtllm-eval over all ranks, with the server's own flags and YAML file."""
        shared = {flag: value for flag, value in self.settings.flags.items() if flag in EVALUATED}
        words = Settings(self.settings.model, shared, {}, {}).words(str(self.config))
        task: list[str] = [guard.task]
        task += ["--dataset_path", guard.dataset] if guard.dataset else []
        task += ["--num_samples", str(guard.samples)] if guard.samples else []
        return self._ranks(name, log, (self.place.launcher, "trtllm-eval", "--model", *words, *task))

    def benchmark(self, name: str, log: Path, asked: Sequence[str]) -> tuple[str, ...]:
        """TensorRT-LLM's own client on the first node, beside the server."""
        return self.beside(name, log, (self.place.program("python3"), "-m", BENCHMARK, *asked))

    def beside(self, name: str, log: Path, program: Sequence[str], *, plain: bool = False) -> tuple[str, ...]:
        """A program of the ranks' own surroundings, once, on the first node; `plain` without the arm's environment."""
        return (*self._first_node(name), *self._around(log, program, {}, plain=plain))

    def export(self, name: str, log: Path, stem: Path, rank: int) -> tuple[str, ...]:
        """The report of one rank as SQLite: the version that collected is the only one sure to read it."""
        where = f"{stem}.r{rank}"
        options = ("--type=sqlite", "--force-overwrite=true", f"--output={where}.sqlite")
        return self.beside(name, log, ("nsys", "export", *options, f"{where}.nsys-rep"), plain=True)

    def client(self, name: str, program: Sequence[str]) -> tuple[str, ...]:
        """Our own client on the first node: it needs neither container nor GPU."""
        return (*self._first_node(name), *program)

    # --- pieces
    def _ranks(
        self, name: str, log: Path, program: Sequence[str], extra: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        size = self.size
        ranks = size.nodes * size.gpus_per_node
        return (
            *("srun", f"--job-name={name}", f"--nodes={size.nodes}", f"--ntasks={ranks}"),
            *(f"--ntasks-per-node={size.gpus_per_node}", f"--gpus-per-node={size.gpus_per_node}"),
            *(f"--mpi={self.mpi}", "--kill-on-bad-exit=1"),
            *self._around(log, program, extra or {}),
        )

    def _first_node(self, name: str) -> tuple[str, ...]:
        one = ("--nodes=1", "--ntasks=1", "--relative=0", "--gpus-per-node=0")
        return ("srun", f"--job-name={name}", "--overlap", *one, "--mpi=none", "--kill-on-bad-exit=1")

    def _around(
        self, log: Path, program: Sequence[str], extra: Mapping[str, str], *, plain: bool = False
    ) -> tuple[str, ...]:
        """Container, log and environment around a program, in the order of TensorRT-LLM's own sweep."""
        variables, place = {} if plain else {**self.environment, **extra}, self.place
        output = (f"--output={log}", "--open-mode=append")
        if place.image is None:
            return ("--export=ALL", *output, "env", *self._assigned(variables), *program)
        home = ("--container-mount-home",) if place.mount_home else ()
        mounts = (f"--container-mounts={','.join(place.mounts)}",) if place.mounts else ()
        return (
            f"--container-image={place.image}",
            *(*home, *mounts, *output),
            *("bash", "-c", self._script(variables, program)),
        )

    def _assigned(self, variables: Mapping[str, str]) -> list[str]:
        """By `env` in every rank: `srun --export=ALL,NAME=value` leaves a NAME alone that is set already."""
        found = {"TRITON_CACHE_DIR": "/tmp/triton-cache", **variables}
        if self.place.programs:
            found["PATH"] = f"{self.place.programs}:{SYSTEM_PATH}"
        return [f"{name}={value}" for name, value in sorted(found.items())]

    def _script(self, variables: Mapping[str, str], program: Sequence[str]) -> str:
        lines = [f"ulimit -n {OPEN_FILES}"]
        if variables:
            lines.append(shlex.join(["export", *(f"{name}={value}" for name, value in sorted(variables.items()))]))
        for name, folder in PER_RANK.items():
            if name not in variables:
                lines.append(f"export {name}=/tmp/{folder}-rank${{SLURM_PROCID:-0}}")
        if self.place.programs:
            lines.append(f"export PATH={shlex.quote(self.place.programs)}:$PATH")
        return "; ".join([*lines, f"exec {shlex.join(program)}"])


def text_of(words: Sequence[str]) -> str:
    """A command line as it would be typed."""
    return shlex.join(words)
