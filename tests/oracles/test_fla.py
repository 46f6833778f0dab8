"""Our KDA against the naive gate and delta rule of fla-core, token by token and in chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

pytest.importorskip("fla", reason="fla-core is not in this environment: ./k3 oracles")

from fla.ops.kda.gate import naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda

from k3model.cache import Caches
from k3model.config import preset
from k3model.decode import K3, build
from k3model.kda import KDA
from k3model.kda_chunk import chunk_delta_rule
from k3model.kernels.kda import delta_rule
from k3model.policy import policy
from k3model.streams import Forks

from .conftest import Agree

#: fp32 rounding of about a hundred steps on outputs of size one.
LIMIT = 2e-5


def drawn(tokens: int) -> tuple[torch.Tensor, ...]:
    """q (scaled) and k of unit length, v, bounded log decay, beta, and a first state [B, h, V, K]."""
    draw = torch.Generator().manual_seed(5)
    shape = (2, tokens, 4, 16)
    q, k, v, raw = (torch.randn(shape, generator=draw) for _ in range(4))
    beta = torch.rand(shape[:3], generator=draw)
    state = torch.randn(2, 4, 16, 16, generator=draw)
    return F.normalize(q, dim=-1) / 4, F.normalize(k, dim=-1), v, -5 * raw.sigmoid(), beta, state


def naive(
    rule: Callable[..., tuple[torch.Tensor, torch.Tensor]], given: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Their state is [K, V], ours [V, K]."""
    q, k, v, g, beta, state = given
    out, after = rule(q, k, v, g, beta, scale=1.0, initial_state=state.mT.contiguous(), output_final_state=True)
    return out, after.mT


def test_one_step_of_the_delta_rule(agree: Agree) -> None:
    """Seventy steps of ours from a random state."""
    given = drawn(70)
    out, after = naive(naive_recurrent_kda, given)
    q, k, v, g, beta, state = (x.clone() for x in given)
    steps = [delta_rule(state, q[:, t], k[:, t], v[:, t], g[:, t].exp(), beta[:, t]) for t in range(70)]
    agree("fla naive recurrent KDA, 70 steps, outputs", torch.stack(steps, dim=1), out, LIMIT)
    agree("fla naive recurrent KDA, 70 steps, state", state, after, LIMIT)


@pytest.mark.parametrize("rule", [naive_recurrent_kda, naive_chunk_kda], ids=["recurrent", "chunk"])
def test_the_chunk_form(agree: Agree, rule: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Two chunks of 64, against both of theirs."""
    given = drawn(128)
    out, after = naive(rule, given)
    ours, state = chunk_delta_rule(*given)
    agree(f"fla {rule.__name__}, 128 tokens, outputs of our chunk form", ours, out, LIMIT)
    agree(f"fla {rule.__name__}, 128 tokens, state of our chunk form", state, after, LIMIT)


def composed(model: K3, layer: KDA, x: torch.Tensor) -> torch.Tensor:
    """The layer from their gate and rule; projections, conv and norms by torch, with the checkpoint's own names."""
    weight = {
        name.rsplit("self_attn.", 1)[1]: part.view
        for name, part in model.weights.parts.items()
        if ".layers.0.self_attn." in name
    }
    linear = {letter: F.linear(x, weight[f"{letter}_proj.weight"]) for letter in ("q", "k", "v", "g", "b", "f_a")}
    short = {}
    for letter in "qkv":
        padded = F.pad(linear[letter].mT, (3, 0))
        short[letter] = F.silu(F.conv1d(padded, weight[f"{letter}_conv1d.weight"], groups=padded.shape[1])).mT
    heads = {letter: value.unflatten(-1, (layer.h, layer.D)) for letter, value in short.items()}
    q, k = (heads[letter] / (heads[letter].square().sum(-1, keepdim=True) + 1e-6).sqrt() for letter in "qk")
    raw = F.linear(linear["f_a"], weight["f_b_proj.weight"]).unflatten(-1, (layer.h, layer.D))
    g = naive_kda_lowerbound_gate(raw, weight["A_log"], weight["dt_bias"], lower_bound=-5.0)
    out, _ = naive_recurrent_kda(q, k, heads["v"], g, linear["b"].sigmoid(), scale=layer.D**-0.5)
    normed = F.rms_norm(out, (layer.D,), weight["o_norm.weight"], 1e-5).flatten(-2)
    return F.linear(normed * linear["g"].sigmoid(), weight["o_proj.weight"])


def test_a_whole_kda_layer_step_by_step_and_in_chunks(agree: Agree, kda_stepped: Callable[..., torch.Tensor]) -> None:
    """Gate and rule are theirs; decode and prefill of one layer are ours."""
    model = build(preset("nano"), max_batch=2, context=128)
    layer = model.layers[0].self_attn
    assert isinstance(layer, KDA)
    x = torch.randn(2, 100, 64, generator=torch.Generator().manual_seed(6))
    expected = composed(model, layer, x)
    agree("KDA layer on fla's naive gate and rule, 100 steps", kda_stepped(model, layer, x), expected, LIMIT)
    caches: Caches = model.caches
    caches.clear(2)
    with torch.no_grad():
        filled = layer.prefill(x, caches, caches.rows(2).spanning(0, 100), Forks(policy("serial"), None))
    agree("KDA layer on fla's naive gate and rule, prefill of 100", filled, expected, LIMIT)
