"""The K3 text decoder: one token a row in, logits out; and a prompt in, caches filled.

    embedding → 93 x (mix → norm → KDA | MLA → add → mix → norm → MLP | MoE → add) → mix → norm → lm_head

Out of scope: choosing tokens, batches and graphs (`capture.py`); reading checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from k3model.attn_res import MixPair, Residual
from k3model.cache import Caches, Rows
from k3model.collectives import Collectives
from k3model.config import K3Config
from k3model.errors import DeviceError
from k3model.kda import KDA
from k3model.kernels import Ops, choose
from k3model.mla import MLA
from k3model.moe import DenseMLP, FedForward, MoE
from k3model.ranges import Ranges, no_ranges
from k3model.streams import Forks, side_stream
from k3model.weights import Weights, fill


class Layer:
    """One layer: two mixes, two norms, attention, feed-forward."""

    def __init__(self, weights: Weights, config: K3Config, collectives: Collectives, ops: Ops, index: int) -> None:
        self.index = index
        # Layer 0 sees no snapshot, so it has nothing to mix before its attention.
        self.self_attention_res = MixPair(weights, "self_attention_res", config.hidden) if index else None
        self.mlp_res = MixPair(weights, "mlp_res", config.hidden)
        self.input_layernorm = weights.norm("input_layernorm", config.hidden)
        self.post_attention_layernorm = weights.norm("post_attention_layernorm", config.hidden)
        attention = weights.at("self_attn")
        self.self_attn: KDA | MLA
        if config.is_mla(index):
            self.self_attn = MLA(attention, config, collectives, ops, config.mla_layers.index(index))
        else:
            self.self_attn = KDA(attention, config, collectives, ops, config.kda_layers.index(index))
        dense = config.is_dense(index)
        self.mlp = (
            DenseMLP(weights, config, collectives, ops) if dense else MoE(weights, config, collectives, ops, index)
        )
        self.attention_range, self.mlp_range = (f"L{index}.{part.family}" for part in (self.self_attn, self.mlp))
        self.rest_range = f"L{index}.other"

    def prepare(self) -> None:
        """Derive what the parts derive."""
        for part in (self.self_attn, self.mlp):
            part.prepare()

    @property
    def mix_pairs(self) -> list[MixPair]:
        """In the order in which they are used."""
        return [pair for pair in (self.self_attention_res, self.mlp_res) if pair is not None]


class K3:
    """Weights of one rank, its caches, its one side stream. Built once; every policy and batch runs on it."""

    def __init__(
        self, config: K3Config, device: torch.device, dtype: torch.dtype, seed: int, max_batch: int, context: int
    ) -> None:
        self.config, self.device, self.dtype, self.seed = config, device, dtype, seed
        self.collectives, self.ops = Collectives(config), choose(config, device)
        self.weights = Weights(device, dtype, "language_model.")
        self._build(self.weights)
        self.caches = Caches(config, max_batch, context, device, dtype)
        self.side_stream = side_stream(device, config.stream_priority)
        self._pool_keeper: torch.cuda.CUDAGraph | None = None
        self.mixes: tuple[int, ...] = ()  # candidates of every AttnRes mix in the last pass
        fill(self.weights.parts, seed, whole=self.collectives.real)
        self.prepare()

    def _build(self, weights: Weights) -> None:
        config, model = self.config, weights.at("model")
        self.embed_tokens = model.matrix("embed_tokens", config.vocab, config.hidden)
        parts = config, self.collectives, self.ops
        self.layers = [Layer(model.at(f"layers.{i}"), *parts, i) for i in range(config.layers)]
        self.head_range = f"L{config.layers}.other"
        self.output_attn_res = MixPair(model, "output_attn_res", config.hidden)
        self.norm = model.norm("norm", config.hidden)
        rank, of = self.collectives.rank, config.tp_size
        self.lm_head = weights.matrix("lm_head", config.vocab, config.hidden, cut=0, rank=rank, of=of)

    def prepare(self) -> None:
        """Derive constants. Call again after all of `weights.parts` is filled anew: packed experts change order."""
        for layer in self.layers:
            layer.prepare()
        pairs = [*(pair for layer in self.layers for pair in layer.mix_pairs), self.output_attn_res]
        self.directions = torch.stack([pair.direction() for pair in pairs])

    def graph_pool(self) -> Any:
        """One memory pool for all captured steps: they never run at the same time, and results leave by copies.

        A pool whose last graph is gone cannot be captured into again, so an empty graph keeps it for the model's life.
        """
        if self._pool_keeper is None:
            self._pool_keeper = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._pool_keeper, capture_error_mode=self.collectives.capture_error_mode):
                torch.zeros(1, device=self.device)
        return self._pool_keeper.pool()

    def step(self, tokens: torch.Tensor, rows: Rows, forks: Forks, ranges: Ranges = no_ranges) -> torch.Tensor:
        """One token [B] a row at `rows.positions` -> logits [B, vocab]; caches move on. No host decision inside."""
        with ranges(self.layers[0].rest_range):
            caches, rows = self.caches, rows.stepping()

        def attend(layer: Layer, x: torch.Tensor) -> torch.Tensor:
            return layer.self_attn.step(x, caches, rows, forks)

        def feed_forward(layer: Layer, x: torch.Tensor) -> FedForward:
            return layer.mlp.step(x, forks)

        return self._forward(tokens, caches.bank[:, : rows.batch], attend, feed_forward, ranges)

    def prefill(self, tokens: torch.Tensor, rows: Rows, start: int, forks: Forks) -> torch.Tensor:
        """Tokens [B, T] from position `start` on, the same for all rows -> logits [B, vocab] after the last one."""
        B, T = tokens.shape
        shape = (self.config.snapshots + 1, B * T, self.config.hidden)
        bank = torch.empty(shape, device=self.device, dtype=self.dtype)

        caches, rows = self.caches, rows.spanning(start, T)

        def attend(layer: Layer, x: torch.Tensor) -> torch.Tensor:
            return layer.self_attn.prefill(x.view(B, T, -1), caches, rows, forks).flatten(0, 1)

        def feed_forward(layer: Layer, x: torch.Tensor) -> FedForward:
            return layer.mlp.prefill(x, forks)

        last = torch.arange(B, device=self.device) * T + T - 1
        return self._forward(tokens.flatten(), bank, attend, feed_forward, no_ranges, last)

    def _forward(
        self,
        tokens: torch.Tensor,
        bank: torch.Tensor,
        attend: Callable[[Layer, torch.Tensor], torch.Tensor],
        feed_forward: Callable[[Layer, torch.Tensor], FedForward],
        ranges: Ranges,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The stack as the paper draws it. `keep` names the rows whose logits are wanted."""
        config = self.config
        with ranges(self.layers[0].rest_range):
            embedded = F.embedding(tokens, self.embed_tokens)
            residual = Residual(bank, embedded, self.directions, config.attn_res_block, config.rms_eps, self.ops)
        for layer in self.layers:
            with ranges(layer.rest_range):
                x = residual.attention_input(layer.index, layer.input_layernorm)
            with ranges(layer.attention_range):
                residual.add(attend(layer, x))
            with ranges(layer.rest_range):
                x = residual.mix(layer.post_attention_layernorm)
            with ranges(layer.mlp_range):
                residual.add(feed_forward(layer, x))
        with ranges(self.head_range):
            x = residual.mix(self.norm)
            self.mixes = tuple(residual.mixes)
            logits = self.ops.linear_wide(x if keep is None else x[keep], self.lm_head)
            return self.collectives.gather_columns(logits)


def build(
    config: K3Config,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    seed: int = 0,
    max_batch: int = 8,
    context: int = 1024,
) -> K3:
    """The model with seeded random weights and empty caches. dtype defaults to bfloat16 on CUDA, float32 elsewhere.

    Raises `DeviceError` for CUDA without CUDA, before any work.
    """
    place = checked_device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)  # capture and events work on the current device
    default = torch.bfloat16 if place.type == "cuda" else torch.float32
    with torch.no_grad():
        return K3(config, place, dtype or default, seed, max_batch, context)


def device_of(wanted: str) -> str:
    """`auto` is CUDA where there is CUDA."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def checked_device(name: str) -> torch.device:
    """The device of that name, with its index. Raises `DeviceError` if it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"unknown device {name!r}", fix="valid devices: cpu, cuda, cuda:<index>") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise DeviceError("CUDA was asked for, but this machine has no CUDA device", fix="use --device cpu")
        return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device
