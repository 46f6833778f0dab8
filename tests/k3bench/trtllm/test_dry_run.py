"""What a dry run shows: every job, file and command of the pull request's campaign, and that no word of it can break.

A mismatch leaves a `.got` file beside the golden. To take it over after reading it:
`K3_UPDATE_GOLDENS=1 ./k3 test tests/k3bench/trtllm/test_dry_run.py`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from k3bench.cli import main
from k3bench.records.recipe import Resources
from k3bench.serving.trtllm.commands import Commands, Place
from k3bench.serving.trtllm.settings import Settings

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes/gb300-tep16-pr17103.yaml"
GOLDEN = ROOT / "tests/golden/trtllm-dry-run"


def dry(verb: str, *words: str, folder: Path, capsys: pytest.CaptureFixture[str], recipe: Path = RECIPE) -> str:
    """What a verb prints in a folder that has the recipe and nothing else, without the names of this machine."""
    (folder / "recipes").mkdir(exist_ok=True)
    shutil.copy(recipe, folder / "recipes")
    assert main([verb, f"recipes/{recipe.name}", *words, "--dry-run"]) == 0
    assert [path.name for path in folder.iterdir()] == ["recipes"], "a dry run writes nothing"
    return capsys.readouterr().out.replace(str(folder), "/clone").replace(sys.executable, "/clone/.venv/bin/python")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place to stand in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


@pytest.mark.parametrize("verb", ["build", "measure"])
def test_the_campaign_of_the_pull_request_is_the_one_that_was_read(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs, files and commands in their order, word for word."""
    got, golden = dry(verb, folder=folder, capsys=capsys), GOLDEN / f"{verb}.txt"
    if os.environ.get("K3_UPDATE_GOLDENS"):
        golden.write_text(got)
    if got != golden.read_text():
        golden.with_suffix(".got").write_text(got)
    assert got == golden.read_text(), f"see {golden.with_suffix('.got')}"


