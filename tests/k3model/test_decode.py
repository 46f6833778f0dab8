"""The whole decoder on a CPU: policies, prefill, snapshots, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import K3, build
from k3model.errors import CapacityError, DeviceError
from k3model.policy import POLICIES, policy

Builder = Callable[..., K3]


def pools(model: K3) -> list[torch.Tensor]:
    """Everything that steps write."""
    caches = model.caches
    latent = caches.latent.view(torch.uint8) if caches.latent.element_size() == 1 else caches.latent
    return [tensor.clone() for tensor in (caches.conv, caches.state, latent, caches.logits, caches.history)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"variant": "A"},
        {"kv_cache": "fp8", "kda_weights": "fp8", "expert_weights": "mxfp4", "state_pool": "indexed"},
    ],
    ids=["B", "A", "coded"],
)
def test_every_policy_gives_the_same_tokens_and_the_same_caches(nano: Builder, options: dict[str, str]) -> None:
    """Bit for bit, from one snapshot, on one model."""
    model = nano(**options)
    start = Decode(model, policy("serial"), 3)
    start.fill(60, seed=2)
    snapshot = start.snapshot()
    results = {}
    for name in POLICIES:
        session = Decode(model, policy(name), 3)
        session.restore(snapshot)
        for _ in range(10):
            session.step()
        results[name] = pools(model)
    for name, result in results.items():
        for one, other in zip(results["serial"], result, strict=True):
            assert torch.equal(one, other), name


@pytest.mark.parametrize(("name", "chunk"), [("nano", 512), ("nano", 33), ("nano", 1), ("nano-res", 33)])
def test_prefill_equals_token_by_token_decode(nano: Builder, prompt: torch.Tensor, name: str, chunk: int) -> None:
    """In float64, in one piece or in several: same logits, windows, states and latent rows, and the same next token."""
    model = nano(name, dtype=torch.float64)
    session = Decode(model, policy("after"), 4)
    session.clear()
    snapshot = session.snapshot()
    session.prefill(prompt, chunk=chunk)
    filled = pools(model)
    session.restore(snapshot)
    for token in prompt.T:
        session.tokens.copy_(token)
        session.step()
    for one, other in zip(filled[:4], pools(model)[:4], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert torch.equal(filled[4][:, 69], session.history[:, 69])
    assert session.position() == 70


def test_prefill_continues_where_the_rows_stand(nano: Builder, prompt: torch.Tensor) -> None:
    """Steps, then more prompt, then steps: as if all had been one sequence."""
    one, other = nano(dtype=torch.float64), nano(dtype=torch.float64)
    whole = Decode(one, policy("before"), 4)
    whole.prefill(prompt)
    parts = Decode(other, policy("before"), 4)
    parts.prefill(prompt[:, :30])
    parts.tokens.copy_(prompt[:, 30])
    parts.step()
    parts.prefill(prompt[:, 31:])
    torch.testing.assert_close(whole.logits, parts.logits)


def test_rows_do_not_see_each_other(nano: Builder, prompt: torch.Tensor) -> None:
    """A row decoded alone chooses the tokens it chooses in company."""
    model = nano(dtype=torch.float64)
    session = Decode(model, policy("before"), 4)
    session.prefill(prompt)
    for _ in range(12):
        session.step()
    together = session.history[0].clone()
    alone = Decode(nano(dtype=torch.float64), policy("before"), 1)
    alone.prefill(prompt[:1])
    for _ in range(12):
        alone.step()
    assert torch.equal(together, alone.history[0])


def test_a_snapshot_brings_back_every_bit(nano: Builder) -> None:
    """Restore, run again: same tokens. Rows written since are zeroed, so a lost write could not hide."""
    model = nano()
    session = Decode(model, policy("after"), 2)
    session.fill(60, seed=1)
    snapshot = session.snapshot()
    before = pools(model)
    for _ in range(8):
        session.step()
    first = session.history.clone()
    assert model.caches.latent[0, 0, 63].abs().sum() > 0
    session.restore(snapshot)
    for one, other in zip(before, pools(model), strict=True):
        assert torch.equal(one, other)
    for _ in range(8):
        session.step()
    assert torch.equal(first, session.history)


def test_a_smaller_batch_starts_from_the_same_fill(nano: Builder) -> None:
    """One fill at the largest batch serves every level: row 0 goes on as it would in company."""
    model = nano(dtype=torch.float64)
    large, small = Decode(model, policy("before"), 4), Decode(model, policy("before"), 1)
    large.fill(50, seed=3)
    wide, narrow = large.snapshot(), small.snapshot()
    for _ in range(5):
        large.step()
    expected = large.history[0].clone()
    large.restore(wide)
    small.restore(narrow)
    for _ in range(5):
        small.step()
    assert torch.equal(expected, small.history[0])


def test_weights_depend_on_seed_and_name_alone(nano: Builder) -> None:
    """Layouts A and B of one seed hold the same model; another seed holds another."""
    a, b = nano(variant="A"), nano(variant="B")
    other = build(preset("nano"), seed=1, max_batch=1, context=64)
    name = "language_model.model.layers.1.self_attn.k_proj.weight"
    assert a.weights.parts.keys() == b.weights.parts.keys()
    assert torch.equal(a.weights.parts[name].view, b.weights.parts[name].view)
    assert not torch.equal(a.weights.parts[name].view, other.weights.parts[name].view)


def test_greedy_tokens_do_not_collapse(nano: Builder, prompt: torch.Tensor) -> None:
    """Random weights still choose many different tokens, so equal tokens mean something."""
    session = Decode(nano("nano-res"), policy("before"), 4)
    session.prefill(prompt)
    for _ in range(50):
        session.step()
    assert session.history[:, 69:119].unique().numel() >= 64


def test_a_batch_larger_than_the_caches_is_refused(nano: Builder) -> None:
    """Before any work, with both numbers."""
    with pytest.raises(CapacityError, match=r"batch 5 does not fit[\s\S]*1 to 4"):
        Decode(nano(), policy("before"), 5)


def test_a_context_past_the_cache_is_refused(nano: Builder, prompt: torch.Tensor) -> None:
    """By fill, by prefill and by asking for steps."""
    session = Decode(nano(), policy("before"), 4)
    with pytest.raises(CapacityError, match="context 129 is past the cache"):
        session.fill(129)
    session.prefill(prompt)
    with pytest.raises(CapacityError, match="context 140 is past the cache"):
        session.prefill(prompt)
    with pytest.raises(CapacityError, match="context 129 is past the cache"):
        session.check_steps(59)
    session.check_steps(58)


def test_a_snapshot_of_another_batch_is_refused(nano: Builder) -> None:
    """Half a restore would mix two runs."""
    model = nano()
    snapshot = Decode(model, policy("before"), 2).snapshot()
    with pytest.raises(CapacityError, match="snapshot of batch 2"):
        Decode(model, policy("before"), 3).restore(snapshot)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused() -> None:
    """Before the model is built."""
    with pytest.raises(DeviceError, match="no CUDA device"):
        build(preset("nano"), device="cuda")


def test_an_unknown_device_is_refused() -> None:
    """With the valid forms."""
    with pytest.raises(DeviceError, match=r"unknown device 'gpu'[\s\S]*cuda:<index>"):
        build(preset("nano"), device="gpu")


def test_capture_without_cuda_leaves_steps_eager(nano: Builder) -> None:
    """The same session works on a laptop, and says that nothing was captured."""
    session = Decode(nano(), policy("after"), 1)
    session.capture()
    session.step()
    assert not session.captured


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(POLICIES))
def test_captured_steps_equal_serial_eager_ones(name: str) -> None:
    """On a GPU: replays under any policy give the bits of an eager serial step."""
    model = build(preset("small"), device="cuda", max_batch=4, context=128)
    serial, session = Decode(model, policy("serial"), 4), Decode(model, policy(name), 4)
    serial.fill(100, seed=1)
    snapshot = serial.snapshot()
    session.capture()
    session.restore(snapshot)
    for _ in range(8):
        session.step()
    got = pools(model)
    serial.restore(snapshot)
    for _ in range(8):
        serial.step()
    for one, other in zip(pools(model), got, strict=True):
        assert torch.equal(one, other)


def test_inputs_in_one_product_or_in_several_agree_to_rounding(nano: Builder) -> None:
    """Fused: fewer, larger products of the same weights; the same tokens."""
    found = []
    for fused in (False, True):
        session = Decode(nano(fused_inputs=fused), policy("all"), 2)
        session.fill(62, seed=3)
        for _ in range(3):
            session.step()
        found.append((session.logits.clone(), session.tokens.clone()))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[1][1], found[0][1])
