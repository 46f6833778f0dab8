"""Gated latent attention: the absorbed form against plain attention, and the paged cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.capture import Decode
from k3model.decode import K3
from k3model.mla import MLA
from k3model.policy import policy
from k3model.streams import Forks

SERIAL = Forks(policy("serial"), None)


def the_mla(model: K3) -> MLA:
    """Layer 3 of nano."""
    layer = model.layers[3].self_attn
    assert isinstance(layer, MLA)
    return layer


def plain_attention(layer: MLA, xs: torch.Tensor) -> torch.Tensor:
    """Full-sequence attention of the last token over xs [T, hidden], keys and values built per head."""
    config = layer.config
    q = layer.query(xs[-1:])[0]
    rows = layer.latent(xs)
    heads = layer.kv_b_proj.view(layer.h, layer.N + layer.V, layer.C)
    outputs = []
    for h in range(layer.h):
        up = rows[:, : layer.C] @ heads[h].T
        keys = torch.cat([up[:, : layer.N], rows[:, layer.C :]], dim=-1)
        probs = torch.softmax(keys @ q[h] * (layer.N + layer.R) ** -0.5, dim=0)
        outputs.append(probs @ up[:, layer.N :])
    gate = torch.sigmoid(xs[-1] @ layer.g_proj.T)
    assert config.kv_cache == "bf16"
    return (torch.cat(outputs) * gate) @ layer.o_proj.T


@pytest.mark.parametrize("variant", ["A", "B"])
def test_absorbed_decode_equals_plain_attention_across_a_page_border(nano: Callable[..., K3], variant: str) -> None:
    """Seventy tokens, one at a time, cross the 64-token page; the last output equals attention over all of them."""
    model = nano(variant=variant)
    layer, xs = the_mla(model), torch.randn(70, 1, 64, generator=torch.Generator().manual_seed(1))
    for position, x in enumerate(xs):
        model.caches.positions.fill_(position)
        out = layer.step(x, model.caches, model.caches.rows(1).stepping(), SERIAL)
    torch.testing.assert_close(out[0], plain_attention(layer, xs[:, 0]), rtol=1e-4, atol=1e-5)
    assert model.caches.latent[0, 1, 5].abs().sum() > 0
    assert model.caches.latent[0, 1, 6].abs().sum() == 0


def test_the_tail_is_neither_normed_nor_rotated(nano: Callable[..., K3]) -> None:
    """The cached tail is the raw projection, at any position."""
    layer = the_mla(nano())
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(layer.latent(x)[:, layer.C :], (x @ layer.kv_a_proj.T)[:, layer.C :])


def test_inner_norms_use_their_own_eps(nano: Callable[..., K3]) -> None:
    """References keep 1e-6 there, engines 1e-5; small inputs tell them apart, logits of random weights would not."""
    x = 1e-3 * torch.randn(1, 64, generator=torch.Generator().manual_seed(3))
    small, large = (the_mla(nano(latent_rms_eps=eps)).latent(x) for eps in (1e-6, 1e-5))
    assert (small / large)[..., 0].item() > 1.5


def test_scattered_pages_hold_the_same_sequence(nano: Callable[..., K3], prompt: torch.Tensor) -> None:
    """Pages dealt out in any order give the same tokens as consecutive ones."""
    results = []
    for scatter in (False, True):
        model = nano()
        if scatter:
            order = torch.randperm(model.caches.table.numel(), generator=torch.Generator().manual_seed(4))
            model.caches.share_pages(order.view_as(model.caches.table))
        session = Decode(model, policy("after"), 4)
        session.prefill(prompt)
        for _ in range(10):
            session.step()
        results.append((session.history, session.logits))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_an_fp8_cache_rounds_rows_and_queries(nano: Callable[..., K3], prompt: torch.Tensor) -> None:
    """Logits move a little and stay finite; the pool holds one byte a value."""
    plain, coded = nano(), nano(kv_cache="fp8")
    for model in (plain, coded):
        session = Decode(model, policy("after"), 4)
        session.prefill(prompt)
        session.step()
    assert coded.caches.latent.element_size() == 1
    error = (coded.caches.logits - plain.caches.logits).abs().max()
    assert 0 < error < 0.5
