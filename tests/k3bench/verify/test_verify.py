"""The verify room: one record per observation, honest about what this machine could not ask."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from k3bench.build import build_arm
from k3bench.errors import BuildError, RecordError
from k3bench.plan import make_plan
from k3bench.recipe import load_recipe
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, Plan
from k3bench.verify import verify

ROOT = Path(__file__).parents[3]
ARMS: tuple[Arm, Arm] = ("before", "after")


def planned(name: str) -> Plan:
    return make_plan(load_recipe(ROOT / f"recipes/{name}.yaml"))


def builds_of(plan: Plan, observation: str) -> dict[Arm, Build]:
    return {arm: build_arm(plan, plan.observation(observation).pair, arm) for arm in ARMS}


@pytest.fixture(scope="module")
def record() -> Equivalence:
    """The laptop recipe's first observation, probed on a CPU at one batch size."""
    torch.set_num_threads(1)
    plan = planned("laptop")
    return verify(plan, builds_of(plan, "obs1"), "obs1", device="cpu", batches=(1,))


def test_the_record_is_valid_and_names_its_builds(record: Equivalence) -> None:
    """It reads back as written, and ties the rows to what was built."""
    plan = planned("laptop")
    assert Equivalence.from_bytes(record.to_bytes()) == record
    assert (record.campaign, record.observation) == ("laptop", "obs1")
    assert record.builds == {arm: build.identity for arm, build in builds_of(plan, "obs1").items()}


def test_what_decides_about_bits_is_recorded(record: Equivalence) -> None:
    """The workspace of cuBLAS is fixed before CUDA starts, and versions stand beside it."""
    assert record.settings["CUBLAS_WORKSPACE_CONFIG"]
    assert record.versions["torch"] == torch.__version__


def test_a_cpu_passes_no_row_that_needs_cuda(record: Equivalence) -> None:
    """Streams and graphs are not run here and the rows say why; nothing fails."""
    by_status = {status: [row for row in record.rows if row.status == status] for status in ("pass", "fail", "not_run")}
    assert not by_status["fail"]
    assert {row.reason for row in by_status["not_run"]} == {"no CUDA device"}
    assert {row.kind for row in by_status["pass"]} == {"fork", "greedy", "control"}
    assert {row.preset for row in record.rows} == {"nano"}


def test_an_engine_that_decodes_nothing_gets_one_row_that_says_so() -> None:
    """Simulated times have no outputs to compare."""
    plan = planned("simulated")
    (row,) = verify(plan, builds_of(plan, "obs1"), "obs1").rows
    assert row.status == "not_run"
    assert "simulated" in row.reason


def test_unknown_observations_missing_builds_and_missing_cuda_are_refused() -> None:
    """One clear error each, before any work."""
    plan = planned("laptop")
    builds = builds_of(plan, "obs1")
    with pytest.raises(RecordError, match="obs9"):
        verify(plan, builds, "obs9")
    with pytest.raises(BuildError, match="p1/after is missing"):
        verify(plan, {"before": builds["before"]}, "obs1")
    with pytest.raises(BuildError, match="p2/before is missing"):
        verify(plan, builds, "obs2")
    with pytest.raises(BuildError, match="unknown preset"):
        verify(plan, builds, "obs1", device="cpu", presets=("nanno",))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_cuda_is_refused() -> None:
    """Asked for explicitly, a GPU must be there."""
    plan = planned("laptop")
    with pytest.raises(BuildError, match="no CUDA device"):
        verify(plan, builds_of(plan, "obs1"), "obs1", device="cuda")
