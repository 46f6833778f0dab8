"""How large a config is and how many bytes one decode step must move: numbers in, numbers out.

`bytes_per_step` counts every weight once, each hit expert once, states read and written, cached rows read: what a
perfect kernel would move in bfloat16. Out of scope: what plain torch moves on top.
"""

from __future__ import annotations

from typing import NamedTuple

from k3model.config import K3Config
from k3model.hits import seeded_hits

BF16, F32, E4M3 = 2, 4, 1
#: Terabytes a second that a pure read reaches on an H200. Bytes over this are a floor, not a measurement.
READ_TB_S = 4.45
#: Half a byte a weight and one scale byte for 32 of them.
MXFP4 = 0.5 + 1 / 32


class Parameters(NamedTuple):
    """Logical weights: two to a packed byte, scales not counted."""

    total: int
    active: int  # per token: picked experts only, without the embedding table


def count_parameters(config: K3Config) -> Parameters:
    """Counted on the real thing: the model is built on the meta device, which has shapes and no memory."""
    from k3model.decode import build

    model = build(config, device="meta", max_batch=1, context=1)
    parts = model.weights.parts.values()
    total = sum(part.parameters for part in parts)
    routed = sum(part.parameters for part in parts if ".experts." in part.name)
    picked = routed * config.top_k // config.local_experts if config.routing == "router" else 0
    embedding = sum(part.parameters for part in parts if "embed_tokens" in part.name)
    return Parameters(total, total - routed + picked - embedding)


def bytes_per_step(config: K3Config, batch: int, context: int) -> dict[str, int]:
    """Bytes one rank moves in a step of `batch` rows that each hold `context` tokens, by where they go."""
    weights = _weight_bytes(config)
    experts = sum(
        expected_experts(config, layer, batch) for layer in range(config.layers) if not config.is_dense(layer)
    )
    return {
        **{name: round(size) for name, size in weights.items()},
        "experts": round(experts * expert_bytes(config)),
        "kda_state": batch * len(config.kda_layers) * _kda_row_bytes(config),
        "latent": batch * context * len(config.mla_layers) * config.latent_row * _cache_byte(config),
    }


class OpBytes(NamedTuple):
    """One op of a step: how many layers have it, and what it must read (states: and write) in each."""

    family: str
    op: str
    layers: int
    bytes_each: float


def bytes_by_op(config: K3Config, batch: int, context: int) -> list[OpBytes]:
    """`bytes_per_step`, op by op in the order of a layer; the sum is the same. Activations are left out as there."""
    kda, mla, moe = len(config.kda_layers), len(config.mla_layers), config.layers - config.dense_layers
    hidden, d, latent = config.hidden, config.kda_width_local, config.latent
    read = E4M3 if config.kda_weights == "fp8" else BF16
    h, low, C = config.mla_heads_local, config.q_lora_rank, config.kv_lora_rank
    shared = hidden * config.shared_intermediate_local * BF16
    hits = sum(expected_experts(config, i, batch) for i in range(config.dense_layers, config.layers))
    recurrence = 3 * d * config.conv_width * F32 + batch * _kda_row_bytes(config)
    return [
        OpBytes("KDA", "q, k, v, g", kda, 4 * d * hidden * read),
        OpBytes("KDA", "f_a, b", kda, config.kda_bfa_rows * hidden * BF16),
        OpBytes("KDA", "f_b", kda, d * config.kda_gate_rank * BF16),
        OpBytes("KDA", "conv, gates, delta rule, gated norm", kda, recurrence),
        OpBytes("KDA", "o_proj", kda, d * hidden * read),
        OpBytes("MLA", "q_a", mla, hidden * low * BF16),
        OpBytes("MLA", "norm, q_b", mla, low * h * (config.qk_nope_dim + config.qk_rope_dim) * BF16),
        OpBytes("MLA", "kv_a", mla, hidden * config.latent_row * BF16),
        OpBytes("MLA", "absorb", mla, C * h * config.qk_nope_dim * BF16),
        OpBytes("MLA", "attention", mla, batch * context * config.latent_row * _cache_byte(config)),
        OpBytes("MLA", "values", mla, C * h * config.v_dim * BF16),
        OpBytes("MLA", "output gate", mla, hidden * h * config.v_dim * BF16),
        OpBytes("MLA", "o_proj", mla, hidden * h * config.v_dim * BF16),
        OpBytes("MoE", "router", moe, config.experts * hidden * BF16),
        OpBytes("MoE", "latent down", moe, latent * hidden * BF16),
        OpBytes("MoE", "routed experts", moe, hits / moe * expert_bytes(config) if moe else 0.0),
        OpBytes("MoE", "norm, latent up", moe, latent * hidden * BF16),
        OpBytes("MoE", "shared gate, up", moe, 2 * shared),
        OpBytes("MoE", "shared down", moe, shared),
        OpBytes("other", "dense MLP", config.dense_layers, 3 * hidden * config.mlp_intermediate_local * BF16),
        OpBytes("other", "add, AttnRes mix, norm", 2 * config.layers, hidden * (F32 + BF16)),
        OpBytes("other", "last mix", 1, hidden * F32),
        OpBytes("other", "lm_head", 1, config.vocab_local * hidden * BF16),
    ]


