"""A whole step on kernels: the twins' numbers, and policies that change no bit."""

from __future__ import annotations

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


def built(device: torch.device, **options: object) -> K3:
    """Nano in float32, for two rows."""
    config = preset("nano", **options)
    return build(config, device=str(device), dtype=torch.float32, max_batch=2, context=128)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"variant": "A", "state_pool": "indexed", "staging_repack": False}])
def test_logits_on_kernels_are_those_of_the_twins(device: torch.device, options: dict[str, object]) -> None:
    """Two steps across a page border, float32: apart by rounding only."""
    found = []
    for kernels in ("torch", "triton"):
        session = Decode(built(device, kernels=kernels, **options), POLICIES["serial"], 2)
        found.append(trace(session, seed=4, steps=2))
    assert found[0].logits.abs().max() > 1
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


def test_a_step_runs_on_the_twins_unless_told_otherwise() -> None:
    """The default needs no Triton."""
    assert build(preset("nano"), max_batch=1, context=64).ops is TWINS


@pytest.mark.skipif(torch.cuda.is_available() or language.interpreted(), reason="kernels can run here")
def test_kernels_are_refused_where_they_cannot_run() -> None:
    """No Triton, or no GPU: one sentence that says what to do, before any work."""
    with pytest.raises(DeviceError, match="kernels=triton needs"):
        build(preset("nano", kernels="triton"), max_batch=1, context=64)
