"""A whole step on kernels: the twins' numbers, and policies that change no bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import K3, build
from k3model.equivalence.bits import first_difference, trace
from k3model.equivalence.legs import SwappedForks
from k3model.errors import DeviceError
from k3model.kernels import TWINS, language
from k3model.policy import POLICIES
from k3model.streams import Forks, multi_stream

#: Two layers so narrow that Triton's interpreter, which takes some 20 ms a program, gets through a step.
TINY = replace(
    preset("nano", expert_weights="mxfp4"), layers=2, mla_layers=(1,), hidden=32, vocab=32, kda_heads=2, mla_heads=2,
    q_lora_rank=16, mlp_intermediate=16, experts=4, latent=32, shared_intermediate=16,
)  # fmt: skip


def built(device: torch.device, **options: object) -> K3:
    """Nano on a GPU, less than that in the interpreter; float32, two rows."""
    config = preset("nano", expert_weights="mxfp4") if device.type == "cuda" else TINY
    return build(replace(config, **options), device=str(device), dtype=torch.float32, max_batch=2, context=128)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"variant": "A", "state_pool": "indexed", "staging_repack": False}])
def test_logits_on_kernels_are_those_of_the_twins(device: torch.device, options: dict[str, object]) -> None:
    """One step of two rows, float32: apart by rounding only."""
    found = []
    for kernels in ("torch", "triton"):
        session = Decode(built(device, kernels=kernels, **options), POLICIES["serial"], 2)
        found.append(trace(session, seed=4, steps=1))
    assert found[0].logits.abs().max() > 0.1
    torch.testing.assert_close(found[1].logits, found[0].logits, rtol=1e-4, atol=1e-4)
    for name in ("conv", "state", "latent"):
        torch.testing.assert_close(found[1].pools[name], found[0].pools[name], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_legs_in_either_order_give_the_same_bits(device: torch.device) -> None:
    """Every fork on, right leg first: no kernel reads or writes what belongs to the other leg."""
    model = built(device, kernels="triton")
    serial = trace(Decode(model, POLICIES["serial"], 1, forks=Forks(POLICIES["serial"], None)), seed=4, steps=1)
    swapped = SwappedForks(POLICIES["all"])
    with multi_stream():
        found = trace(Decode(model, POLICIES["all"], 1, forks=swapped), seed=4, steps=1)
    assert set(swapped.split) == set(POLICIES["all"].forks)
    assert first_difference((serial,), (found,)) == ""


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["after", "all"])
def test_captured_forks_give_the_same_bits(device: torch.device, policy: str) -> None:
    """True streams, bfloat16, kernels and their scratch side by side; needs a GPU."""
    if device.type != "cuda":
        pytest.skip("needs streams")
    model = build(preset("small", kernels="triton", expert_weights="mxfp4"), device="cuda", max_batch=4, context=128)
    found = []
    for name in ("serial", policy):
        session = Decode(model, POLICIES[name], 4)
        session.clear()
        session.capture()
        found.append(trace(session, seed=4, steps=3))
    assert first_difference((found[0],), (found[1],)) == ""


def test_a_step_runs_on_the_twins_unless_told_otherwise() -> None:
    """The default needs no Triton."""
    assert build(preset("nano"), max_batch=1, context=64).ops is TWINS


@pytest.mark.skipif(torch.cuda.is_available() or language.interpreted(), reason="kernels can run here")
def test_kernels_are_refused_where_they_cannot_run() -> None:
    """No Triton, or no GPU: one sentence that says what to do, before any work."""
    with pytest.raises(DeviceError, match="kernels=triton needs"):
        build(preset("nano", kernels="triton"), max_batch=1, context=64)