def expected_experts(config: K3Config, layer: int, batch: int) -> float:
    """Distinct held experts hit in a layer: counted from the seeded table, or expected under uniform routing."""
    if config.routing == "seeded":
        return config.hit_groups * len(set(seeded_hits(config, layer, batch)))
    missed = (1 - config.top_k / config.experts) ** batch
    return config.local_experts * (1 - missed)


def expert_bytes(config: K3Config) -> float:
    """One routed expert."""
    return 3 * config.expert_intermediate * config.latent * (MXFP4 if config.expert_weights == "mxfp4" else BF16)


def _weight_bytes(config: K3Config) -> dict[str, float]:
    moe_layers = config.layers - config.dense_layers
    mlp = 3 * config.hidden * config.mlp_intermediate_local * BF16
    mixes = (2 * config.layers + 1) * config.hidden * F32
    norms = 2 * config.layers * config.hidden * BF16
    return {
        "kda": len(config.kda_layers) * _kda_bytes(config),
        "mla": len(config.mla_layers) * _mla_bytes(config),
        "moe": moe_layers * _moe_bytes(config),
        "other": config.dense_layers * mlp + mixes + norms + config.vocab_local * config.hidden * BF16,
    }


def _kda_bytes(config: K3Config) -> int:
    d, hidden = config.kda_width_local, config.hidden
    read = E4M3 if config.kda_weights == "fp8" else BF16
    small = (config.kda_bfa_rows * hidden + d * config.kda_gate_rank) * BF16
    return 5 * d * hidden * read + small + 3 * d * config.conv_width * F32


def _mla_bytes(config: K3Config) -> int:
    h, hidden, low = config.mla_heads_local, config.hidden, config.q_lora_rank
    heads = low * (config.qk_nope_dim + config.qk_rope_dim)
    heads += config.kv_lora_rank * (config.qk_nope_dim + config.v_dim) + 2 * hidden * config.v_dim
    return BF16 * (hidden * (low + config.latent_row) + h * heads)


def _moe_bytes(config: K3Config) -> int:
    hidden = config.hidden
    shared = 3 * hidden * config.shared_intermediate_local
    return BF16 * (config.experts * hidden + 2 * config.latent * hidden + shared)


def _kda_row_bytes(config: K3Config) -> int:
    """State and conv window of one row in one layer, read and written."""
    state = config.kda_heads_local * config.kda_head_dim**2 * F32
    return 2 * (state + 3 * config.kda_width_local * config.conv_columns * BF16)


def _cache_byte(config: K3Config) -> int:
    return E4M3 if config.kv_cache == "fp8" else BF16
