"""A real Slurm comes up in a folder, shows its racks, and goes down without touching anybody else."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from k3bench.cli import main
from k3bench.cluster import Cluster, Layout, missing_packages
from k3bench.errors import K3Error

LACKING = missing_packages()
needs_slurm = pytest.mark.skipif(bool(LACKING), reason=LACKING or "Slurm is there")


@pytest.fixture
def folder():
    """A short path: Unix sockets and Slurm's files cannot hold a long one."""
    path = Path(tempfile.mkdtemp(prefix="k3c-", dir="/tmp"))
    yield path
    Cluster(path).down()
    shutil.rmtree(path, ignore_errors=True)


def command(*words: str) -> int:
    return main(["cluster", *words])


@needs_slurm
def test_up_shows_racks_as_features_and_env_lets_other_programs_find_it(folder, capsys):
    """Two racks of two nodes; what `env` prints is all that Slurm's commands need."""
    assert command("up", "--dir", str(folder), "--nodes-per-rack", "2") == 0
    capsys.readouterr()
    assert command("env", "--dir", str(folder)) == 0
    program = f'{capsys.readouterr().out}\nsinfo -h -N -o "%N %f %T %G"'
    shown = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split("\n")
    assert sorted(set(filter(None, shown))) == [
        "d127-n1 d127,gb300 idle gpu:gb300:4",
        "d127-n2 d127,gb300 idle gpu:gb300:4",
        "d157-n1 d157,gb300 idle gpu:gb300:4",
        "d157-n2 d157,gb300 idle gpu:gb300:4",
    ]


@needs_slurm
def test_down_ends_its_own_daemons_and_jobs_only(folder):
    """A second cluster and an innocent process with a number that once was ours live on."""
    other = Path(tempfile.mkdtemp(prefix="k3c-", dir="/tmp"))
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        for path in (folder, other):
            Cluster(path).up(Layout(nodes_per_rack=1))
        register = folder / "processes.json"
        known = json.loads(register.read_text())
        known["slurmd-gone"] = {**known["slurmctld"], "pid": innocent.pid, "start": "1"}
        register.write_text(json.dumps(known))
        Cluster(folder).call("sbatch", "-N1", "-o", "/dev/null", "--wrap", "sleep 321.5")
        Cluster(folder).down()
        assert Cluster(folder).processes() == {}
        assert Cluster(other).is_up()
        assert innocent.poll() is None
        assert b"sleep\x00321.5" not in b"".join(_command_lines())
    finally:
        innocent.kill()
        innocent.wait()
        Cluster(other).down()
        shutil.rmtree(other, ignore_errors=True)


def _command_lines():
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes()
        except OSError:
            continue


@needs_slurm
def test_a_step_runs_on_every_node_with_its_own_gpus(folder):
    """Ranks, node names and devices are what a real rack would show."""
    cluster = Cluster(folder)
    cluster.up(Layout(racks=("r1",), nodes_per_rack=2, gpus_per_node=2))
    step = ["srun", "-N2", "--ntasks-per-node=2", "--gpus-per-task=1", "bash", "-c"]
    _, out = cluster.call(*step, "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_TOPOLOGY_ADDR")
    assert sorted(out.splitlines()) == [
        "0 r1-n1 spine.r1.r1-n1",
        "1 r1-n1 spine.r1.r1-n1",
        "2 r1-n2 spine.r1.r1-n2",
        "3 r1-n2 spine.r1.r1-n2",
    ]


@needs_slurm
def test_a_tied_cluster_ends_with_the_process_that_started_it(folder):
    """However that process ends: here it kills itself."""
    program = (
        "import os, sys, pathlib; from k3bench.cluster import Cluster, Layout;"
        "Cluster(pathlib.Path(sys.argv[1]), tied=True).up(Layout(racks=('r1',), nodes_per_rack=1));"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
    assert (folder / "processes.json").exists()
    end = time.monotonic() + 30
    while Cluster(folder).processes() and time.monotonic() < end:
        time.sleep(0.1)
    assert Cluster(folder).processes() == {}


@needs_slurm
def test_a_second_up_in_the_same_folder_is_refused(folder):
    """It says what to do first."""
    Cluster(folder).up(Layout(racks=("r1",), nodes_per_rack=1))
    with pytest.raises(K3Error, match="runs here already"):
        Cluster(folder).up(Layout())


def test_down_and_env_without_a_cluster_are_harmless(folder, capsys):
    """Nothing to end; no environment is made up."""
    assert command("down", "--dir", str(folder)) == 0
    assert command("env", "--dir", str(folder)) == 2
    assert "no loopback cluster runs here" in capsys.readouterr().err


@needs_slurm
def test_a_path_that_slurms_files_cannot_hold_is_refused(tmp_path):
    """A space would end a value in slurm.conf."""
    with pytest.raises(K3Error, match="cannot hold this path"):
        Cluster(tmp_path / "a place").up(Layout())


@pytest.mark.parametrize("racks", [(), ("a", "a"), ("a b",), ("a\nb",), ("../x",)])
def test_racks_are_distinct_names(racks):
    """They become features, switches and node names."""
    with pytest.raises(K3Error, match="distinct names"):
        Layout(racks=racks)


def test_a_machine_without_slurm_says_what_to_install(monkeypatch):
    """The cluster tests skip with this very sentence."""
    monkeypatch.setenv("PATH", "/nowhere")
    reason = missing_packages(accounting=True)
    wanted = "needs root" if os.geteuid() else "apt-get install --no-install-recommends slurmctld"
    assert wanted in reason
