"""A fingerprint says what the machine was, never a secret, and two of them name what differs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from k3bench.fingerprint import capture, difference, moving_part, stable_part
from k3bench.records.fingerprint import Fingerprint, GpuState

FAKE_NVML = Path(__file__).parent / "fake_nvml"
SECRET = "hunter2-8c1f-do-not-write-me-down"


def test_the_machine_is_described_and_survives_its_own_file():
    """Processor, memory, kernel, Python and versions are there, and the record reads back the same."""
    taken = capture(device="cpu", modules=("numpy", "no-such-package"))
    assert taken.stable.host.cpu_count >= taken.stable.host.cpus_usable >= 1
    assert taken.stable.packages["numpy"]
    assert taken.stable.packages["no-such-package"] is None
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert taken.stable.host.boot == (boot.read_text().strip() if boot.exists() else "")
    assert Fingerprint.from_bytes(taken.to_bytes()) == taken


def test_what_is_absent_says_why():
    """On a processor there are no GPUs, and no work tree was named: null with a reason, never zero."""
    taken = capture(device="cpu")
    assert taken.stable.driver is None
    assert taken.stable.repository is None
    assert taken.absent["gpus"] == "the device is cpu"
    assert taken.absent["repository"] == "no work tree was named"


PLANTED = [
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "HF_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_URI",
    "SLURM_JWT",
    "SSH_AUTH_SOCK",
    "OPENAI_API_KEY",
    "HOME",
    "PATH",
    "USER",
    "HTTPS_PROXY",
    "PS1",
]


@pytest.mark.parametrize("name", PLANTED)
def test_no_secret_and_nothing_unlisted_is_ever_written(monkeypatch, name):
    """Only variables on the list are read at all."""
    monkeypatch.setenv(name, SECRET)
    assert SECRET not in capture(device="cpu").to_bytes().decode()


def test_a_recipe_cannot_ask_for_a_secret_by_name(monkeypatch):
    """Names a recipe adds are refused when they look like a secret, and kept otherwise."""
    monkeypatch.setenv("MY_API_KEY", SECRET)
    monkeypatch.setenv("K3_FORK_MODE", "all")
    taken = capture(device="cpu", environment=("MY_API_KEY", "K3_FORK_MODE"))
    assert taken.stable.environment["K3_FORK_MODE"] == "all"
    assert SECRET not in taken.to_bytes().decode()


@pytest.mark.parametrize(
    "value", ["hf_abcdefghijklmnop", "ghp_0123456789", "sk-proj-123", "https://me:word@host", "-----BEGIN RSA"]
)
def test_a_secret_in_a_listed_variable_is_withheld(monkeypatch, value):
    """A listed name with a value that looks like a token is named without its value."""
    monkeypatch.setenv("NCCL_DEBUG", value)
    assert capture(device="cpu").stable.environment["NCCL_DEBUG"] == "(withheld)"


def test_the_environment_that_changes_numbers_is_written_and_compared(monkeypatch):
    """One thread more is a difference with a name."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = capture(device="cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (found,) = difference(before, capture(device="cpu"))
    assert str(found) == "environment.OMP_NUM_THREADS: 1 -> 2"


def test_the_allocation_is_identified(monkeypatch):
    """Job, nodes and rack under Slurm, by a list of their own."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "spine.d157.d157-n1")
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", SECRET)
    taken = capture(device="cpu")
    assert taken.stable.slurm == {"SLURM_JOB_ID": "17", "SLURM_TOPOLOGY_ADDR": "spine.d157.d157-n1"}


def test_two_looks_at_the_same_machine_are_alike():
    """What moves by itself on a processor is recorded and is no difference."""
    before = capture(device="cpu", modules=("numpy",))
    after = capture(device="cpu", modules=("numpy",))
    assert difference(before, after) == ()
    assert stable_part(before) == stable_part(after)
    assert "load_1min" in moving_part(before)


def in_fresh_process(program: str, **environment: str) -> str:
    """Run a program in a process that has cached nothing."""
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    return done.stdout.strip()


def test_no_framework_is_imported():
    """Versions come from installed metadata: a look at a plan's machine must not load torch."""
    program = (
        "import sys; from k3bench.fingerprint import capture; capture(device='cpu', modules=('torch', 'triton'));"
        "print(sorted({'torch', 'triton', 'submitit', 'mlflow', 'pandas'} & set(sys.modules)))"
    )
    assert in_fresh_process(program) == "[]"


def test_a_repeated_look_starts_no_process():
    """What cannot change while a process lives is read once, so that a look beside a block costs nothing."""
    program = (
        "import sys, pathlib; from k3bench.fingerprint import capture;"
        "look = lambda: capture(device='cpu', modules=('torch', 'numpy'), repo=pathlib.Path('.'));"
        "started = []; note = lambda event, _: event == 'subprocess.Popen' and started.append(event);"
        "sys.addaudithook(note);"
        "look(); first = len(started); look(); print(first > 0, len(started) - first)"
    )
    assert in_fresh_process(program) == "True 0"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository_of(folder: Path) -> str:
    program = (
        "import pathlib, sys; from k3bench.fingerprint import capture;"
        f"f = capture(device='cpu', repo=pathlib.Path({str(folder)!r})); r = f.stable.repository;"
        "print(r.commit, r.dirty, r.dirty_digest) if r else print(f.absent['repository'])"
    )
    return in_fresh_process(program)


