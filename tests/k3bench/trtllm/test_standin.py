"""The stand-in is strict where TensorRT-LLM is: what it lets pass, a campaign on the loopback Slurm does not show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.standin import install

WORDS = ["--backend", "pytorch", "--host", "0.0.0.0", "--port", "1", "--tp_size", "16", "--max_batch_size", "1"]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its `bin/`."""
    return install(tmp_path_factory.mktemp("standin"))


def refused(programs: Path, tmp_path: Path, words: list[str], config: dict) -> str:
    """What trtllm-serve says when it ends with status 2 before it serves anything."""
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [str(programs / "trtllm-serve"), "/models/K3", *words, "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("more", "config", "said"),
    [
        (["--max_batch", "1"], {}, "no flag --max_batch"),
        (["--max_num_tokens", "many"], {}, "a whole number"),
        ([], {"kv_cache_confg": {}}, "no YAML key kv_cache_confg"),
        ([], {"kv_cache_config": {"dtype": "fp8"}}, "no FP8 KV cache"),
    ],
)
def test_it_refuses_what_is_not_documented(
    more: list[str], config: dict, said: str, programs: Path, tmp_path: Path
) -> None:
    """Flags, their values, YAML keys, and what K3 does not have."""
    assert said in refused(programs, tmp_path, [*WORDS, *more], config)


def launched(programs: Path, folder: Path, *words: str) -> list:
    """Arguments and environment of a command under the launcher, as the only rank of a Slurm step."""
    tell = folder / "tell"
    tell.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n")
    tell.chmod(0o755)
    slurm = {"PROCID": "0", "NTASKS": "1", "LOCALID": "0", "STEP_ID": "0", "STEP_NUM_NODES": "1"}
    slurm = {f"SLURM_{name}": value for name, value in slurm.items()} | {"SLURM_JOB_ID": str(os.getpid())}
    environment = os.environ | slurm | {"SLURMD_NODENAME": "n1", "PMIX_RANK": "0"}
    command = [str(programs / "trtllm-llmapi-launch"), str(tell), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    joined, told = done.stdout.splitlines()
    assert joined == "ranks joined: 1 on 1 nodes"
    return json.loads(told)


def test_its_launcher_takes_words_apart_and_hides_slurm_as_the_real_one_does(programs: Path, tmp_path: Path) -> None:
    """The reason why an argument with a space is refused before submission."""
    arguments, variables = launched(programs, tmp_path, "--chat_template", "a b")
    assert arguments == ["--chat_template", "a", "b"]
    assert not [name for name in variables if name.startswith(("SLURM_", "PMIX_"))]
