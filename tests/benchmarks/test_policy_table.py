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


def told(boot: str | None = None, device: str = "H200", options: str = "", **deltas: float) -> dict[str, Any]:
    """A file of one process, batch 4: named policies and their change against serial [%]."""
    rows = {name: {"forks": list(POLICIES[name].forks), "delta_pct": delta} for name, delta in deltas.items()}
    provenance = {"boot": boot, "device": device, "date": "today", "arguments": {"options": options}}
    return {"provenance": provenance, "best": {"4": {"policies": rows}}}


def measured(*found: dict[str, Any]) -> tuple[list[policy_table.Policy], list[str]]:
    read = [policy_table.Found.model_validate_json(json.dumps(one)) for one in found]
    return policy_table.measured(read, "4")


def winner(*found: dict[str, Any]) -> tuple[str, ...]:
    return policy_table.chosen(measured(*found)[0]).forks


def twice() -> dict[str, Any]:
    rows = {name: {"forks": list(FOUR), "delta_pct": delta} for name, delta in (("one", -6.1), ("two", -6.2))}
    return {"best": {"4": {"policies": rows}}}


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
        ([0.99], FOUR),  # one boot leaves a point open
        ([1.01], SEVEN),
        ([0.70, 0.70], FOUR),  # two leave 0.707
        ([0.71, 0.71], SEVEN),
        ([0.57, 0.57, 0.57], FOUR),  # three 0.577
        ([0.58, 0.58, 0.58], SEVEN),
        ([-0.1, 2.5], FOUR),  # 1.2 on average, but the boots are 2.6 apart: their own spread, not the least one
        ([0.1, 1.1, 1.1], SEVEN),  # 0.77, spread 0.577: two standard errors are 0.67, and the median is not asked
        ([0.0, 0.7, 0.7], FOUR),  # 0.47, though the median is 0.7
    ],
)
def test_more_forks_must_lead_by_more_than_boots_differ(leads: list[float], forks: tuple[str, ...]) -> None:
    """Twice the spread over the root of the number of boots; the spread is at least half a point."""
    assert winner(*(told(after=-6.0, all=-6.0 - lead) for lead in leads)) == forks


def test_processes_of_one_boot_are_one() -> None:
    """0.6 points in each of four boots is no chance, in four processes of one boot it is; a boot is their mean."""
    four = [told(after=-6.0, all=-6.6 - number / 1000) for number in range(4)]
    assert winner(*four) == SEVEN
    for one in four:
        one["provenance"]["boot"] = "the same"
    assert winner(*four) == FOUR
    unlike = [told("the same", all=delta) for delta in (-6.0, -6.1, -9.5)]
    assert measured(*unlike)[0][0].deltas == (pytest.approx(-7.2),)


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
    policies, lacking = measured(first, second)
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
        (told(after=-6.1, all=-6.4, options="{'pdl': False}"), "has model"),
        ({**told(after=-6.1), "best": {"8": told(after=-6.1)["best"]["4"]}}, "has batches 8"),
        (told(before=-3.0), "no policy is in every file at batch 4"),
        (told(), "best.4.policies: Dictionary should have at least 1 item"),
        ({"provenance": {"device": "H200"}, "steps": {}}, "best: Field required; make it with: benchmarks/decode.py"),
        ({"best": told(after=-6.1)["best"]}, "provenance: Field required"),
        ([], "Input should be an object"),
        (told(after=float("nan")), "Input should be a finite number"),
        ({**told(), "best": {"4": {"policies": {"x": {"forks": ["moe"], "delta_pct": 1.0}}}}}, "unknown fork 'moe'"),
        (told() | twice(), "are the same forks, timed twice"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(other: dict[str, Any], said: str, tmp_path: Path) -> None:
    """With the file and the reason; nothing is written."""
    done = run(*write(tmp_path, told(after=-6.0, all=-6.4), other), "--write", str(tmp_path / "policies.json"))
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "policies.json").exists()


def test_a_file_given_twice_is_refused(tmp_path: Path) -> None:
    """It would count as two boots."""
    [path] = write(tmp_path, told(after=-6.0, all=-6.9))
    done = run(path, path)
    assert done.returncode == 2
    assert "every process counts once" in done.stderr


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read: No such file"), ("{", "Invalid JSON")])
def test_a_file_that_cannot_be_read_is_named(content: str | None, said: str, tmp_path: Path) -> None:
    """Missing, or no JSON."""
    if content:
        (tmp_path / "steps.json").write_text(content)
    done = run(str(tmp_path / "steps.json"))
    assert done.returncode == 2
    assert "steps.json" in done.stderr
    assert said in done.stderr


def test_a_table_goes_into_a_new_folder_and_names_what_was_left_out(tmp_path: Path) -> None:
    """What one file lacks stands beside the decision."""
    words = write(tmp_path, told(after=-6.0, all=-6.4), told(after=-6.1))
    done = run(*words, "--write", str(tmp_path / "new" / "policies.json"))
    assert done.returncode == 0, done.stderr
    assert "left out, not in every file: all" in done.stdout
    table = json.loads((tmp_path / "new" / "policies.json").read_text())
    assert table["tables"] == {"best-by-batch": {"4": list(FOUR)}}
    assert [row["file"] for row in table["provenance"]] == words
