"""Our KDA decode against the bounded KDA layer of transformers, whose low-rank output gate ours takes as a product."""

# ruff: noqa: E402
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

glm = pytest.importorskip(
    "transformers.models.glm5_next.modeling_glm5_next", reason="transformers is not in this environment: ./k3 oracles"
)
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig

from k3model.config import K3Config, preset
from k3model.decode import build
from k3model.kda import KDA

from .conftest import Agree

LIMIT = 2e-5
LAYER = "language_model.model.layers.0.self_attn."


def their_layer(config: K3Config) -> torch.nn.Module:
    """One layer of the same width, with weights of a size that keeps activations near one."""
    layer = glm.Glm5NextTextLinearAttention(
        Glm5NextTextConfig(
            hidden_size=config.hidden,
            num_hidden_layers=1,
            layer_types=["linear_attention"],
            linear_head_dim=config.kda_head_dim,
            linear_num_heads=config.kda_heads,
            linear_conv_kernel_dim=config.conv_width,
            linear_lower_bound=config.gate_lower_bound,
            rms_norm_eps=config.rms_eps,
        ),
        layer_idx=0,
    )
    draw = torch.Generator().manual_seed(9)
    for name, weight in layer.named_parameters():
        size = weight.shape[-1] ** -0.5 if weight.dim() == 2 else 0.5
        mean = {"o_norm.weight": 1.0, "forget_gate.dt_bias": -2.0}.get(name, 0.0)
        weight.data.copy_(mean + size * torch.randn(weight.shape, generator=draw))
    return layer


def taken_from(layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Their weights under the checkpoint's names."""
    theirs = {name: weight.detach() for name, weight in layer.named_parameters()}
    ours = {f"{letter}_proj.weight": theirs[f"{letter}_proj.weight"] for letter in ("q", "k", "v", "b", "o")}
    for letter, conv in zip("qkv", theirs["conv1d.weight"].chunk(3), strict=True):
        ours[f"{letter}_conv1d.weight"] = conv
    ours |= {f"f_{x}_proj.weight": theirs[f"forget_gate.f_{x}_proj.weight"] for x in "ab"}
    ours |= {name: theirs[f"forget_gate.{name}"] for name in ("A_log", "dt_bias")}
    ours["g_proj.weight"] = theirs["g_b_proj.weight"] @ theirs["g_a_proj.weight"]
    ours["o_norm.weight"] = theirs["o_norm.weight"]
    return ours


@pytest.mark.parametrize("tokens", [7, 70])
def test_a_kda_layer_token_by_token_against_their_whole_sequence(
    agree: Agree, kda_stepped: Callable[..., torch.Tensor], tokens: int
) -> None:
    """Conv, unit norms, bounded decay, delta rule, gated norm, both projections."""
    config = preset("nano")
    model, layer = build(config, max_batch=2, context=128), their_layer(config)
    for name, weight in taken_from(layer).items():
        model.weights.parts[LAYER + name].view.copy_(weight)
    model.prepare()
    ours = model.layers[0].self_attn
    assert isinstance(ours, KDA)
    x = torch.randn(2, tokens, config.hidden, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        expected = layer(x)
    agree(f"transformers Glm5NextTextLinearAttention, {tokens} steps", kda_stepped(model, ours, x), expected, LIMIT)