@pytest.fixture
def work_tree(tmp_path):
    """A small repository with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def test_a_clean_work_tree_is_its_commit(work_tree):
    """Full commit id, not dirty; what a campaign writes under results/ is no change of its code."""
    (work_tree / "results").mkdir()
    (work_tree / "results" / "point.json").write_text("{}")
    assert repository_of(work_tree) == f"{git(work_tree, 'rev-parse', 'HEAD')} False None"


def test_every_change_of_the_code_changes_the_dirty_digest(work_tree):
    """Edited and untracked files count, each by its content."""
    seen = set()
    for name, text in [("code.py", "a = 2\n"), ("code.py", "a = 3\n"), ("new.py", "b = 1\n"), ("new.py", "b = 2\n")]:
        (work_tree / name).write_text(text)
        _, dirty, digest = repository_of(work_tree).split()
        assert dirty == "True"
        seen.add(digest)
    assert len(seen) == 4


def test_a_folder_that_is_no_work_tree_says_so(tmp_path):
    """An installed wheel has no commit: that is absent with its reason."""
    assert "not a git work tree" in repository_of(tmp_path)


def test_a_repositorys_own_configuration_runs_nothing(work_tree):
    """A work tree is data: its fsmonitor, external diff and text filters are not executed."""
    mark = work_tree / "results"
    mark.mkdir()
    script = work_tree.parent / "run-me"
    script.write_text(f"#!/bin/sh\ntouch {mark}/executed\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "diff.external", "diff.x.textconv", "diff.x.command"):
        git(work_tree, "config", name, str(script))
    (work_tree / ".gitattributes").write_text("*.py diff=x\n")
    (work_tree / "code.py").write_text("a = 2\n")
    (mark / "executed").unlink(missing_ok=True)
    assert " True " in repository_of(work_tree)
    assert not (mark / "executed").exists()


def gpus_seen(expression: str, **environment: str) -> str:
    program = f"from k3bench.fingerprint import capture; f = capture(device='cuda'); print({expression})"
    return in_fresh_process(program, PYTHONPATH=str(FAKE_NVML), **environment)


def test_gpus_are_described_through_nvml():
    """Name, uuid, clocks, power, temperature and throttle reasons in plain words and units."""
    assert gpus_seen("f.stable.gpus[0].name, f.stable.gpus[0].power_limit_w, f.stable.driver") == (
        "Fake GPU 700.0 580.65.06"
    )
    assert gpus_seen("f.moving.gpus[0].throttle_reasons") == "('sw_power_cap', 'hw_thermal')"
    assert gpus_seen("f.moving.gpus[0].sm_clock_mhz, f.moving.gpus[0].power_w") == "1755 312.5"


def test_what_a_gpu_cannot_tell_is_null_with_the_drivers_reason():
    """Not zero."""
    assert gpus_seen("f.moving.gpus[1].power_w, f.absent['gpus.1.power_w']") == "None Not Supported"


@pytest.mark.parametrize(
    ("visible", "seen"), [("1", "[1]"), ("GPU-0000-aaaa", "[0]"), ("1,0", "[0, 1]"), ("", "[]"), ("GPU-9", "[]")]
)
def test_only_visible_gpus_are_described(visible, seen):
    """By index or by uuid; none of them is said, not guessed."""
    assert gpus_seen("[g.index for g in f.stable.gpus]", CUDA_VISIBLE_DEVICES=visible) == seen


def test_a_missing_driver_is_a_reason():
    """A CUDA device without NVML still gets a fingerprint that says what it lacks."""
    assert gpus_seen("f.absent['gpus']", FAKE_NVML="no driver") == "NVML: Driver Not Loaded"


def with_gpu(**moved) -> Fingerprint:
    """This machine's fingerprint with one GPU in a given state."""
    taken = capture(device="cpu")
    state = {
        "index": 0,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "power_w": 300.0,
        "temperature_c": 40,
        "throttle_reasons": (),
        "power_violation_ns": 0,
        "thermal_violation_ns": 0,
    }
    gpu = GpuState(**(state | moved))
    return taken.model_copy(update={"moving": taken.moving.model_copy(update={"gpus": (gpu,)})})


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({}, {}, None),
        ({}, {"sm_clock_mhz": 1700}, None),
        ({}, {"sm_clock_mhz": 1500}, "gpus.0.sm_clock_mhz"),
        ({"sm_clock_mhz": 345, "throttle_reasons": ("gpu_idle",)}, {}, None),
        ({}, {"throttle_reasons": ("hw_thermal",)}, "gpus.0.throttle_reasons"),
        ({}, {"thermal_violation_ns": 5}, "gpus.0.thermal_violation_ns"),
        ({}, {"power_w": 600.0, "temperature_c": 70}, None),
        ({"throttle_reasons": None}, {"throttle_reasons": ("hw_thermal",)}, None),
    ],
)
def test_clocks_and_throttle_reasons_must_be_alike_while_busy(before, after, field):
    """A clock beyond the limit or a new reason is named; an idle GPU's clock says nothing; heat and power are data."""
    found = [d.field for d in difference(with_gpu(**before), with_gpu(**after))]
    assert found == ([field] if field else [])


def test_the_limits_are_the_callers():
    """A recipe may allow more, or switch the reasons off."""
    slow, capped = with_gpu(sm_clock_mhz=1500), with_gpu(throttle_reasons=("sw_power_cap",))
    assert difference(with_gpu(), slow, max_clock_change_pct=20.0) == ()
    assert difference(with_gpu(), capped, same_throttle_reasons=False) == ()
