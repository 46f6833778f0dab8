"""Profiled runs in the workflow: planned where the recipe asks for a trace, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clone import ROOT, make_clone
from .test_snakemake import snakemake

LAPTOP = (ROOT / "recipes/laptop.yaml").read_text()


@pytest.mark.parametrize(("extra", "wanted"), [("\ntrace: {tool: kineto}\n", True), ("", False)])
def test_a_recipe_with_a_tool_plans_profiled_runs_after_the_timed_ones(
    tmp_path: Path, extra: str, wanted: bool
) -> None:
    """Both arms of each claimed observation, then one residency."""
    clone = make_clone(tmp_path / "clone", laptop=LAPTOP + extra)
    words = ["--workflow-profile", "workflow/profiles/laptop", "--config", "recipe=recipes/laptop.yaml"]
    found = snakemake(clone, "-n", *words)
    assert found.returncode == 0, found.stderr[-2000:]
    jobs = {line.split()[0]: line.split()[1] for line in found.stdout.splitlines() if len(line.split()) == 2}
    assert (jobs.get("profile"), jobs.get("trace")) == (("4", "2") if wanted else (None, None))
