"""A recipe in, every reason why its TensorRT-LLM campaign must not be submitted out: place, problem, cure.

Hours of sixteen GPUs hang on a slip: what the pinned version does not take, what K3 cannot do, what a shell or the
launcher would take apart. Out of scope: what every recipe must be (`records/recipe.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from k3bench.change import undeclared
from k3bench.errors import RecipeError
from k3bench.records.measurement import ARMS, Arm
from k3bench.records.recipe import Recipe
from k3bench.records.trtllm import Trtllm
from k3bench.serving.trtllm.known import Known, known
from k3bench.serving.trtllm.settings import Settings, settings, spec_of

Problem = tuple[tuple[str, ...], str, str]
HERE = ("engine", "trtllm")
#: What neither a shell, nor srun's lists, nor the launcher takes apart.
PLAIN = re.compile(r"^[A-Za-z0-9_./:@%+=,~-]+$")
VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
MOUNT = re.compile(r"^/[^:]*:/[^:]*(:(ro|rw))?$")
#: A name that would be printed with its value in logs, goldens and reports.
SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY", re.IGNORECASE)
#: K3's page of the KV cache.
PAGE_TOKENS = 64
#: Flags that are written by the engine itself.
OWN_FLAGS = ("config", "port")


def problems(recipe: Recipe) -> Iterator[Problem]:
    """Everything wrong, the version first: without it nothing else can be judged."""
    spec = spec_of(recipe)
    try:
        listed = known(spec.version)
    except RecipeError as error:
        yield (*HERE, "version"), error.what, error.fix
        return
    yield from _texts(recipe, spec)
    yield from _flags(spec.flags, listed, (*HERE, "flags"))
    for _, problem, cure in listed.key_problems(spec.config):
        yield (*HERE, "config"), problem, cure
    for arm in ARMS:
        yield from _arm(recipe, listed, arm)
    if others := undeclared(recipe):
        problem = f"the arms differ in {', '.join(others)}, which declared_change does not name"
        yield ("declared_change",), problem, "make the arms alike in it, or declare it: it is part of the answer"


def _arm(recipe: Recipe, listed: Known, arm: Arm) -> Iterator[Problem]:
    side, at = getattr(recipe.arms, arm), ("arms", arm)
    for _, problem, cure in listed.key_problems(side.config):
        yield (*at, "config"), problem, cure
    try:
        yield from _flags(listed.read_words(side.arguments), listed, (*at, "arguments"))
        found = settings(recipe, arm)
    except RecipeError as error:
        yield (*at, "arguments"), error.what, error.fix
        return
    yield from _variables(found.environment, at)
    yield from _sizes(recipe, listed, found, arm)
    yield from _shape(recipe, found)
    yield from _k3(found)


def _flags(flags: Mapping[str, Any], listed: Known, at: tuple[str, ...]) -> Iterator[Problem]:
    own = [listed.flags[word][0] for word in flags if word in listed.flags]
    for name in {name for name in own if own.count(name) > 1}:
        yield at, f"flag --{name} is given twice, under two of its words", "keep one of them"
    for word, value in flags.items():
        problem = listed.flag_problem(word, value)
        if problem is not None:
            yield at, *problem
        elif listed.flags[word][0] in OWN_FLAGS:
            yield at, f"--{word} is written by k3bench", "use engine.trtllm.config for keys, engine.trtllm.port"


# --- what is taken apart on its way
def _texts(recipe: Recipe, spec: Trtllm) -> Iterator[Problem]:
    words: dict[tuple[str, ...], str | None] = {("model",): spec.model, ("programs",): spec.programs}
    if spec.container is not None:
        words[("container", "image")] = spec.container.image
        words |= {("container", "mounts", str(n)): mount for n, mount in enumerate(spec.container.mounts)}
    if spec.accuracy is not None:
        words[("accuracy", "dataset")] = spec.accuracy.dataset
    words |= {("flags", name): value for name, value in spec.flags.items() if isinstance(value, str)}
    for place, text in words.items():
        if text is not None:
            yield from _plain((*HERE, *place), text)
    for arm in ARMS:
        for n, text in enumerate(getattr(recipe.arms, arm).arguments):
            yield from _plain(("arms", arm, "arguments", str(n)), text)
    image = spec.container.image if spec.container else "/"
    if not image.startswith(("/", "./")) and not re.search(r"@sha256:[0-9a-f]{64}$", image):
        problem = f"{image!r} can become another image between two jobs: a tag can be moved"
        cure = "name it by digest, repo/name@sha256:<64 hex>, or write the path of an imported file, /images/name.sqsh"
        yield (*HERE, "container", "image"), problem, cure
    for n, mount in enumerate(spec.container.mounts if spec.container else ()):
        if not MOUNT.match(mount) or "," in mount:
            at = (*HERE, "container", "mounts", str(n))
            yield at, f"{mount!r} is no mount", "write /from:/to, /from:/to:ro or /from:/to:rw"


def _plain(at: tuple[str, ...], text: str) -> Iterator[Problem]:
    if re.search(r"\s", text):
        cure = "no space in names and values; whatever needs one belongs in the YAML file (engine.trtllm.config)"
        yield at, f"{text!r} holds a space: trtllm-llmapi-launch splits its arguments again, without quotes", cure
    elif not PLAIN.match(text):
        bad = "".join(dict.fromkeys(c for c in text if not PLAIN.match(c)))
        yield at, f"{text!r} holds {bad!r}, which a shell would read", "letters, digits and _ . / : @ % + = , ~ - only"
    elif text.startswith("-") and at[-2] != "arguments":
        yield at, f"{text!r} would be read as an option", "let it begin with a letter, a digit or a slash"


def _variables(environment: Mapping[str, str], at: tuple[str, ...]) -> Iterator[Problem]:
    for name, value in environment.items():
        if not VARIABLE.match(name):
            yield (*at, "environment"), f"{name!r} is no name of a variable", "letters, digits, underscores"
        elif SECRET.search(name):
            cure = "export it in the shell that starts k3bench: srun passes it on, and nothing writes it down"
            yield (*at, "environment"), f"{name} looks like a secret, and a recipe is published", cure
        elif value and not PLAIN.match(value):
            yield (*at, "environment"), f"{name}={value!r} holds what a shell would read", "letters, digits, _./:@%+=~-"


# --- what does not fit the machine or the workload
def _shape(recipe: Recipe, found: Settings) -> Iterator[Problem]:
    size, work, config = recipe.resources, recipe.workload, found.config
    gpus = size.nodes * size.gpus_per_node
    tp, ep = _size(found, "tensor_parallel_size", 1), _size(found, "moe_expert_parallel_size", None)
    cp = _size(found, "context_parallel_size", 1)
    if tp * cp != gpus:
        cure = f"tp_size: {gpus // cp}; or resources.nodes x resources.gpus_per_node = {tp * cp}"
        problem = f"TP {tp} does not use the {size.nodes} nodes x {size.gpus_per_node} GPUs of an allocation"
        yield ("resources",), problem, cure
    if ep is not None and tp % ep:
        yield HERE, f"{ep} expert-parallel ranks do not divide TP {tp}", f"moe_expert_parallel_size: {tp}"
    if size.segment is not None and size.nodes % size.segment:
        fitting = ", ".join(str(n) for n in range(1, size.nodes + 1) if size.nodes % n == 0)
        problem = f"segments of {size.segment} nodes do not make up the {size.nodes} nodes of an allocation"
        yield ("resources", "segment"), problem, f"write one that divides resources.nodes: {fitting}; or leave it out"
    if config["stream_interval"] != work.stream_interval:
        problem = f"stream_interval {config['stream_interval']} is not workload.stream_interval {work.stream_interval}"
        yield (*HERE, "config"), problem, "state it once, under workload"


def _sizes(recipe: Recipe, listed: Known, found: Settings, arm: Arm) -> Iterator[Problem]:
    """Batches and tokens that the levels need, each with the key that says otherwise."""
    level, need = max(recipe.workload.levels), recipe.workload.isl_tokens + recipe.workload.osl_tokens
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        given, at = found.config.get(name), _written(recipe, listed, arm, name)
        given = found.flags[name] if given is None else given
        if not isinstance(given, int) or given < 1:
            yield at, f"{name} is {given!r}: a positive whole number is needed", f"mend {'.'.join(at)}, or leave it out"
        elif name == "max_batch_size" and level > given:
            cure = f"raise {'.'.join(at)} to {level} or more"
            yield at, f"level {level} exceeds max_batch_size {given}: requests would queue", cure
        elif name == "max_seq_len" and need > given:
            cure = f"raise {'.'.join(at)} to {need} or more, or leave it out"
            yield at, f"max_seq_len {given} is less than ISL + OSL = {need}", cure
    graphs = found.config.get("cuda_graph_config") or {}
    captured = max((n for n in graphs.get("batch_sizes") or () if isinstance(n, int)), default=0)
    name, most = ("batch_sizes", captured) if captured else ("max_batch_size", graphs.get("max_batch_size") or level)
    if most < level:
        at = (*_written(recipe, listed, arm, "cuda_graph_config"), name)
        problem = f"cuda_graph_config.{name} ends at {most}: level {level} would run without a captured graph"
        yield at, problem, f"raise {'.'.join(at)} to {level} or more"


def _written(recipe: Recipe, listed: Known, arm: Arm, name: str) -> tuple[str, ...]:
    """Where the value that counts is written: an arm before both, the YAML file before the command line."""
    spec, side = spec_of(recipe), getattr(recipe.arms, arm)
    if name in side.config:
        return ("arms", arm, "config", name)
    if name in spec.config:
        return (*HERE, "config", name)
    if any(listed.flags[word][0] == name for word in listed.read_words(side.arguments)):
        return ("arms", arm, "arguments")
    return (*HERE, "flags", next((word for word in spec.flags if listed.flags[word][0] == name), name))


def _size(found: Settings, name: str, default: Any) -> Any:
    """The YAML file overwrites the command line."""
    return found.config.get(name) or found.flags.get(name) or default


def _k3(found: Settings) -> Iterator[Problem]:
    """What the project's own page on K3 says is not there."""
    cache = found.config.get("kv_cache_config") or {}
    share = "free_gpu_memory_fraction"
    for what, value in {f"kv_cache_config.{share}": cache.get(share), f"--{share}": found.flags.get(share)}.items():
        if value is not None and not 0 < float(value) <= 1:
            cure = "write a share of the free memory, above 0 and at most 1, e.g. 0.25 and not 25"
            yield (*HERE, "config", "kv_cache_config", share), f"{what} is {value}", cure
    dtypes = {"kv_cache_config.dtype": cache.get("dtype"), "--kv_cache_dtype": found.flags.get("kv_cache_dtype")}
    for what, dtype in dtypes.items():
        if str(dtype).startswith("fp8"):
            yield HERE, f"{what} is {dtype}: K3 has no FP8 KV cache in TensorRT-LLM", "leave it out, or write auto"
    if cache.get("tokens_per_block") not in (None, PAGE_TOKENS):
        yield HERE, f"kv_cache_config.tokens_per_block is {cache['tokens_per_block']}", f"K3 needs {PAGE_TOKENS}"
    if _size(found, "pipeline_parallel_size", 1) > 1:
        yield HERE, "K3 has no pipeline parallelism in TensorRT-LLM", "leave pp_size out"
