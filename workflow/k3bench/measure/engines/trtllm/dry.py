"""What a campaign of TensorRT-LLM would do, in order: every file and every command, without a cluster.

In: an observation and its builds. Out: lines; what is no command begins with `#`. Out of scope:
sbatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from k3bench.measure.engine import EngineRequest, RunContext
from k3bench.measure.engines.trtllm import OWN_CLIENT
from k3bench.measure.engines.trtllm.benchmark import benchmark_words, stem_of, step_of
from k3bench.measure.engines.trtllm.profiled import REPORT_LIMIT_S, log_of
from k3bench.measure.load import load_of
from k3bench.records.measurement import ARMS, ARMS_OF, Arm
from k3bench.records.plan import PlannedBlock, PlannedProfile
from k3bench.serving.arms import DEFAULT_VOCAB
from k3bench.serving.stream import Target
from k3bench.serving.trtllm.accuracy import words_of
from k3bench.serving.trtllm.arm import step_name, trtllm_arm
from k3bench.serving.trtllm.commands import Commands, text_of
from k3bench.serving.trtllm.settings import spec_of
from k3bench.submit import job_of

#: Name of the log, and the arm that lives: as `k3bench verify` asks them.
GREEDY_LIVES: tuple[tuple[str, Arm], ...] = (("before", "before"), ("after", "after"), ("before-again", "before"))


def dry_block(request: EngineRequest, block: PlannedBlock) -> Iterator[str]:
    """Every command of a block in order, as it would be started; what is no command begins with `#`."""
    recipe, name = request.recipe, request.observation.id
    spec = spec_of(recipe)
    for run, side in enumerate(ARMS_OF[block.order]):
        arm = trtllm_arm(recipe, request.observation, request.builds, side, request.folder)
        commands, key = arm.commands(), f"b{block.number:03d}-r{run}-{side}"
        log = request.folder.absolute() / "logs" / f"server-{name}-{key}.log"
        yield f"# run {run}: {side}, as {arm.side} with build {arm.build.pair}/{arm.build.arm}"
        yield text_of(commands.server(step_name(log), log))
        asked = f"asked every {spec.ready_poll_s:g} s, at most {arm.serving.ready_limit_s} s"
        yield f"# ready when /health answers on port {spec.port or '(a free one)'}: {asked}; then all ranks are counted"
        for level in block.levels:
            yield from _dry_level(request, commands, RunContext(name, block.number, run, side, level))
        yield "# stop: srun is interrupted twice, has 30 s, then is killed; its step is cancelled if any of it is left"


def _dry_level(request: EngineRequest, commands: Commands, context: RunContext) -> Iterator[str]:
    recipe, folder = request.recipe, request.folder.absolute()
    spec, serving = spec_of(recipe), request.recipe.engine.serving
    port = spec.port or 8000
    target = Target(
        f"http://127.0.0.1:{port}",
        (serving.model if serving else None) or Path(spec.model).name,
        limit_s=float(serving.request_limit_s if serving else 600),
    )
    vocab = (serving.prompt_vocab if serving else None) or DEFAULT_VOCAB
    scratch = folder / "trtllm" / "loads"
    for what in ("warm-up", "load"):
        log = folder / "logs" / f"client-{stem_of(context)}-{what}.log"
        if spec.client == "benchmark_serving":
            out = scratch / f"{stem_of(context)}-benchmark.json" if what == "load" else None
            asked = benchmark_words(recipe, context, port, out)
            words = commands.benchmark(step_of(context, what), log, asked) if asked else ()
        else:
            load = load_of(recipe, context, target, vocab, warm_up=what == "warm-up")
            out = scratch / f"{stem_of(context)}-{what}.json"
            words = commands.client(step_of(context, what), (*OWN_CLIENT, *load.words(out))) if load else ()
        if words:
            yield text_of(words)


def dry_files(request: EngineRequest) -> Iterator[tuple[Path, str]]:
    """Every file that is written before a server is started."""
    for side in dict.fromkeys(request.observation.arm(arm) for arm in request.builds):
        commands = trtllm_arm(request.recipe, request.observation, request.builds, side, request.folder).commands()
        yield commands.config, commands.settings.yaml_text()


def dry_profile(request: EngineRequest, run: PlannedProfile, out: Path) -> Iterator[str]:
    """The server of one arm under nsys, loaded once at one level, and one export a rank."""
    recipe, name = request.recipe, request.observation.id
    spec, arm = spec_of(recipe), trtllm_arm(recipe, request.observation, request.builds, run.arm, request.folder)
    commands, log = arm.commands(), log_of(request.folder.absolute(), name, run.arm, run.level)
    stem = out / f"{run.arm}.c{run.level}"
    yield f"# steps {spec.profiled_steps[0]} to {spec.profiled_steps[1]} of every rank; its times are never reported"
    yield text_of(commands.profiled_server(step_name(log), log, stem, spec.profiled_steps))
    yield f"# loaded at level {run.level} until every rank has written its report, at most {REPORT_LIMIT_S:g} s more"
    for rank in range(recipe.resources.nodes * recipe.resources.gpus_per_node):
        yield text_of(commands.export(f"k3-export-{rank}", log.with_suffix(".export.log"), stem, rank))
        yield f"# then {stem}.r{rank}.collected.json"


def dry_guards(request: EngineRequest) -> Iterator[str]:
    """Greedy tokens of three server lives, then the accuracy of each arm; each is a job of its own."""
    recipe, name = request.recipe, request.observation.id
    job = job_of(recipe.resources, request.observation.rack, "slurm")
    yield f"## {name}: greedy tokens, before, after and before again"
    yield job.sbatch_line(f"verify:{name}")
    for life, side in GREEDY_LIVES:
        arm = trtllm_arm(recipe, request.observation, request.builds, side, request.folder)
        log = request.folder.absolute() / "logs" / f"verify-{name}-{life}.log"
        yield text_of(arm.commands().server(step_name(log), log))
        yield f"# eight prompts of {recipe.workload.isl_tokens} tokens, one after the other, greedy"
    for side in ARMS if spec_of(recipe).accuracy else ():
        arm = trtllm_arm(recipe, request.observation, request.builds, side, request.folder)
        yield f"## {name}: accuracy of {side} (once a build pair: {request.observation.pair})"
        yield job.sbatch_line(f"accuracy:{name}/{side}")
        yield text_of(words_of(arm))
