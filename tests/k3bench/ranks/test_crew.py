"""The leader of ranks: it counts them, asks them, and is never left waiting by one that dies, fails or keeps silent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from k3bench.errors import RankError
from k3bench.ranks import Crew, Limits, Wanted
from k3bench.ranks.crew import check_places
from k3bench.records.fingerprint import RankPlace

ROOT = Path(__file__).parents[3]
SHORT = Limits(start_s=120, open_s=120, answer_s=120)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks import the members of this test; no Slurm job around it counts."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'workflow'}:{ROOT}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def wanted(logs: Path, kind: str = "Told", ranks: int = 2, nodes: int = 1, **arguments: object) -> Wanted:
    """So many ranks of a kind."""
    return Wanted(ranks, nodes, f"tests.k3bench.ranks.members:{kind}", arguments, logs)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], patience_s: float = 60.0) -> bool:
    """Whether all end, sooner or later."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and any(map(alive, pids)):
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_answers_come_in_order_of_rank_and_leaving_ends_all(tmp_path: Path) -> None:
    """Three ranks are counted, placed and asked; afterwards there are none."""
    with Crew(wanted(tmp_path, ranks=3), SHORT) as crew:
        answers = crew.ask("where")
        there, where = crew.present()
    assert [answer["rank"] for answer in answers] == [0, 1, 2]
    assert there
    assert where.startswith("3 ranks on 1 node: 0 ")
    assert gone([answer["pid"] for answer in answers])


def test_each_rank_runs_under_a_program_of_its_own_and_may_end_in_its_time(tmp_path: Path) -> None:
    """As a profiler needs it: its words name the rank, and what it has to write is waited for."""
    under = ("env", "TOLD=trace.r{rank}")
    asked = replace(wanted(tmp_path / "logs"), under=under, home=tmp_path)
    with Crew(asked, SHORT) as crew:
        answers = crew.ask("where")
        crew.dismiss(60.0)
        assert [process.returncode for process in crew.started.processes] == [0, 0]
    assert [answer["told"] for answer in answers] == ["trace.r0", "trace.r1"]
    assert {answer["home"] for answer in answers} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("die", r"rank 1 of 2 ended by SIGKILL during 'die'; all ranks were ended"),
        ("echo", r"rank 1 of 2 ended by SIGKILL during 'echo'; all ranks were ended"),
        ("fail", r"rank 1 of 2 failed during 'fail': the GPU has too little memory"),
    ],
)
def test_a_rank_that_ends_ends_all_and_is_named(tmp_path: Path, command: str, said: str) -> None:
    """The one that began it, not the one that complained of it; long before any limit."""
    crew = Crew(wanted(tmp_path), SHORT)
    pids = [answer["pid"] for answer in crew.ask("where")]
    with pytest.raises(RankError, match=said):
        crew.ask(command, on=1)
    assert gone(pids)


def test_a_silent_rank_ends_all_at_the_stated_limit(tmp_path: Path) -> None:
    """Nothing is waited for without end."""
    crew = Crew(wanted(tmp_path), SHORT)
    pids = [answer["pid"] for answer in crew.ask("where")]
    with pytest.raises(RankError, match=r"ranks \[0\] of 2 gave no answer to 'hang' within 1 s; all ranks were ended"):
        crew.ask_one(0, "hang", on=0, limit_s=1.0)
    assert gone(pids)


def test_what_a_member_cannot_be_made_of_is_said_with_its_cure(tmp_path: Path) -> None:
    """Before anything is measured."""
    with pytest.raises(RankError, match=r"no such preset[\s\S]*valid presets: nano"):
        Crew(wanted(tmp_path, "Absent"), SHORT)


def test_two_ranks_on_one_gpu_are_refused(tmp_path: Path) -> None:
    """They would measure each other."""
    with pytest.raises(RankError, match="two ranks share a GPU"):
        Crew(wanted(tmp_path, gpu="GPU-1"), SHORT)


def test_several_nodes_without_a_slurm_job_are_refused(tmp_path: Path) -> None:
    """One machine is no two nodes."""
    with pytest.raises(RankError, match="4 ranks on 2 nodes need a Slurm job"):
        Crew(wanted(tmp_path, ranks=4, nodes=2), SHORT)


LEADER = """
import json, pathlib, sys, time
from k3bench.ranks import Crew, Wanted
crew = Crew(Wanted(2, 1, "tests.k3bench.ranks.members:Told", {}, pathlib.Path(sys.argv[1])))
print(json.dumps([answer["pid"] for answer in crew.ask("where")]), flush=True)
crew.ask("hang", on=0)
"""


def test_ranks_end_when_their_leader_is_killed(tmp_path: Path) -> None:
    """Even inside a call that never returns: nobody is left behind on the nodes."""
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert leader.stdout is not None
    pids = json.loads(leader.stdout.readline())
    leader.send_signal(signal.SIGKILL)
    leader.wait()
    assert gone(pids)


def place(index: int, host: str) -> RankPlace:
    """A rank on a node."""
    return RankPlace(index=index, local_rank=0, host=host, slurm={})


def test_ranks_must_stand_on_as_many_nodes_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the names Slurm gives, equally many on each, the first beside its leader."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    check_places([place(0, "n1"), place(1, "n2")], 2, by_slurm=True)
    with pytest.raises(RankError, match=r"2 ranks stand on 1 nodes \(n1\), planned are 2"):
        check_places([place(0, "n1"), place(1, "n1")], 2, by_slurm=True)
    with pytest.raises(RankError, match="spread unevenly"):
        check_places([place(0, "n1"), place(1, "n1"), place(2, "n2")], 2, by_slurm=True)
    with pytest.raises(RankError, match="rank 0 runs on n2, its leader on n1"):
        check_places([place(0, "n2"), place(1, "n1")], 2, by_slurm=True)
