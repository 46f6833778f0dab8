"""The policy table: made of several processes, the fewest forks that cannot be told from the fastest."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import policy_table  # noqa: E402

FOUR, SIX = ["a", "b", "c", "d"], ["a", "b", "c", "e", "f", "g"]


def told(four: float, six: float, **more: tuple[list[str], float]) -> dict[str, Any]:
    """A file of one process, batch 4: two policies and what else was measured."""
    rows = {"after": (FOUR, four), "gaining": (SIX, six), **more}
    return {"best": {"4": {"policies": {n: {"forks": f, "delta_pct": d} for n, (f, d) in rows.items()}}}}


@pytest.mark.parametrize(
    ("found", "forks"),
    [
        ([told(-6.06, -6.42)], FOUR),  # 0.36 points in one process: chance, so the fewer forks
        ([told(-5.88, -8.14)], SIX),  # 2.3 points: no chance
        ([told(-6.0, -6.5)] * 4, SIX),  # half a point in each of four processes is more than the floor leaves open
        ([told(-6.0, -6.5), told(-6.0, -5.5)], FOUR),  # that lead turned round
    ],
)
def test_fewer_forks_win_unless_more_are_faster_for_sure(found: list[dict[str, Any]], forks: list[str]) -> None:
    """The margin is twice the floor over the root of the number of processes."""
    assert list(policy_table.chosen(policy_table.measured(found, "4")).forks) == forks


def test_one_set_of_forks_is_one_policy_and_counts_only_if_every_file_has_it() -> None:
    """Names differ from file to file; what one file lacks cannot be compared over all."""
    found = [told(-6.0, -7.0, all=(["all"], -9.0)), {"best": {"4": {"policies": {}}}}]
    found[1]["best"]["4"]["policies"] = {
        "best-by-batch/4": {"forks": SIX, "delta_pct": -7.2},
        "mine": {"forks": FOUR, "delta_pct": -6.2},
    }
    fastest, other = policy_table.measured(found, "4")
    assert (fastest.forks, fastest.deltas) == (tuple(SIX), (-7.0, -7.2))
    assert (other.forks, other.mean) == (tuple(FOUR), pytest.approx(-6.1))


def test_the_table_in_use_follows_from_its_records(tmp_path: Path) -> None:
    """The files that its provenance names give the same table again."""
    used = json.loads((ROOT / "k3model" / "policies.json").read_text())
    files = [row["file"] for row in used["provenance"]]
    if not all((ROOT / file).is_file() for file in files):
        pytest.skip("the recorded steps are not in this copy")
    words = [sys.executable, "benchmarks/policy_table.py", *files, "--write", str(tmp_path / "policies.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "policies.json").read_text()) == used
    assert len(files) > 1
    assert done.stdout.count("<- chosen") == len(used["tables"]["best-by-batch"])


def test_a_file_without_policies_is_refused(tmp_path: Path) -> None:
    """What is missing, and which command makes it."""
    (tmp_path / "steps.json").write_text(json.dumps({"provenance": {}, "steps": {}}))
    words = [sys.executable, "benchmarks/policy_table.py", str(tmp_path / "steps.json")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "steps.json; make it with: benchmarks/decode.py --sections best" in done.stderr
