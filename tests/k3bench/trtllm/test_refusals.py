"""What is refused before a campaign of TensorRT-LLM is submitted: each slip with its line, its words and its cure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from k3bench.errors import RecipeError
from k3bench.recipe import load_recipe, parse_recipe
from k3bench.serving.trtllm.known import known, versions
from tests.workflow.clone import environment, make_clone

RECIPE = Path(__file__).parents[3] / "recipes/gb300-tep16-pr17103.yaml"
GOOD = RECIPE.read_text()


def refuse(old: str, new: str) -> str:
    """The message for the recipe with one passage changed."""
    assert GOOD.count(old) == 1, old
    with pytest.raises(RecipeError) as caught:
        parse_recipe(GOOD.replace(old, new), where="gb300.yaml", name=RECIPE.stem)
    return str(caught.value)


def test_the_recipe_of_the_pull_request_is_accepted() -> None:
    """Nothing of it is unknown to the pinned version."""
    assert load_recipe(RECIPE).engine.trtllm is not None


REFUSED = {
    "a YAML key that does not exist": (
        "free_gpu_memory_fraction: 0.25", "free_gpu_memory_fracton: 0.25",
        "has no YAML key kv_cache_config.free_gpu_memory_fracton", "did you mean `free_gpu_memory_fraction`?"),
    "a key of a group at the top": (
        "      moe_expert_parallel_size: 16", "      free_gpu_memory_fraction: 0.3\n      moe_expert_parallel_size: 16",
        "has no YAML key free_gpu_memory_fraction", "valid choices: "),
    "a group that is a value": (
        "cuda_graph_config: {max_batch_size: 16}", "cuda_graph_config: 16",
        "YAML key cuda_graph_config is 16", "it is a group of: "),
    "a value of another kind": (
        "enable_attention_dp: false", "enable_attention_dp: 'no'", "enable_attention_dp is 'no'", "true or false"),
    "a choice that is none": (
        "      enable_attention_dp: false", "      enable_attention_dp: false\n      moe_config: {backend: TRITTON}",
        "moe_config.backend is 'TRITTON'", "CUTEDSL"),
    "a flag that does not exist": (
        "max_batch_size: 16, trust", "max_batch: 16, trust", "no flag --max_batch", "did you mean `max_batch_size`?"),
    "a flag's value of another kind": (
        "max_batch_size: 16, trust", "max_batch_size: many, trust", "--max_batch_size is 'many'", "a whole number"),
    "an arm's argument that is no flag": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, arguments: [--max_batch, '8']}",
        "has no flag --max_batch", "did you mean `max_batch_size`?"),
    "an arm's YAML key that does not exist": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, config: {enable_overlap: true}}",
        "has no YAML key enable_overlap", "valid choices: "),
    "an FP8 KV cache": (
        "free_gpu_memory_fraction: 0.25", "dtype: fp8, free_gpu_memory_fraction: 0.25",
        "kv_cache_config.dtype is fp8: K3 has no FP8 KV cache", "write auto"),
    "an FP8 KV cache by flag": (
        "max_batch_size: 16, trust", "kv_cache_dtype: fp8, max_batch_size: 16, trust",
        "--kv_cache_dtype is fp8: K3 has no FP8 KV cache", "write auto"),
    "another page of the KV cache": (
        "free_gpu_memory_fraction: 0.25", "tokens_per_block: 32, free_gpu_memory_fraction: 0.25",
        "tokens_per_block is 32", "K3 needs 64"),
    "pipeline parallelism": (
        "max_batch_size: 16, trust", "pp_size: 2, max_batch_size: 16, trust", "no pipeline parallelism", "pp_size out"),
    "TP that does not fill the nodes": (
        "max_batch_size: 16, trust", "tp_size: 8, max_batch_size: 16, trust",
        "TP 8 does not use the 4 nodes x 4 GPUs", "tp_size: 16"),
    "nodes that do not hold TP": (
        "nodes: 4, gpus_per_node: 4", "nodes: 2, gpus_per_node: 4", "16 expert-parallel ranks do not divide TP 8", "8"),
    "one flag under two words": (
        "max_batch_size: 16, trust", "tp_size: 16, tensor_parallel_size: 16, max_batch_size: 16, trust",
        "flag --tensor_parallel_size is given twice", "keep one"),
    "a batch that the YAML file makes smaller": (
        "      enable_attention_dp: false", "      enable_attention_dp: false\n      max_batch_size: 4",
        "level 8 exceeds max_batch_size 4", "raise engine.trtllm.config.max_batch_size to 8"),
    "a level beyond the batch": (
        "max_batch_size: 16, trust", "max_batch_size: 4, trust",
        "level 8 exceeds max_batch_size 4", "raise engine.trtllm.flags.max_batch_size to 8"),
    "a level beyond an arm's batch": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, arguments: [--max_batch_size, '4']}",
        "level 8 exceeds max_batch_size 4", "raise arms.after.arguments to 8"),
    "a negative batch": (
        "max_batch_size: 16, trust", "max_batch_size: -16, trust",
        "max_batch_size is -16: a positive whole number", "mend engine.trtllm.flags.max_batch_size"),
    "a level without a graph": (
        "cuda_graph_config: {max_batch_size: 16}", "cuda_graph_config: {max_batch_size: 4}",
        "cuda_graph_config.max_batch_size ends at 4: level 8 would run without a captured graph",
        "raise engine.trtllm.config.cuda_graph_config.max_batch_size to 8"),
    "a level beyond the listed graphs": (
        "cuda_graph_config: {max_batch_size: 16}", "cuda_graph_config: {batch_sizes: [1, 2, 4]}",
        "cuda_graph_config.batch_sizes ends at 4", "to 8 or more"),
    "per cent instead of a share": (
        "free_gpu_memory_fraction: 0.25", "free_gpu_memory_fraction: 25",
        "free_gpu_memory_fraction is 25", "above 0 and at most 1"),
    "per cent instead of a share, by flag": (
        "max_batch_size: 16, trust", "free_gpu_memory_fraction: 25.0, max_batch_size: 16, trust",
        "--free_gpu_memory_fraction is 25.0", "above 0 and at most 1"),
    "a YAML batch of nothing": (
        "      enable_attention_dp: false", "      enable_attention_dp: false\n      max_batch_size: 0",
        "max_batch_size is 0: a positive whole number", "mend engine.trtllm.config.max_batch_size"),
    "no memory at all": (
        "free_gpu_memory_fraction: 0.25", "free_gpu_memory_fraction: 0",
        "free_gpu_memory_fraction is 0", "above 0 and at most 1"),
    "a segment larger than the allocation": (
        "segment: 4}", "segment: 8}", "segments of 8 nodes do not make up the 4 nodes", "1, 2, 4; or leave it out"),
    "a segment that does not divide the nodes": (
        "segment: 4}", "segment: 3}", "segments of 3 nodes do not make up the 4 nodes", "1, 2, 4; or leave it out"),
    "an image by tag": (
        "      image: /images/tensorrt-llm-devel.sqsh", "      image: nvcr.io/nvidia/tensorrt-llm/release:latest",
        "a tag can be moved", "@sha256:<64 hex>"),
    "an output beyond any context": (
        "osl_tokens: 1024", "osl_tokens: 100000000000000000000",
        "isl_tokens + osl_tokens = 100000000000000008192 is beyond K3's 1048576 positions", "shorten"),
    "an output that is no whole number": (
        "osl_tokens: 1024", "osl_tokens: 1.0e+20", "`workload.osl_tokens` is 1e+20", "write a whole number"),
    "a context that is too short": (
        "max_batch_size: 16, trust", "max_seq_len: 9000, max_batch_size: 16, trust",
        "max_seq_len 9000 is less than ISL + OSL = 9216", "raise engine.trtllm.flags.max_seq_len to 9216"),
    "another stream interval": (
        "      moe_expert_parallel_size: 16", "      stream_interval: 20\n      moe_expert_parallel_size: 16",
        "stream_interval 20 is not workload.stream_interval 10", "state it once"),
    "an argument with a space": (
        "model: /models/Kimi-K3", "model: /models/Kimi K3", "'/models/Kimi K3' holds a space", "splits its arguments"),
    "an arm's argument with a space": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, arguments: [--chat_template, 'a b']}",
        "'a b' holds a space", "YAML file"),
    "a quote": ("model: /models/Kimi-K3", "model: \"/models/K3'\"", "which a shell would read", "letters"),
    "a command in a name": ("model: /models/Kimi-K3", "model: /models/$(id)", "which a shell would read", "letters"),
    "a name that would be an option": ("model: /models/Kimi-K3", "model: --help", "read as an option", "slash"),
    "a mount that is none": ("/cache:/cache:rw", "/cache:rw", "'/cache:rw' is no mount", "/from:/to:ro"),
    "a variable with a shell in it": (
        "TLLM_LOG_LEVEL: info", "TLLM_LOG_LEVEL: \"a;b\"", "holds what a shell would read", "letters"),
    "a variable that is none": ("TLLM_LOG_LEVEL: info", "TLLM-LOG: info", "'TLLM-LOG' is no name of a variable", ""),
    "a secret": ("TLLM_LOG_LEVEL: info", "HF_TOKEN: abc", "HF_TOKEN looks like a secret", "export it in the shell"),
    "arms that differ in more than declared": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, environment: {TRTLLM_ENABLE_PDL: '1'}}",
        "the arms differ in environment.TRTLLM_ENABLE_PDL, which declared_change does not name", "declare it"),
    "arms with an undeclared YAML key": (
        "{policy: after, build: pr-17103}", "{policy: after, build: pr-17103, config: {moe_config: {backend: TRTLLM}}}",
        "the arms differ in config.moe_config.backend", "declare it"),
    "a version that is not known": (
        "version: main-50aec1cb", "version: main-ffffffff", "main-ffffffff are not known", "main-50aec1cb"),
    "a server of its own": (
        "serving: {model", "serving: {command: [trtllm-serve], model",
        "engine trtllm starts its own server", "engine openai"),
    "a trace that needs the process": ("  tool: nsys", "  tool: kineto", "kineto cannot trace the ranks", "tool: nsys"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_slip_is_refused_before_submission(what: str) -> None:
    """With file and line, what is wrong, and how to mend it."""
    old, new, problem, cure = REFUSED[what]
    message = refuse(old, new)
    assert problem in message
    assert cure in message
    assert "where: gb300.yaml:" in message
    assert "fix:" in message


@pytest.mark.parametrize("version", versions())
def test_the_lists_name_their_source_and_know_every_word_of_a_flag(version: str) -> None:
    """Facts with an origin; `--tp_size` and `--tensor_parallel_size` are one flag."""
    listed = known(version)
    text = (Path(known.__wrapped__.__code__.co_filename).parent / "known" / f"{version}.yaml").read_text()
    assert listed.commit in text
    assert "github.com/NVIDIA/TensorRT-LLM" in text
    assert listed.flags["tp_size"] == listed.flags["tensor_parallel_size"]
    assert len(listed.flags) > 50
    assert len(listed.keys) > 100


@pytest.mark.parametrize("added", ["trtllm: {version: main-50aec1cb, model: /m}", "arms"])
def test_its_keys_belong_to_its_engine(added: str) -> None:
    """An engine without a YAML file is not given one."""
    laptop = (RECIPE.parent / "laptop.yaml").read_text()
    old, new = ("policy: after", "policy: after, config: {stream_interval: 1}")
    if added != "arms":
        old, new = ("  name: k3model", f"  name: k3model\n  {added}")
    assert laptop.count(old) == 1
    with pytest.raises(RecipeError, match=r"has no YAML file|is not TensorRT-LLM"):
        parse_recipe(laptop.replace(old, new), where="laptop.yaml", name="laptop")


@pytest.mark.parametrize(
    ("folder", "profile", "said"),
    [("clone", "laptop", "engine trtllm starts its ranks with srun"), ("a clone", "slurm", "takes apart")],
)
def test_a_campaign_is_not_begun_where_its_ranks_cannot_start(
    folder: str, profile: str, said: str, tmp_path: Path
) -> None:
    """Without Slurm, and in a folder whose name the launcher would split."""
    clone = make_clone(tmp_path / folder, **{RECIPE.stem: GOOD})
    command = [sys.executable, "-m", "k3bench", "run", "--profile", profile, f"recipes/{RECIPE.name}"]
    done = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (clone / "results" / RECIPE.stem).exists()
