"""The recipe as data: what to compare, on what, how often. Frozen, strict, units in the names.

In: plain data. Out: a validated `Recipe`; a plan that can never run or never answer is refused here.
Out of scope: reading YAML, and whether a preset or policy exists (`k3bench.recipe`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from k3bench.metrics import HEADLINE, METRICS
from k3bench.records.base import Grown, Model, Name, Record
from k3bench.records.builds import CODE_FIELDS, INSTALLED, BuildSpec, InstalledBuild
from k3bench.records.trtllm import Trtllm

Positive = Annotated[int, Field(ge=1)]
Percent = Annotated[float, Field(gt=0, lt=100)]
#: Folders under results/ that are not campaigns.
KEPT_NAMES = ("recorded", "mlartifacts")
#: More points than any campaign has; a plan with a slip of the keyboard in it is refused before it is drawn.
MAX_POINTS = 1_000_000
Url = Annotated[str, StringConstraints(pattern=r"^https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?$", max_length=300)]
#: A field of a lock, e.g. `policy`, `environment.OMP_NUM_THREADS`, `commit`, `versions.torch`.
LockField = Annotated[str, StringConstraints(pattern=r"^[a-z_]+(\.[A-Za-z0-9_.-]+)?$", max_length=200)]
Engine = Literal["k3model", "simulated", "openai", "k3model-served", "trtllm"]
#: Engines whose arms share a process, so that nothing but the policy can differ between them.
IN_PROCESS: tuple[Engine, ...] = ("k3model", "simulated")
#: Engines that are asked through a server.
SERVED: tuple[Engine, ...] = ("openai", "k3model-served", "trtllm")
#: Engines that run the K3 of this repository, so that presets, options and policies must be its own.
K3MODEL: tuple[Engine, ...] = ("k3model", "k3model-served")


class Truth(Model):
    """What the `simulated` engine makes true, so that tests and learners know the answer."""

    tpot_ms: Annotated[float, Field(gt=0)] = 10.0
    effect_pct: Annotated[float, Field(gt=-90, lt=900)] = 0.0
    run_sd_pct: Annotated[float, Field(ge=0)] = 1.0
    rack_effect_sd_pct: Annotated[float, Field(ge=0)] = 0.0
    drift_pct_per_run: float = 0.0
    heavy_tails: bool = False
    fail_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    wait_s_per_batch: Annotated[float, Field(ge=0)] = 0.0


class Serving(Model):
    """How a served engine is reached, started and loaded; limits bound every wait.

    Either `endpoint` (attach to what runs) or `command` (started per run). In its words `{port}`, the arm's `{policy}`,
    `{stream_interval}` and the `{image}` of its build are put in.
    """

    endpoint: Url | None = None
    command: tuple[str, ...] = ()
    restart: Literal["server", "none"] = "server"
    api: Literal["completions", "chat"] = "completions"
    model: str | None = None
    prompt_vocab: Annotated[int, Field(ge=16)] | None = None
    ready_limit_s: Positive = 1500
    request_limit_s: Positive = 600


class EngineSpec(Grown):
    """What is measured. `preset` names a K3 configuration; `options` are its named variants."""

    ADDED: ClassVar[tuple[str, ...]] = ("trtllm",)
    name: Engine
    preset: str = "nano"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    options: dict[str, str | int | bool] = {}
    context: Literal["prefill", "noise"] = "prefill"
    truth: Truth | None = None
    serving: Serving | None = None
    trtllm: Trtllm | None = None

    @property
    def ranks(self) -> int:
        """Processes that one model is spread over: its tp_size where `collectives: distributed` is written, else 1."""
        return int(self.options.get("tp_size", 1)) if self.options.get("collectives") == "distributed" else 1


class ArmSpec(Grown):
    """One side of the comparison: the overlap policy, the build it runs from, and its extra environment.

    Served engines only: `arguments` are added to the server's command, `endpoint` is where this arm runs already,
    `config` (TensorRT-LLM) are keys of its YAML file.
    """

    ADDED: ClassVar[tuple[str, ...]] = ("config",)
    policy: str
    build: Name = INSTALLED
    environment: dict[Name, str] = {}
    arguments: tuple[str, ...] = ()
    endpoint: Url | None = None
    config: dict[Name, JsonValue] = {}


class Arms(Model):
    """Both sides."""

    before: ArmSpec
    after: ArmSpec

    @property
    def equal(self) -> bool:
        """True for a zero-change recipe."""
        return self.before == self.after


class Workload(Model):
    """ISL, OSL, concurrency levels, and how a point is made of batches."""

    isl_tokens: Positive
    osl_tokens: Annotated[int, Field(ge=2)]
    levels: Annotated[tuple[Positive, ...], Field(min_length=1)]
    stream_interval: Positive = 1
    batches: Annotated[int, Field(ge=1)] = 5
    warmup_batches: Annotated[int, Field(ge=0)] = 1


class ObservationSpec(Grown):
    """One rack with one build pair. `rebuild` makes the pair anew: own folder, own compile caches, emptied."""

    ADDED: ClassVar[tuple[str, ...]] = ("rebuild",)
    id: Name
    rack: Name = "local"
    pair: Name = "p1"
    rebuild: bool = False


class Validity(Model):
    """Criteria written before the data; a run that breaks one drops its pair."""

    max_clock_change_pct: Annotated[float, Field(ge=0)] = 10.0
    same_throttle_reasons: bool = True
    #: Served runs: tokens in one streamed chunk, as a multiple of stream_interval.
    max_chunk_intervals: Annotated[float, Field(ge=1)] = 4.0
    #: Served runs: prompt tokens taken from a cache; prompts are random, so more means that prompts were seen before.
    max_cached_prompt_pct: Annotated[float, Field(ge=0, le=100)] = 1.0
    #: Served runs: how far the load client's TPOT may lie from the reference server's own at the same concurrency.
    max_client_bias_pct: Percent = 0.5


class Resources(Grown):
    """What one allocation asks for. Site names (account, partition) belong in the profile.

    `segment` keeps this many nodes in one NVLink domain, where Slurm has topology/block; it replaces `--switches=1`.
    `queue_minutes`: a job whose rack has not come free for this long is withdrawn, and the campaign goes on without it.
    """

    ADDED: ClassVar[tuple[str, ...]] = ("segment", "queue_minutes")
    minutes: Positive = 60
    nodes: Positive = 1
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    segment: Positive | None = None
    queue_minutes: Annotated[float, Field(gt=0)] | None = None


class Tracking(Model):
    """Where the numbers go besides the files."""

    experiment: Name | None = None


class FamilyPattern(Model):
    """Maps a range or kernel name (regular expression) of a foreign engine to a family; an anchor opens a segment."""

    family: Name
    range: str | None = None
    kernel: str | None = None
    anchor: bool = False


class Profiling(Model):
    """Separate profiled runs, never timed: `none` until a trace is wanted."""

    tool: Literal["none", "nsys", "kineto", "cupti"] = "none"
    level: Positive | None = None
    families: tuple[FamilyPattern, ...] = ()


class Recipe(Grown, Record):
    """One question, asked in full before anything runs.

    `declared_change` names the fields in which the locks of the two builds differ; without it, exactly what the arms of
    the recipe differ in.
    """

    ADDED: ClassVar[tuple[str, ...]] = ("builds", "build_where", "declared_change")
    SCHEMA: ClassVar[str] = "k3bench.recipe/1"
    schema_: Literal["k3bench.recipe/1"] = Field(default="k3bench.recipe/1", alias="schema")
    name: Name
    title: str
    engine: EngineSpec
    arms: Arms
    builds: dict[Name, BuildSpec] = {}
    build_where: Literal["here", "job"] = "here"
    declared_change: tuple[LockField, ...] | None = None
    workload: Workload
    observations: Annotated[tuple[ObservationSpec, ...], Field(min_length=1)]
    blocks: Positive
    blocks_per_allocation: Positive = 1
    zero_change: Annotated[int, Field(ge=0)] = 0
    margin_pct: Percent = 2.0
    primary_level: Positive
    primary_metric: str = HEADLINE
    looks: Annotated[int, Field(ge=1, le=10)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    validity: Validity = Validity()
    resources: Resources = Resources()
    trace: Profiling = Profiling()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for at, problem, cure in _impossible(self):
            raise PydanticCustomError("impossible", "{problem}", {"at": at, "problem": problem, "cure": cure})
        return self

    @property
    def measured(self) -> dict[str, Any]:
        """The part that decides what is measured, as plain data: a new title or margin measures nothing again."""
        return self.model_dump(mode="json", by_alias=True, include={"engine", "arms", "workload", "validity", "seed"})

    def build_of(self, arm: Literal["before", "after"]) -> BuildSpec:
        """What an arm runs from."""
        return self.builds.get(getattr(self.arms, arm).build, InstalledBuild())

    def rebuilt(self, pair: str) -> bool:
        """Whether a build pair is made anew instead of being shared."""
        return any(o.rebuild for o in self.observations if o.pair == pair)

    @property
    def simulated(self) -> bool:
        """Every number of this campaign is made up, and every page says so."""
        return self.engine.name == "simulated"


def _impossible(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Plans that can never be run or never answer: (field, problem, cure)."""
    levels, ids = list(recipe.workload.levels), [o.id for o in recipe.observations]
    choose = f"valid choices: {', '.join(map(str, levels))}"
    if recipe.name in KEPT_NAMES:
        yield "name", f"results/{recipe.name} is not a campaign's to take", "choose another name for file and recipe"
    runs = 4 * recipe.blocks * len(levels) * (len(ids) + recipe.zero_change)
    if runs > MAX_POINTS:
        yield "blocks", f"{runs} points are more than anyone will measure", f"plan at most {MAX_POINTS} points"
    if recipe.primary_level not in levels:
        yield "primary_level", f"primary_level {recipe.primary_level} is not among workload.levels", choose
    if recipe.primary_metric not in METRICS:
        yield "primary_metric", f"{recipe.primary_metric!r} is no metric", f"valid choices: {', '.join(METRICS)}"
    yield from _impossible_batches(recipe)
    if len(set(levels)) != len(levels):
        yield "workload.levels", f"levels {levels} name a concurrency twice", "name each once"
    for i in sorted({i for i in ids if ids.count(i) > 1}):
        yield "observations", f"observation id {i!r} is used twice", "every rack with a build pair needs its own id"
    for i in (i for i in ids if i.startswith("zero")):
        yield "observations", f"id {i!r}: ids that begin with 'zero' are kept for zero_change", "choose another id"
    if recipe.blocks_per_allocation > recipe.blocks:
        problem = f"blocks_per_allocation {recipe.blocks_per_allocation} exceeds blocks {recipe.blocks}"
        yield "blocks_per_allocation", problem, f"use at most {recipe.blocks}"
    if recipe.looks > recipe.blocks:
        yield "looks", f"{recipe.looks} looks at {recipe.blocks} blocks", "a look needs at least one new block"
    if recipe.trace.tool != "none" and recipe.trace.level not in (None, *levels):
        yield "trace.level", f"trace.level {recipe.trace.level} is not among workload.levels", choose
    if recipe.trace.tool != "none" and recipe.engine.name not in ("k3model", "trtllm"):
        cure = "start the server under nsys yourself and use `k3bench trace`, or write `trace: {tool: none}`"
        yield "trace.tool", f"a profiled run needs engine k3model or trtllm, not {recipe.engine.name}", cure
    for arm in ("before", "after"):
        if recipe.engine.name in IN_PROCESS and getattr(recipe.arms, arm).environment:
            problem = f"arm {arm} has an environment, but both arms of {recipe.engine.name} share one process"
            yield f"arms.{arm}.environment", problem, "remove it; an environment needs an engine that is restarted"
    yield from _impossible_builds(recipe)
    yield from _impossible_serving(recipe)
    yield from _impossible_trtllm(recipe)
    yield from _impossible_ranks(recipe)
    if recipe.simulated and recipe.engine.truth is None:
        yield "engine.name", "engine simulated needs `truth:`", "add tpot_ms, effect_pct, run_sd_pct, ..."
    if recipe.engine.truth is not None and not recipe.simulated:
        yield "engine.truth", "`truth:` belongs to engine simulated only", "a measured engine has no known answer"


