"""Equality evidence: the same passes, the broken is caught, and what cannot be asked here is never a pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.capture import Decode
from k3model.decode import K3
from k3model.equivalence import Row, Subject, probe_rows
from k3model.equivalence.bits import Trace, first_difference, same_bits, traces
from k3model.equivalence.greedy import greedy_probes
from k3model.equivalence.legs import LeakyForks, SwappedForks
from k3model.equivalence.rig import SERIAL, Rig
from k3model.equivalence.rows import Probe
from k3model.equivalence.suite import ask
from k3model.errors import ConfigError, DeviceError, PolicyError
from k3model.policy import FORKS, POLICIES, with_forks
from k3model.streams import multi_stream

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
Builder = Callable[..., K3]


@pytest.fixture(scope="module")
def on_cpu() -> list[Row]:
    """Every row of nano on a CPU."""
    torch.set_num_threads(1)
    return list(probe_rows(Subject("nano"), device="cpu", batches=(1, 2)))


def test_without_cuda_every_probe_of_streams_and_graphs_says_not_run(on_cpu: list[Row]) -> None:
    """Never a pass for what was not asked; one row for all policies and batches of a probe."""
    waiting = [row for row in on_cpu if row.status == "not_run"]
    assert {row.reason for row in waiting} == {"no CUDA device"}
    assert {row.kind for row in waiting} == {"fork", "greedy", "control"}
    assert all("legs swapped" in row.what or "right leg before left" in row.what or row.policy == "serial"
               for row in on_cpu if row.status == "pass")  # fmt: skip


def test_every_fork_alone_three_and_all_are_the_same_with_their_legs_swapped(on_cpu: list[Row]) -> None:
    """Legs that depend on nothing of each other may run in either order."""
    swapped = {row.policy: row.status for row in on_cpu if row.kind == "fork" and "right leg before left" in row.what}
    assert swapped == dict.fromkeys({*FORKS, "three", "all", "before", "after"} - {"routed_shared"}, "pass")


def test_controls_are_caught_with_legs_swapped(on_cpu: list[Row]) -> None:
    """Fork 3 under an FP8 cache without its gate, and right legs that read what left legs write."""
    controls = [row for row in on_cpu if row.kind == "control" and row.status != "not_run"]
    assert {row.policy for row in controls} == {"mla_absorb_rope", "kda_staging", "mla_q_kv", "routed_shared", "serial"}
    assert all(row.status == "pass" and row.reason.startswith("caught") for row in controls)


def test_greedy_rows_say_how_telling_their_tokens_are(on_cpu: list[Row]) -> None:
    """Eight prompts, 256 tokens each, at least 64 distinct ones, margins; a changed weight changes the tokens."""
    greedy = [row for row in on_cpu if row.kind == "greedy" and row.status != "not_run"]
    assert {row.policy for row in greedy} == {"after", "all"}
    for row in greedy:
        assert (row.status, row.prompts, row.tokens, row.first_difference) == ("pass", 8, 256, None)
        assert row.distinct_tokens is not None
        assert row.distinct_tokens >= 64
        assert row.top2_margin_median is not None
        assert row.top2_margin_median > 0
    (perturbed,) = [row for row in on_cpu if "change of one weight" in row.what]
    assert perturbed.first_difference is not None


def test_collapsed_weights_fail_the_greedy_probe() -> None:
    """Equal tokens say nothing when every token is the same."""
    rig = Rig("nano", {}, device="cpu", max_batch=8)
    rig.model().lm_head[1:] = 0
    rig.model().lm_head[0] = 0
    probe = next(p for p in greedy_probes(rig, (POLICIES["after"],)) if not p.needs_cuda)
    with torch.no_grad():
        outcome = probe.run()
    assert outcome.status == "fail"
    assert outcome.measures["distinct_tokens"] == 1


def test_a_control_that_slips_through_fails() -> None:
    """A weight that changes nothing must not count as a perturbation caught."""
    rig = Rig("nano", {}, device="cpu", max_batch=8)
    rig.model().lm_head.zero_()
    *_, control = greedy_probes(rig, (POLICIES["after"],))
    with torch.no_grad():
        outcome = control.run()
    assert (outcome.status, outcome.reason) == ("fail", "not caught: same bits")


def test_fork_3_under_fp8_keeps_its_gate_when_nobody_removes_it(nano: Builder) -> None:
    """The control differs from the product by the gate alone."""
    model, policy = nano(kv_cache="fp8"), with_forks("mla_absorb_rope", "mla_absorb_rope")
    expected = traces(Decode(model, SERIAL, 2))
    for ungated in (False, True):
        forks = SwappedForks(policy, ungated=ungated)
        with multi_stream(), torch.no_grad():
            found = traces(Decode(model, policy, 2, forks=forks))
        assert bool(forks.split) == ungated
        assert bool(first_difference(expected, found)) == ungated


def test_a_leak_is_harmless_in_order(nano: Builder) -> None:
    """The leaky reference is well defined: serial legs give the same bits every time."""
    model = nano()
    with torch.no_grad():
        one, other = (
            traces(Decode(model, SERIAL, 1, forks=LeakyForks(SERIAL, None, "mla_q_kv", model.device))) for _ in "ab"
        )
    assert first_difference(one, other) == ""
    assert first_difference(one, traces(Decode(model, SERIAL, 1))) != ""


def test_bits_are_compared_as_bytes() -> None:
    """NaN equals itself, minus zero is not zero, and another dtype is not the same."""
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([0], dtype=torch.int32))


def test_a_difference_in_a_cache_alone_is_found_and_named(nano: Builder) -> None:
    """Outputs may agree while a state already differs."""
    found = traces(Decode(nano(), SERIAL, 1))
    pools = dict(found[-1].pools)
    pools["conv"] = pools["conv"].clone()
    pools["conv"].view(-1)[5] += 1
    other = (*found[:-1], Trace(found[-1].logits, pools))
    assert first_difference(found, other) == f"conv after trial 1: 1 of {pools['conv'].numel()} elements differ"


def test_a_probe_that_raises_is_a_failing_row_with_its_reason() -> None:
    """Evidence is written whatever happens; silence would look like success."""

    def broken() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nmore")

    outcome = ask(Probe("fork", "what", "three", 1, broken))  # type: ignore[arg-type]
    assert (outcome.status, outcome.reason) == ("fail", "RuntimeError: CUDA error: unspecified launch failure")


def test_out_of_memory_is_not_run() -> None:
    """A probe without an answer neither passes nor fails."""

    def hungry() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert ask(Probe("fork", "what", "three", 1, hungry)).status == "not_run"  # type: ignore[arg-type]


def test_a_probe_that_is_left_out_says_why_and_is_not_asked() -> None:
    """Whatever it would have done."""
    asked: list[str] = []
    outcome = ask(Probe("fork", "what", "three", 1, lambda: asked.append("run"), left_out="ranks"))  # type: ignore[arg-type,func-returns-value,return-value]
    assert (outcome.status, outcome.reason, asked) == ("not_run", "ranks", [])


def test_probes_past_the_budget_say_so() -> None:
    """Time that is over leaves rows, not holes."""
    rows = list(probe_rows(Subject("nano"), device="cpu", batches=(1,), budget_s=0))
    assert {row.status for row in rows} == {"not_run"}
    assert any("was over" in row.reason for row in rows)


def test_a_preset_for_gpus_is_not_run_on_a_cpu() -> None:
    """Nothing of ten gigabytes is built to find out that there is no GPU."""
    rows = list(probe_rows(Subject("block-12"), device="cpu"))
    assert {(row.status, row.reason) for row in rows} == {("not_run", "no CUDA device")}


@pytest.mark.parametrize(
    ("subject", "device", "error"),
    [
        (Subject("nano", policies=("befor",)), "cpu", PolicyError),
        (Subject("nanno"), "cpu", ConfigError),
        (Subject("nano", {"variant": "C"}), "cpu", ConfigError),
        (Subject("nano"), "gpu", DeviceError),
    ],
)
def test_what_does_not_exist_is_refused_before_any_work(subject: Subject, device: str, error: type[Exception]) -> None:
    """One clear error instead of many failing rows."""
    with pytest.raises(error):
        next(iter(probe_rows(subject, device=device)))


@CUDA
@pytest.mark.gpu
def test_on_a_gpu_every_row_of_small_passes() -> None:
    """Forks, greedy tokens and controls, captured, on two streams."""
    rows = list(probe_rows(Subject("small"), device="cuda", batches=(1, 4)))
    assert [row for row in rows if row.status != "pass"] == []
