"""Checkpoints: a model written under the checkpoint's own names reads back the same, and what does not fit is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from k3model.capture import Decode
from k3model.checkpoint import INDEX, load, save
from k3model.decode import K3
from k3model.errors import CheckpointError
from k3model.mxfp4 import dequantise
from k3model.policy import policy

Builder = Callable[..., K3]
LAYER = "language_model.model.layers"
EXPERT = f"{LAYER}.2.block_sparse_moe.experts.5.w1.weight"


def logits(model: K3, prompt: torch.Tensor) -> torch.Tensor:
    session = Decode(model, policy("serial"), len(prompt))
    session.prefill(prompt)
    session.step()
    return session.logits.clone()


def scrambled(model: K3) -> K3:
    for part in model.weights.parts.values():
        part.view.zero_()
    return model


@pytest.fixture
def folder(tmp_path: Path, nano: Builder) -> Path:
    """A tiny checkpoint: MXFP4 experts, A_log padded to 128, one file."""
    save(nano(expert_weights="mxfp4"), tmp_path)
    return tmp_path


def edited(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


def test_a_checkpoint_in_shards_reads_back_bit_by_bit(tmp_path: Path, nano: Builder, prompt: torch.Tensor) -> None:
    """Written by one model, read by another with other weights: the same logits."""
    for experts in ("bf16", "mxfp4"):
        written = nano(expert_weights=experts)
        save(written, tmp_path / experts, shards=3)
        read = scrambled(nano(expert_weights=experts))
        load(read, tmp_path / experts)
        assert torch.equal(logits(read, prompt), logits(written, prompt))


def test_names_and_formats_are_the_checkpoints_own(folder: Path) -> None:
    """A_log padded with zeros to 128, nibbles and scales as bytes, conv and bias wide, no other prefix."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    assert all(name.startswith("language_model.") for name in tensors)
    a_log = tensors[f"{LAYER}.1.self_attn.A_log"]
    assert a_log.shape == (128,)
    assert a_log[:4].all()
    assert not a_log[4:].any()
    assert tensors[f"{EXPERT}_packed"].shape == (32, 16)
    assert tensors[f"{EXPERT}_scale"].shape == (32, 1)
    assert tensors[f"{EXPERT}_scale"].dtype == torch.uint8
    assert tensors[f"{LAYER}.1.self_attn.q_conv1d.weight"].dtype == torch.float32
    assert f"{LAYER}.3.self_attn.kv_a_proj_with_mqa.weight" in tensors


def test_packed_experts_are_dequantised_into_a_plain_model(folder: Path, nano: Builder, prompt: torch.Tensor) -> None:
    """Low nibble first, a power of two for each 32 columns; the same logits as the packed model."""
    plain, packed = scrambled(nano()), nano(expert_weights="mxfp4")
    load(plain, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    expected = dequantise(tensors[f"{EXPERT}_packed"], tensors[f"{EXPERT}_scale"], torch.float32)
    assert torch.equal(plain.weights.parts[EXPERT].view, expected)
    assert torch.equal(logits(plain, prompt), logits(packed, prompt))


def test_a_rank_takes_its_share_and_its_experts(folder: Path, nano: Builder) -> None:
    """Two ranks with absent peers: half of the heads, the first experts; the rest of the checkpoint is no surprise."""
    whole = nano()
    load(whole, folder)
    rank = scrambled(nano(tp_size=2, collectives="absent", held_experts=2, routing="seeded"))
    load(rank, folder)
    for name in (f"{LAYER}.1.self_attn.q_proj.weight", f"{LAYER}.1.self_attn.A_log", "language_model.lm_head.weight"):
        full = whole.weights.parts[name].view
        assert torch.equal(rank.weights.parts[name].view, full[: len(full) // 2])
    o_proj = f"{LAYER}.1.self_attn.o_proj.weight"
    assert torch.equal(rank.weights.parts[o_proj].view, whole.weights.parts[o_proj].view[:, :32])


def test_vision_tensors_and_the_pair_of_layer_0_are_skipped(folder: Path, nano: Builder) -> None:
    """A multimodal checkpoint holds more than a text decoder; layer 0 never mixes before its attention."""
    more = {
        "vision_tower.patch_embed.weight": torch.zeros(2),
        f"{LAYER}.0.self_attention_res_norm.weight": torch.ones(64),
    }
    load(nano(expert_weights="mxfp4"), edited(folder, lambda tensors: tensors.update(more)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{LAYER}.4.self_attn.f_b_proj.weight"), r"4\.self_attn\.f_b_proj\.weight is missing"),
        (lambda t: t.pop(f"{EXPERT}_scale"), r"experts\.5\.w1\.weight_scale is missing"),
        (lambda t: t.update({f"{LAYER}.5.input_layernorm.weight": torch.ones(64)}), r"5\.input_layernorm.* not known"),
        (lambda t: t.update({EXPERT.replace(".5.", ".8."): torch.ones(1)}), r"experts\.8\.w1\.weight is not known"),
        (lambda t: t.update({"language_model.lm_head.weight": torch.ones(511, 64)}), r"\[511, 64\], not \[512, 64\]"),
        (lambda t: t.update({f"{LAYER}.1.self_attn.A_log": torch.zeros(96)}), r"A_log has shape \[96\]"),
        (lambda t: t.update({f"{LAYER}.1.self_attn.A_log": torch.ones(128)}), r"A_log is not zero past its 4 heads"),
        (lambda t: t.update({f"{EXPERT}_packed": torch.ones(32, 16)}), r"weight_packed holds F32, not bytes"),
        (lambda t: t.update({"language_model.model.norm.weight": torch.ones(64).byte()}), r"norm\.weight holds U8"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_before_anything_is_copied(
    folder: Path, nano: Builder, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    """Missing, unknown, misshaped, mistyped: one error with the tensor's name; the model keeps its weights."""
    model = nano(expert_weights="mxfp4")
    before = {name: part.view.clone() for name, part in model.weights.parts.items()}
    with pytest.raises(CheckpointError, match=message):
        load(model, edited(folder, change))
    assert all(torch.equal(part.view, before[name]) for name, part in model.weights.parts.items())


def test_plain_experts_do_not_fit_a_packed_model(tmp_path: Path, nano: Builder) -> None:
    """Quantising is not loading; the error says which option reads them."""
    save(nano(), tmp_path)
    with pytest.raises(CheckpointError, match="build with expert_weights=bf16"):
        load(nano(expert_weights="mxfp4"), tmp_path)


def test_folders_that_are_no_checkpoint_are_refused(tmp_path: Path, nano: Builder, folder: Path) -> None:
    """Nothing there, a torn file, an index that points elsewhere."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match="no safetensors here"):
        load(nano(), empty)
    (empty / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="cannot read"):
        load(nano(), empty)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match="no file of this folder"):
        load(nano(), folder)


def test_a_rank_is_not_saved_as_a_checkpoint(tmp_path: Path, nano: Builder) -> None:
    """Half a model under whole names would look complete."""
    with pytest.raises(CheckpointError, match="one rank's share"):
        save(nano(tp_size=2, collectives="absent", held_experts=2, routing="seeded"), tmp_path)