def commands_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("verb", ["build", "measure"])
def test_every_command_survives_a_round_trip(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Taken apart by a shell's rules and put together again it is the same; so are the words inside `bash -c`."""
    lines = commands_of(dry(verb, folder=folder, capsys=capsys))
    assert len(lines) > 10
    for line in lines:
        words = shlex.split(line)
        assert shlex.join(words) == line
        if verb == "measure" and "-c" in words:
            inner = words[-1].rpartition("; exec ")[2]
            assert shlex.join(shlex.split(inner)) == inner


def test_the_server_s_command_has_the_pieces_of_the_project_s_own_sweep_in_their_order(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """srun, MPI, container, log, launcher, server: as `examples/kimi_k3/perf_sweep` starts TEP16."""
    lines = commands_of(dry("measure", "obs1/alloc1", folder=folder, capsys=capsys))
    servers = [line for line in lines if "trtllm-serve" in line]
    assert len(servers) == 4
    pieces = [
        "srun", "--nodes=4", "--ntasks=16", "--ntasks-per-node=4", "--gpus-per-node=4", "--mpi=pmix",
        "--kill-on-bad-exit=1", "--container-image=", "--container-mount-home", "--container-mounts=", "--output=",
        "bash -c", "ulimit -n 65536", "KIMI_K3_FP8_WEIGHT_READ=1", "exec ",
        "trtllm-llmapi-launch trtllm-serve /models/Kimi-K3",
        "--backend pytorch --host 0.0.0.0 --port 8000 --tp_size 16 --max_batch_size 16 --max_num_tokens 8208 "
        "--max_seq_len 9344 --trust_remote_code --config ",
    ]  # fmt: skip
    for line in servers:
        at = [line.index(piece) for piece in pieces]
        assert at == sorted(at)
    job = lines[0]
    assert "--segment=4" in job
    assert "--switches" not in job
    assert "--time=120" in job


def test_the_other_client_and_a_bare_place_are_shown_as_well(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """benchmark_serving beside the server; without a container no shell reads anything."""
    text = RECIPE.read_text().replace("    flags: {", "    client: benchmark_serving\n    flags: {")
    start, end = text.index("    container:\n"), text.index("    client:")
    changed = tmp_path_factory.mktemp("changed") / RECIPE.name
    changed.write_text(text[:start] + text[end:])
    lines = commands_of(dry("measure", "obs1/alloc1", folder=folder, capsys=capsys, recipe=changed))
    assert not any("bash" in line or "container" in line for line in lines)
    clients = [line for line in lines if "benchmark_serving" in line]
    assert len(clients) == 4 * 4 * 2
    measured = next(line for line in clients if "--max-concurrency 4" in line and "--save-result" in line)
    assert "--num-prompts 20" in measured
    assert "--random-ids --tokenize-on-client --random-input-len 8192 --random-output-len 1024 --ignore-eos" in measured


IMAGES = [{"kind": "image", "image": f"registry/trtllm@sha256:{letter * 64}"} for letter in "ab"]
#: What the arms differ in: (builds, arms, declared change, what tells the after arm's server apart)
DIFFERENT = {
    "an image digest": (
        {"main": IMAGES[0], "pr-17103": IMAGES[1]}, {}, ["image"], f"--container-image={IMAGES[1]['image']}"),
    "a wheel": (
        {"main": {"kind": "wheel", "path": "a.whl"}, "pr-17103": {"kind": "wheel", "path": "b.whl"}},
        {}, ["wheel"], "DIGEST-OF-pr-17103/tree/tensorrt_llm/llmapi/trtllm-llmapi-launch"),
    "a patch file": (
        {"main": {"kind": "git", "ref": "main"}, "pr-17103": {"kind": "git", "ref": "main", "patch": "change.patch"}},
        {}, ["patch"], "DIGEST-OF-pr-17103/tree/tensorrt_llm/llmapi/trtllm-llmapi-launch"),
    "a variable": (
        {}, {"environment": {"TRTLLM_ENABLE_PDL": "1"}}, ["environment.TRTLLM_ENABLE_PDL"], "TRTLLM_ENABLE_PDL=1"),
    "a YAML key": (
        {}, {"config": {"moe_config": {"backend": "TRTLLM"}}}, ["config.moe_config.backend"], "backend: TRTLLM"),
    "a flag": (
        {}, {"arguments": ["--max_batch_size", "32"]}, ["arguments"], "--max_batch_size 32 --max_num_tokens 8224"),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_arms_differ_in_what_the_recipe_says(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The difference is in the after arm's server or YAML file and nowhere in the before arm's."""
    builds, more, declared, mark = DIFFERENT[what]
    recipe = yaml.safe_load(RECIPE.read_text()) | {"builds": builds, "declared_change": ["policy", *declared]}
    recipe["arms"] = {"before": {"policy": "before"}, "after": {"policy": "after"} | more}
    for arm, name in (("before", "main"), ("after", "pr-17103")) if builds else ():
        recipe["arms"][arm]["build"] = name
    changed = tmp_path_factory.mktemp("changed") / RECIPE.name
    changed.write_text(yaml.safe_dump(recipe, sort_keys=False))
    text = dry("measure", "obs1/alloc1", folder=folder, capsys=capsys, recipe=changed)
    told = {"before": "", "after": ""}
    arm = "before"
    for line in text.splitlines():
        arm = next((a for a in told if line.endswith(f"trtllm/{a}.yaml") or f": {a}, as {a} " in line), arm)
        told[arm] += line + "\n"
    assert mark in told["after"]
    assert mark not in told["before"]


AWKWARD = {"A": "x,y=z", "PATHS": "/a:/b", "EMPTY": "", "TILDE": "~/x"}


@pytest.mark.parametrize("image", [None, "/images/x.sqsh"])
def test_every_word_arrives_as_it_was_written(image: str | None, tmp_path: Path) -> None:
    """Run as srun would run it on a rank: arguments and variables reach the launcher unchanged, each rank its cache."""
    told = tmp_path / "trtllm-llmapi-launch"
    told.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n")
    told.chmod(0o755)
    settings = Settings("/m", {"tensor_parallel_size": 16, "trust_remote_code": True}, {}, {})
    place = Place(str(told), str(tmp_path), image)
    size = Resources(nodes=4, gpus_per_node=4)
    words = Commands(settings, place, size, "pmix", tmp_path / "c.yaml", AWKWARD).server("k3-x", tmp_path / "log")
    program = words[words.index("bash") :] if image else words[words.index("env") :]
    done = subprocess.run(program, env=os.environ | {"SLURM_PROCID": "3"}, capture_output=True, text=True, check=True)
    arguments, variables = json.loads(done.stdout)
    assert arguments == [
        "trtllm-serve",
        "/m",
        "--tp_size",
        "16",
        "--trust_remote_code",
        "--config",
        f"{tmp_path}/c.yaml",
    ]
    assert {name: variables[name] for name in AWKWARD} == AWKWARD
    assert variables["PATH"].startswith(f"{tmp_path}:")
    assert variables["TRITON_CACHE_DIR"] == ("/tmp/triton-cache-rank3" if image else "/tmp/triton-cache")
