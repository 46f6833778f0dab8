"""The policy table: made of several boots, the fewest forks that cannot be told from the fastest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from k3model.policy import POLICIES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import policy_table  # noqa: E402

FOUR, SEVEN = POLICIES["after"].forks, POLICIES["all"].forks


def told(boot: str | None = None, device: str = "H200", **deltas: float) -> dict[str, Any]:
    """A file of one process, batch 4: named policies and their change against serial [%]."""
    rows = {name: {"forks": list(POLICIES[name].forks), "delta_pct": delta} for name, delta in deltas.items()}
    return {"provenance": {"boot": boot, "device": device, "date": "today"}, "best": {"4": {"policies": rows}}}


def winner(*found: dict[str, Any]) -> tuple[str, ...]:
    return policy_table.chosen(policy_table.measured(list(found), "4")[0]).forks


def write(folder: Path, *found: dict[str, Any]) -> list[str]:
    paths = [folder / f"{number}.json" for number in range(len(found))]
    for path, one in zip(paths, found, strict=True):
        path.write_text(json.dumps(one))
    return [str(path) for path in paths]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "benchmarks/policy_table.py", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("leads", "forks"),
    [
        ([0.59], FOUR),  # one boot leaves 0.60 points open
        ([0.61], SEVEN),
        ([0.42, 0.42], FOUR),  # two leave 0.424
        ([0.43, 0.43], SEVEN),
        ([0.34, 0.34, 0.34], FOUR),  # three 0.346
        ([0.35, 0.35, 0.35], SEVEN),
        ([-0.1, 1.7], FOUR),  # 0.8 on average, but the boots are 1.8 apart: their own spread, not the floor
        ([0.0, 0.0, 1.2], FOUR),  # 0.4, of one boot alone
    ],
)
def test_more_forks_must_lead_by_more_than_boots_differ(leads: list[float], forks: tuple[str, ...]) -> None:
    """Twice the spread over the root of the number of boots; the spread is at least 0.3 points."""
    assert winner(*(told(after=-6.0, all=-6.0 - lead) for lead in leads)) == forks


def test_processes_of_one_boot_are_one() -> None:
    """Half a point in each of four processes of one boot is chance, in four boots it is not."""
    four = [told(after=-6.0, all=-6.5 - number / 1000) for number in range(4)]
    assert winner(*four) == SEVEN
    for one in four:
        one["provenance"]["boot"] = "the same"
    assert winner(*four) == FOUR


def test_no_fork_at_all_is_a_policy() -> None:
    """Where everything is slower than serial, or cannot be told from it, nothing is forked."""
    assert winner(told(before=1.0, after=2.0)) == ()
    assert winner(told(before=-0.5, after=-0.4)) == ()


def test_of_equally_many_forks_the_faster_is_taken() -> None:
    """Both cannot be told apart."""
    found = told(after=-6.0)
    found["best"]["4"]["policies"]["other"] = {"forks": list(SEVEN[3:]), "delta_pct": -6.1}
    assert len(FOUR) == len(SEVEN[3:])
    assert winner(found) == SEVEN[3:]


def test_one_set_of_forks_is_one_policy_and_what_a_file_lacks_is_named() -> None:
    """Names and orders of forks differ from file to file; what one file lacks cannot be compared."""
    first, second = told(after=-6.0, all=-9.0, before=-3.0), told(all=-9.2, before=-3.2)
    second["best"]["4"]["policies"]["table"] = {"forks": list(reversed(FOUR)), "delta_pct": -6.2}
    del second["best"]["4"]["policies"]["before"]
    policies, lacking = policy_table.measured([first, second], "4")
    assert [(policy.forks, policy.deltas) for policy in policies] == [
        (SEVEN, (-9.0, -9.2)),
        (FOUR, (-6.0, -6.2)),
        ((), (0.0, 0.0)),
    ]
    assert lacking == ["before"]


def test_the_table_in_use_follows_from_its_records(tmp_path: Path) -> None:
    """The files that its provenance names give the same table again; they are of two boots."""
    used = json.loads((ROOT / "k3model" / "policies.json").read_text())
    files = [row["file"] for row in used["provenance"]]
    done = run(*files, "--write", str(tmp_path / "policies.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "policies.json").read_text()) == used
    assert done.stdout.count("<- chosen") == len(used["tables"]["best-by-batch"]) == 4
    assert len({row.get("boot", row["file"]) for row in used["provenance"]}) == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (told(after=-6.0, all=-6.4), "holds the same figures as"),
        (told(after=-6.1, all=-6.4, device="cpu"), "has device cpu"),
        ({**told(after=-6.1), "best": {"8": told(after=-6.1)["best"]["4"]}}, "has batches 8"),
        ({"provenance": {}, "steps": {}}, "no section best; make it with: benchmarks/decode.py --sections best"),
        (told(after=float("nan")), "its change is nan"),
        ({**told(), "best": {"4": {"policies": {"x": {"forks": ["moe"], "delta_pct": 1.0}}}}}, "unknown fork 'moe'"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(other: dict[str, Any], said: str, tmp_path: Path) -> None:
    """With the file and the reason; nothing is written."""
    done = run(*write(tmp_path, told(after=-6.0, all=-6.4), other), "--write", str(tmp_path / "policies.json"))
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "policies.json").exists()


@pytest.mark.parametrize("content", [None, "{"])
def test_a_file_that_cannot_be_read_is_named(content: str | None, tmp_path: Path) -> None:
    """Missing, or no JSON."""
    if content:
        (tmp_path / "steps.json").write_text(content)
    done = run(str(tmp_path / "steps.json"))
    assert done.returncode == 2
    assert "steps.json cannot be read" in done.stderr
