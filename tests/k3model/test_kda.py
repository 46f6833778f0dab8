"""Kimi Delta Attention against its formulas written out longhand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.capture import Decode
from k3model.decode import K3
from k3model.kda import KDA
from k3model.kda_chunk import chunk_delta_rule
from k3model.kernels.kda import delta_rule
from k3model.policy import policy
from k3model.streams import Forks

SERIAL = Forks(policy("serial"), None)


def first_kda(model: K3) -> KDA:
    """Layer 0 of nano."""
    layer = model.layers[0].self_attn
    assert isinstance(layer, KDA)
    return layer


def random_rule(tokens: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, g, beta, state for two rows of three heads, 8 wide, in float64."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, tokens, 3, 8, generator=draw, dtype=torch.float64) for _ in range(3))
    g = -5 * torch.rand(2, tokens, 3, 8, generator=draw, dtype=torch.float64)
    beta = torch.rand(2, tokens, 3, generator=draw, dtype=torch.float64)
    state = torch.randn(2, 3, 8, 8, generator=draw, dtype=torch.float64)
    return q, k / k.norm(dim=-1, keepdim=True), v, g, beta, state


def test_delta_rule_equals_its_matrix_form() -> None:
    """S_t = (I - beta k k^T) Diag(alpha) S_{t-1} + beta k v^T in [K, V] layout, o = S^T q."""
    q, k, v, g, beta, state = (x[:, 0] if x.dim() > 3 and x.shape[1] == 1 else x for x in random_rule(1))
    beta = beta[:, 0]
    expected_state = torch.empty_like(state)
    for b in range(2):
        for h in range(3):
            S = torch.diag(g[b, h].exp()) @ state[b, h].T
            S = S - beta[b, h] * torch.outer(k[b, h], k[b, h]) @ S + beta[b, h] * torch.outer(k[b, h], v[b, h])
            expected_state[b, h] = S.T
    out = delta_rule(state, q, k, v, g.exp(), beta)
    torch.testing.assert_close(state, expected_state)
    torch.testing.assert_close(out, (expected_state @ q.unsqueeze(-1)).squeeze(-1))


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
def test_chunk_form_equals_the_recurrence(tokens: int) -> None:
    """Whole chunks, part chunks and several chunks give the same outputs and state."""
    q, k, v, g, beta, state = random_rule(tokens)
    chunked, after = chunk_delta_rule(q, k, v, g, beta, state)
    steps = [delta_rule(state, q[:, t], k[:, t], v[:, t], g[:, t].exp(), beta[:, t]) for t in range(tokens)]
    torch.testing.assert_close(chunked, torch.stack(steps, dim=1))
    torch.testing.assert_close(after, state)


def test_chunk_form_survives_the_strongest_decay() -> None:
    """Sixty-four tokens at the bound sum to -320: exp(+320) overflows, exp of differences does not."""
    q, k, v, g, beta, state = (x.float() for x in random_rule(64))
    out, after = chunk_delta_rule(q, k, v, torch.full_like(g, -5.0), beta, state)
    assert out.isfinite().all()
    assert after.isfinite().all()


def test_decay_stays_between_the_bound_and_one(nano: Callable[..., K3]) -> None:
    """g = L sigmoid(..) lies in (-5, 0), however large the raw gate; it is a curve and not a clamp."""
    layer = first_kda(nano())
    raw = torch.linspace(-3, 3, 5).unsqueeze(1).expand(5, layer.d)
    g = layer.constants.log_decay(raw)
    assert g.min() > -5
    assert g.max() < 0
    assert (g.diff(dim=0) < 0).all()
    assert layer.constants.log_decay(torch.full((1, layer.d), 1e4)).min() == -5


@pytest.mark.parametrize("variant", ["A", "B"])
def test_conv_window_holds_the_last_raw_projections(nano: Callable[..., K3], variant: str) -> None:
    """After five tokens the pool holds raw q, k, v of the newest ones, oldest first; A keeps four columns, B three."""
    model = nano(variant=variant)
    layer, rows = first_kda(model), model.caches.rows(2)
    xs = torch.randn(5, 2, 64, generator=torch.Generator().manual_seed(1))
    for x in xs:
        layer.step(x, model.caches, rows.stepping(), SERIAL)
    raw = torch.stack([layer.project_in(x, SERIAL).qkv for x in xs], dim=-1)
    columns = {"A": 4, "B": 3}[variant]
    torch.testing.assert_close(model.caches.conv[0, :2], raw[..., -columns:])


def test_short_conv_equals_a_padded_causal_convolution(nano: Callable[..., K3]) -> None:
    """q, k and v see SiLU of a width-4 depthwise convolution, zeros before the first token."""
    model = nano()
    layer, rows = first_kda(model), model.caches.rows(1)
    xs = torch.randn(6, 1, 64, generator=torch.Generator().manual_seed(2))
    raw = torch.stack([layer.project_in(x, SERIAL).qkv for x in xs], dim=-1)
    weight = layer.conv.reshape(3 * layer.d, 1, 4)
    padded = torch.nn.functional.pad(raw, (3, 0))
    expected = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight, groups=3 * layer.d))[..., -1]
    for x in xs[:-1]:
        layer.step(x, model.caches, rows.stepping(), SERIAL)
    projected, staged = layer.project_in(xs[-1], SERIAL), model.caches.kda[0].stage(rows.slots)
    new = projected.qkv.view(1, 3, layer.d).transpose(0, 1)
    taps = layer.constants.taps_history, layer.constants.tap_now
    got = torch.nn.functional.silu((staged.history * taps[0]).sum(-1) + new * taps[1])
    torch.testing.assert_close(got.transpose(0, 1).reshape(1, -1), expected)


@pytest.mark.parametrize(
    "options",
    [{"state_pool": "indexed"}, {"staging_repack": False}, {"state_pool": "indexed", "staging_repack": False}],
)
def test_where_staged_data_lies_changes_no_bit(nano: Callable[..., K3], options: dict[str, object]) -> None:
    """Gathered or indexed state, repacked or strided windows: same logits, same pools."""
    results = []
    for model in (nano(), nano(**options)):
        session = Decode(model, policy("serial"), 3)
        session.tokens.copy_(torch.tensor([5, 6, 7]))
        for _ in range(6):
            session.step()
        results.append((session.logits, model.caches.state, model.caches.conv))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_fused_and_split_projections_read_the_same_weights(nano: Callable[..., K3]) -> None:
    """Variant A's one GEMM and variant B's two agree to rounding."""
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(4))
    one, other = (first_kda(nano(variant=variant)).project_in(x, SERIAL) for variant in "AB")
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def test_fp8_weights_come_close_to_bfloat16_ones(nano: Callable[..., K3]) -> None:
    """e4m3 with block scales keeps each product within a few per cent, and is not the identity."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(5))
    plain = first_kda(nano()).project_in(x, SERIAL).qkv
    coded = first_kda(nano(kda_weights="fp8")).project_in(x, SERIAL).qkv
    error = (coded - plain).norm() / plain.norm()
    assert 0 < error < 0.05
