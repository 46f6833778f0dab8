"""The numbers of Kimi K3's text decoder: presets and options in, one frozen `K3Config` out. Torch-free.

Out of scope: what is done with the shapes (the layers), bytes moved per step (`footprint.py`).
All sizes are those of the whole model; properties ending in `_local` are one tensor-parallel rank's share.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from k3model.errors import ConfigError

Variant = Literal["A", "B"]


@dataclass(frozen=True)
class K3Config:
    """Defaults are the full K3. A = layout at the time of the PR, B = newest layout; both hold the same mathematics."""

    name: str = "full"
    # depth
    layers: int = 93
    mla_layers: tuple[int, ...] = (*range(3, 92, 4), 92)  # 0-based; every other layer is KDA
    dense_layers: int = 1  # layers before this one have a dense MLP instead of the MoE
    attn_res_block: int = 12  # a snapshot of the running sum every so many layers
    # width
    hidden: int = 7168
    vocab: int = 163840
    rms_eps: float = 1e-5
    latent_rms_eps: float = 1e-6  # q_a and kv_a norms: the reference keeps its class default, engines pass rms_eps
    # KDA
    kda_heads: int = 96
    kda_head_dim: int = 128
    conv_width: int = 4
    gate_lower_bound: float = -5.0
    # MLA, no positional encoding
    mla_heads: int = 96
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_dim: int = 128
    qk_rope_dim: int = 64  # never rotated; the name is the checkpoint's
    v_dim: int = 128
    page_tokens: int = 64
    # feed-forward
    mlp_intermediate: int = 33792
    experts: int = 896
    top_k: int = 16
    latent: int = 3584
    expert_intermediate: int = 3072
    shared_intermediate: int = 6144
    routed_scale: float = 1.0
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    # one rank's share
    variant: Variant = "B"
    tp_size: int = 1
    collectives: Literal["none_needed", "absent", "distributed"] = "none_needed"
    shares: int = 0  # the model is this many sixteenths of K3's width, so that sixteen would be K3; 0 = as given above
    held_experts: int = 0  # experts kept on this rank; 0 = its share of all
    routing: Literal["router", "seeded"] = "router"  # seeded: every token hits one expert a share, known in advance
    routing_seed: int = 252  # its distinct hits over 92 layers are within two of the expected, at 1, 2, 4 and 8 rows
    # switches that decide what is measured
    kernels: Literal["torch", "triton"] = "torch"
    pdl: bool = False  # kernels=triton: programmatic dependent launch, a kernel may start before the one ahead ends
    side_programs: int = 0  # kernels=triton: most programs of a GEMV in the side leg of a fork; 0 = one a block of rows
    fused_inputs: bool = False  # projections of one input in one product: KDA's [qkvg | f_a | b], MLA's [q_a | kv_a]
    leg_order: Literal["main", "side"] = "main"  # which leg of a fork is issued first
    stream_priority: Literal["equal", "main", "side"] = "equal"  # whose kernels the GPU places first
    state_pool: Literal["gathered", "indexed"] = "gathered"  # gathered: the PR lists the state among crossing tensors
    staging_repack: bool = True
    kda_weights: Literal["bf16", "fp8"] = "bf16"
    kv_cache: Literal["bf16", "fp8"] = "bf16"
    expert_weights: Literal["bf16", "mxfp4"] = "mxfp4"

    def __post_init__(self) -> None:
        for what, size in (("kda_heads", self.kda_heads), ("mla_heads", self.mla_heads)):
            self._divides(what, size)
        for what in ("mlp_intermediate", "vocab"):
            self._divides(what, getattr(self, what))
        if self.shares:
            self._divides("shares", self.shares)
        if self.variant == "B":
            self._divides("shared_intermediate", self.shared_intermediate)
        if self.layers < 1 or self.held_experts < 0 or self.page_tokens < 1:
            raise ConfigError("layers and page_tokens must be positive, held_experts not negative", where=self.name)
        if not self.held_experts:
            self._divides("experts", self.experts)
        if self.local_experts % self.hit_groups:
            raise ConfigError(
                f"{self.local_experts} held experts are not {self.hit_groups} equal groups, one for each share",
                where=f"{self.name}.held_experts",
                fix=f"choose a multiple of {self.hit_groups}, or leave it out",
            )
        if self.routing == "router" and self.local_experts * self.tp_size < self.experts:
            raise ConfigError(
                f"{self.local_experts} held experts on {self.tp_size} ranks cannot serve a router over {self.experts}",
                where=f"{self.name}.held_experts",
                fix='set routing="seeded" to measure with known hits, or hold all experts',
            )
        if not all(0 <= layer < self.layers for layer in self.mla_layers):
            raise ConfigError(f"mla_layers outside 0..{self.layers - 1}", where=f"{self.name}.mla_layers")

    def _divides(self, what: str, size: int) -> None:
        if self.tp_size < 1 or size % self.tp_size:
            raise ConfigError(
                f"{what} = {size} does not divide by tp_size = {self.tp_size}",
                where=f"{self.name}.{what}",
                fix=f"choose a tp_size that divides {size}",
            )

    # --- layer kinds
    def is_mla(self, layer: int) -> bool:
        """Layer kind, 0-based; the others are KDA."""
        return layer in self.mla_layers

    def is_dense(self, layer: int) -> bool:
        """Whether the feed-forward of this layer is the dense MLP."""
        return layer < self.dense_layers

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Layers with KDA attention."""
        return tuple(layer for layer in range(self.layers) if not self.is_mla(layer))

    @property
    def snapshots(self) -> int:
        """AttnRes snapshots that exist after the last layer."""
        return -(-self.layers // self.attn_res_block)

    # --- one rank's shapes
    @property
    def kda_heads_local(self) -> int:
        """KDA heads on one rank."""
        return self.kda_heads // self.tp_size

    @property
    def kda_width_local(self) -> int:
        """Width of each of q, k, v and the output gate on one rank."""
        return self.kda_heads_local * self.kda_head_dim

    @property
    def kda_gate_rank(self) -> int:
        """Inner width of the low-rank forget gate."""
        return self.kda_head_dim

    @property
    def kda_bfa_rows(self) -> int:
        """Rows of the fused [f_a | b] weight; B pads them to a multiple of 8."""
        rows = self.kda_gate_rank + self.kda_heads_local
        return -(-rows // 8) * 8 if self.variant == "B" else rows

    @property
    def kda_projection_is_fused(self) -> bool:
        """A runs one GEMM over [q|k|v|g|f_a|b]; B, and any FP8 read, runs QKVG and [f_a|b] apart, unless told."""
        return (self.variant == "A" or self.fused_inputs) and self.kda_weights == "bf16"

    @property
    def conv_columns(self) -> int:
        """Raw inputs kept per channel: A keeps the whole window, B only what the next step needs."""
        return self.conv_width if self.variant == "A" else self.conv_width - 1

    @property
    def mla_heads_local(self) -> int:
        """MLA heads on one rank; A pads them with zero heads to a power of two."""
        heads = self.mla_heads // self.tp_size
        return 1 << (heads - 1).bit_length() if self.variant == "A" else heads

    @property
    def latent_row(self) -> int:
        """Width of one cached MLA row: normed latent and the unrotated tail."""
        return self.kv_lora_rank + self.qk_rope_dim

    @property
    def local_experts(self) -> int:
        """Routed experts held by one rank."""
        return self.held_experts or self.experts // self.tp_size

    @property
    def hit_groups(self) -> int:
        """Seeded routing: groups of held experts in each of which a token hits one; a rank of a share has one."""
        return max(1, self.shares // self.tp_size)

    @property
    def shared_intermediate_local(self) -> int:
        """A replicates the shared experts, B splits them over the ranks."""
        return self.shared_intermediate if self.variant == "A" else self.shared_intermediate // self.tp_size

    @property
    def mlp_intermediate_local(self) -> int:
        """Dense MLP width on one rank."""
        return self.mlp_intermediate // self.tp_size

    @property
    def vocab_local(self) -> int:
        """Rows of `lm_head` on one rank; the embedding is replicated."""
        return self.vocab // self.tp_size


FULL = K3Config()

NANO = K3Config(
    name="nano", layers=5, mla_layers=(3,), attn_res_block=2, hidden=64, vocab=512, kda_heads=4, kda_head_dim=16,
    mla_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_nope_dim=16, qk_rope_dim=8, v_dim=16, mlp_intermediate=128,
    experts=8, top_k=2, latent=32, expert_intermediate=32, shared_intermediate=64, expert_weights="bf16",
)  # fmt: skip

SMALL = replace(
    NANO, name="small", layers=8, mla_layers=(3, 7), attn_res_block=4, hidden=512, vocab=8192, kda_head_dim=128,
    q_lora_rank=256, kv_lora_rank=512, qk_nope_dim=128, qk_rope_dim=64, v_dim=128, mlp_intermediate=1024,
    experts=16, top_k=4, latent=256, expert_intermediate=256, shared_intermediate=512,
)  # fmt: skip

#: One rank of sixteen: true local shapes, peers absent, every token hitting one held expert.
RANK_OF_16 = replace(FULL, tp_size=16, collectives="absent", routing="seeded")

#: Heads enough to be cut into two, four, eight or sixteen.
SMALL_16 = replace(SMALL, name="small-16", kda_heads=16, mla_heads=16)


def _widths(shares: int, variant: Variant) -> dict[str, Any]:
    """So many sixteenths of everything that ranks share out; A gives every rank the whole of the shared experts."""
    shared = FULL.shared_intermediate if variant == "A" else FULL.shared_intermediate // 16 * shares
    cut = ("kda_heads", "mla_heads", "mlp_intermediate", "vocab")
    return {"shared_intermediate": shared, **{name: getattr(FULL, name) // 16 * shares for name in cut}}


PRESETS: dict[str, K3Config] = {
    "full": FULL,
    "nano": NANO,
    "nano-res": replace(NANO, name="nano-res", layers=13, mla_layers=(3, 7, 11, 12), attn_res_block=4),
    "small": SMALL,
    "small-16": SMALL_16,
    "layer-kda": replace(
        RANK_OF_16, name="layer-kda", layers=1, mla_layers=(), dense_layers=0, vocab=16384, held_experts=8,
        expert_weights="bf16",
    ),
    "layer-mla": replace(
        RANK_OF_16, name="layer-mla", layers=1, mla_layers=(0,), dense_layers=0, vocab=16384, held_experts=8,
        expert_weights="bf16",
    ),
    "block-12": replace(
        RANK_OF_16, name="block-12", layers=12, mla_layers=(3, 7, 11), held_experts=4, expert_weights="bf16"
    ),
    "rank-93": replace(RANK_OF_16, name="rank-93", held_experts=8, expert_weights="mxfp4"),
    "share-12": replace(
        FULL, name="share-12", layers=12, mla_layers=(3, 7, 11), shares=1, routing="seeded", held_experts=4,
        expert_weights="bf16", **_widths(1, "B"),
    ),
    "share-93": replace(
        FULL, name="share-93", shares=1, routing="seeded", held_experts=8, expert_weights="mxfp4", **_widths(1, "B")
    ),
}  # fmt: skip

#: What a recipe may change on a preset. The rest is what makes it K3.
OPTIONS: tuple[str, ...] = (
    "variant", "tp_size", "collectives", "shares", "held_experts", "routing", "routing_seed", "latent_rms_eps",
    "layers", "kernels", "pdl", "side_programs", "fused_inputs", "leg_order", "stream_priority", "state_pool",
    "staging_repack", "kda_weights", "kv_cache", "expert_weights", "page_tokens",
)  # fmt: skip

_CHOICES: dict[str, tuple[Any, ...]] = {
    "variant": ("A", "B"),
    "collectives": ("none_needed", "absent", "distributed"),
    "routing": ("router", "seeded"),
    "kernels": ("torch", "triton"),
    "pdl": (True, False),
    "fused_inputs": (True, False),
    "leg_order": ("main", "side"),
    "stream_priority": ("equal", "main", "side"),
    "state_pool": ("gathered", "indexed"),
    "staging_repack": (True, False),
    "kda_weights": ("bf16", "fp8"),
    "kv_cache": ("bf16", "fp8"),
    "expert_weights": ("bf16", "mxfp4"),
}


def preset(name: str, **options: Any) -> K3Config:
    """A preset with options changed. Raises `ConfigError` naming what is unknown and listing what is valid."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}", fix=f"valid presets: {', '.join(PRESETS)}")
    for option, value in options.items():
        _check_option(name, option, value)
    base = PRESETS[name]
    if "layers" in options:
        options["mla_layers"] = tuple(layer for layer in base.mla_layers if layer < options["layers"])
    if options.get("tp_size", base.tp_size) != base.tp_size and "collectives" not in options:
        options["collectives"] = "none_needed" if options["tp_size"] == 1 else "distributed"
    if base.shares:
        options = _of_shares(base, options) | options
    return replace(base, **options)


def _of_shares(base: K3Config, options: dict[str, Any]) -> dict[str, Any]:
    """Widths of a model made of shares: as many as ranks unless told otherwise, so that a rank holds one."""
    ranks = options.get("tp_size", base.tp_size)
    shares = options.get("shares", ranks)
    if not 1 <= shares <= 16 or shares % ranks:
        raise ConfigError(
            f"{shares} shares cannot be cut into {ranks} ranks",
            where=f"{base.name}.shares",
            fix="1 to 16 shares, a multiple of tp_size",
        )
    held = base.held_experts * shares // ranks
    return {"shares": shares, "held_experts": held, **_widths(shares, options.get("variant", base.variant))}


def _check_option(name: str, option: str, value: Any) -> None:
    if option not in OPTIONS:
        raise ConfigError(f"unknown option {option!r}", where=name, fix=f"valid options: {', '.join(OPTIONS)}")
    if option in _CHOICES and value not in _CHOICES[option]:
        choices = ", ".join(str(choice) for choice in _CHOICES[option])
        raise ConfigError(f"{option} = {value!r} is not a choice", where=f"{name}.{option}", fix=f"valid: {choices}")
    kind = type(getattr(PRESETS[name], option))
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ConfigError(f"{option} = {value!r} is not of type {kind.__name__}", where=f"{name}.{option}")


def as_plain(config: K3Config) -> dict[str, Any]:
    """The config as JSON-ready values, for records and fingerprints."""
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