def _impossible_ranks(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """A distributed model whose ranks do not fit the nodes and GPUs asked for."""
    engine, nodes, gpus = recipe.engine, recipe.resources.nodes, recipe.resources.gpus_per_node
    if engine.ranks == 1:
        return
    if engine.name != "k3model":
        problem = f"engine {engine.name} runs on one rank, not on {engine.ranks}"
        yield "engine.options", problem, "choose engine k3model, or remove tp_size and collectives"
    if engine.ranks % nodes:
        problem = f"{engine.ranks} ranks cannot be spread evenly over {nodes} nodes"
        yield "resources.nodes", problem, "choose a number of nodes that divides engine.options.tp_size"
    if engine.device == "cuda" and not gpus:
        yield "resources.gpus_per_node", "a rank needs a GPU, and none is asked for", f"write {engine.ranks // nodes}"
    if gpus and nodes * gpus != engine.ranks:
        problem = f"{engine.ranks} ranks on {nodes} x {gpus} GPUs: every rank needs one, and every GPU a rank"
        yield "resources.gpus_per_node", problem, "let nodes x gpus_per_node be engine.options.tp_size"


def _impossible_builds(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Builds that nobody declared, or that the engine cannot run."""
    known, arms, name = (INSTALLED, *recipe.builds), recipe.arms, recipe.engine.name
    for arm in ("before", "after"):
        chosen = getattr(arms, arm).build
        if chosen not in known:
            cure = f"choose from: {', '.join(dict.fromkeys(known))}; or add `builds: {{{chosen}: ...}}`"
            yield f"arms.{arm}.build", f"build {chosen!r} of arm {arm} is not known", cure
    for unused in set(recipe.builds) - {arms.before.build, arms.after.build}:
        yield (
            f"builds.{unused}",
            f"no arm names build {unused!r}",
            "let an arm say `build:` with this name, or remove it",
        )
    if getattr(recipe.builds.get(INSTALLED), "kind", INSTALLED) != INSTALLED:
        yield f"builds.{INSTALLED}", f"{INSTALLED!r} always means what this environment runs", "choose another name"
    if name in IN_PROCESS and arms.before.build != arms.after.build:
        problem = f"both arms of {name} share one process, which can run one build only"
        cure = "let both arms name the same build, or choose engine k3model-served, whose server is started per run"
        yield "arms.after.build", problem, cure
    for arm in ("before", "after"):
        yield from _impossible_build_of(recipe, arm, known)
    for pair in dict.fromkeys(o.pair for o in recipe.observations):
        if len({o.rebuild for o in recipe.observations if o.pair == pair}) > 1:
            yield "observations", f"build pair {pair!r} is both rebuilt and not", "give the rebuilt one its own name"
    valid = (*(f for f in ArmSpec.model_fields if f not in ("build", "environment")), *CODE_FIELDS)
    for field in recipe.declared_change or ():
        if field not in valid and not field.startswith(("environment.", "versions.", *(f"{v}." for v in valid))):
            choices = ", ".join((*valid, "environment.<NAME>", "versions.<package>"))
            yield "declared_change", f"a lock has no field {field!r}", f"valid choices: {choices}"


def _impossible_build_of(recipe: Recipe, arm: Any, known: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    if getattr(recipe.arms, arm).build not in known:
        return
    kind, name, serving = recipe.build_of(arm).kind, recipe.engine.name, recipe.engine.serving
    rebuilt = any(o.rebuild for o in recipe.observations)
    if (kind != INSTALLED or rebuilt) and serving is not None and serving.endpoint:
        cure = "let serving.command start it, or leave `build:` and `rebuild:` out: what runs there is not known here"
        yield f"arms.{arm}.build", "a server that runs already cannot be started from a build", cure
    if kind == "image" and name in (*IN_PROCESS, *K3MODEL):
        problem = f"engine {name} runs from Python packages, not from a container image"
        yield f"arms.{arm}.build", problem, "use a build of kind git, wheel or installed"


#: A point's value is a median of batches, or rests on so many steps in this process that one batch scatters less.
LEAST_BATCHES, LEAST_STEPS = 5, 250


def _impossible_batches(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Points of too little."""
    batches, osl = recipe.workload.batches, recipe.workload.osl_tokens
    if batches >= LEAST_BATCHES or (recipe.engine.name == "k3model" and batches * osl >= LEAST_STEPS):
        return
    problem = f"{batches} batches of {osl} tokens are too little for a point"
    cure = (
        f"use at least {LEAST_BATCHES} batches, or with engine k3model batches x osl_tokens of at least {LEAST_STEPS}"
    )
    yield "workload.batches", problem, cure


def _impossible_serving(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Served engines that could not be reached, and serving keys on engines that have no server."""
    serving, name = recipe.engine.serving, recipe.engine.name
    for arm in ("before", "after"):
        spec = getattr(recipe.arms, arm)
        if spec.arguments and (name in IN_PROCESS or (serving and serving.endpoint)):
            yield f"arms.{arm}.arguments", "no server is started that could take them", "remove them"
        if spec.endpoint and not (name == "openai" and serving and serving.endpoint):
            yield f"arms.{arm}.endpoint", "an arm's endpoint needs engine openai with serving.endpoint", "remove it"
    if name == "openai":
        yield from _impossible_openai(recipe, serving or Serving())
    elif name == "trtllm":
        return
    elif serving is not None and name in IN_PROCESS:
        yield "engine.serving", f"engine {name} runs in this process", "remove `serving:` or choose k3model-served"
    elif serving is not None and (serving.endpoint or serving.command):
        yield "engine.serving", "k3model-served starts its own server", "remove endpoint and command"


def _impossible_openai(recipe: Recipe, serving: Serving) -> Iterator[tuple[str, str, str]]:
    if bool(serving.endpoint) == bool(serving.command):
        problem = "engine openai needs either serving.endpoint or serving.command"
        yield "engine.serving", problem, "give the address of a running server, or the command that starts one"
    if serving.command and not any("{port}" in word for word in serving.command):
        yield "engine.serving.command", "the command does not say where {port} goes", 'add e.g. --port, "{port}"'
    for arm in ("before", "after"):
        words = (*serving.command, *getattr(recipe.arms, arm).arguments)
        if getattr(recipe.build_of(arm), "image", None) and not any("{image}" in word for word in words):
            problem = f"the command does not say where {{image}} goes, and arm {arm} runs from one"
            yield "engine.serving.command", problem, 'name it, e.g. [podman, run, "{image}", serve, --port, "{port}"]'
    if serving.endpoint and serving.restart == "server":
        problem = "a server that runs already cannot be restarted per run"
        yield "engine.serving.restart", problem, "write `restart: none`; the report will say so"
    if serving.endpoint and not recipe.arms.equal and recipe.arms.before.endpoint == recipe.arms.after.endpoint:
        yield "arms.after.endpoint", "both arms would measure the same server", "give each arm its endpoint"


def _impossible_trtllm(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """What only TensorRT-LLM has, on engines that are not it, and the other way round."""
    engine, serving = recipe.engine, recipe.engine.serving
    if engine.name != "trtllm":
        if engine.trtllm is not None:
            yield "engine.trtllm", f"engine {engine.name} is not TensorRT-LLM", "write `name: trtllm`, or remove it"
        for arm in ("before", "after"):
            if getattr(recipe.arms, arm).config:
                yield f"arms.{arm}.config", f"engine {engine.name} has no YAML file", "remove it"
        return
    if engine.trtllm is None:
        yield "engine.trtllm", "engine trtllm needs `trtllm:`", "see recipes/gb300-tep16-pr17103.yaml"
    if serving is not None and (serving.endpoint or serving.command or serving.restart != "server"):
        cure = "remove endpoint, command and restart; attach to a running server with engine openai"
        yield "engine.serving", "engine trtllm starts its own server for every run", cure
    if recipe.trace.tool not in ("none", "nsys"):
        yield "trace.tool", f"{recipe.trace.tool} cannot trace the ranks of TensorRT-LLM", "write `trace: {tool: nsys}`"
