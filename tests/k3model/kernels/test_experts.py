"""Routing and expert kernels against their twins, and the twins against the model's own loop."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from k3model.config import preset
from k3model.decode import build
from k3model.kernels import experts_mma, moe
from k3model.kernels.choices import expert_rule
from k3model.kernels.packed import Hits, Packed, known_hits
from k3model.moe import MoE
from k3model.mxfp4 import byte_table, dequantise, interleave
from k3model.pointwise import situ
from k3model.policy import POLICIES
from k3model.streams import Forks
from k3model.weights import fill

Draw = Callable[..., torch.Tensor]
HELD = 3
#: ||difference|| / ||expected||: the interpreter cuts off where a GPU rounds to bfloat16, five times on the way.
LIMIT = 6e-3 if torch.cuda.is_available() else 2.5e-2
#: Whole chunks for the tensor cores; the interpreter has none and takes a tenth of a second a program.
LATENT, INNER = (768, 512) if torch.cuda.is_available() else (64, 32)


def packed_experts(device: torch.device, latent: int = LATENT, inner: int = INNER) -> Packed:
    """Uniform codes, so that every value and both signs occur, and scales that keep outputs near one."""
    draw = torch.Generator().manual_seed(5)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8).to(device)

    def scales(*shape: int) -> torch.Tensor:
        return torch.randint(121, 125, shape, generator=draw, dtype=torch.uint8).to(device)

    return Packed(
        codes(HELD, 2, inner, latent // 2), scales(HELD, 2, inner, latent // 32),
        codes(HELD, latent, inner // 2), scales(HELD, latent, inner // 32),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (8, 2), (20, 5)])
def test_pick_equals_its_twin(draw: Draw, experts: int, top_k: int) -> None:
    """The same experts in the same order, weights to the last bits; scores differ, so ties play no part."""
    logits, bias = draw(3, experts, dtype=torch.float32), draw(experts, dtype=torch.float32, spread=0.05)
    picks, mix = moe.pick(logits, bias, top_k, 2.5)
    expected_picks, expected_mix = moe.pick_twin(logits, bias, top_k, 2.5)
    assert torch.equal(picks, expected_picks)
    torch.testing.assert_close(mix, expected_mix, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize(("experts", "top_k"), [(896, 16), (24, 2), (8, 2)])
@pytest.mark.parametrize("values", [1, 3], ids=["all equal", "three values"])
def test_of_equal_scores_the_lower_number_is_picked_first(
    device: torch.device, values: int, experts: int, top_k: int, batch: int
) -> None:
    """As a stable sort does, below zero too; equal scores in one group, in several, and more of them than picks."""
    generator = torch.Generator().manual_seed(values)
    logits = torch.randint(values, (batch, experts), generator=generator).float().to(device)
    bias = (torch.randint(values, (experts,), generator=generator) * 0.05 - 0.75).to(device)
    picks, mix = moe.pick(logits, bias, top_k, 2.5)
    expected = (logits.sigmoid() + bias).sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    assert torch.equal(picks, expected)
    scores = logits.sigmoid().gather(1, expected)
    torch.testing.assert_close(mix, 2.5 * scores / scores.sum(-1, keepdim=True))


@pytest.mark.gpu
@pytest.mark.parametrize("stride", [1, 4, 16, 64])
def test_pick_finds_the_best_wherever_they_lie(draw: Draw, stride: int) -> None:
    """All picks in one group, or each in its own, worst first in memory."""
    logits, bias = draw(2, 896, dtype=torch.float32) * 0.1 - 3, torch.zeros(896, device=draw(1).device)
    logits[:, : 14 * stride : stride] = torch.arange(14.0, device=logits.device) / 8
    picks, _ = moe.pick(logits, bias, 16, 1.0)
    assert torch.equal(picks, moe.pick_twin(logits, bias, 16, 1.0)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("table", [[[1]], [[2], [0], [2]], [[0, 2], [-1, 1]]], ids=["one", "repeated", "two slots"])
def test_experts_equal_their_twin(draw: Draw, device: torch.device, table: list[list[int]]) -> None:
    """One row; rows that share an expert; slots that hit nothing here."""
    packed, hits = packed_experts(device), known_hits(table, device)
    z, mix = draw(len(table), LATENT), draw(*hits.table.shape, dtype=torch.float32).abs()
    expected = moe.experts_twin(z, mix, hits, packed, 4.0, 25.0)
    # Decided on the device, or known before the step: the interpreter has no tensor cores.
    given = [(Hits(hits.table), packed), *([(hits, packed.interleave())] if z.is_cuda else [])]
    for known, laid_out in given:
        out = moe.experts(z, mix, known, laid_out, 4.0, 25.0)
        assert (out - expected).norm() < LIMIT * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize(("warps", "ahead"), [(2, 3), (4, 1), (4, 2), (4, 4), (8, 2)])
@pytest.mark.parametrize("chunks", [(16, 8), (15, 13), (1, 2)], ids=["even", "uneven", "fewer than warps"])
@pytest.mark.parametrize(
    "table",
    [[[1]], [[0]] * 8, [[2], [1], [1], [0], [2], [2], [1], [0]], [[0, 2], [-1, 1], [2, 1], [-1, -1]]],
    ids=["one row", "all alike", "repeated", "two slots"],
)
def test_tensor_cores_take_chunks_in_any_number(
    draw: Draw, device: torch.device, table: list[list[int]], chunks: tuple[int, int], warps: int, ahead: int, rows: int
) -> None:
    """Of 128 columns over the warps, all eight rows also with dependent launch; a row that hits nothing is zero."""
    if device.type != "cuda":
        pytest.skip("needs tensor cores")
    latent, inner = (128 * n for n in chunks)
    packed, hits = packed_experts(device, latent, inner), known_hits(table, device)
    z, mix = draw(len(table), latent), draw(*hits.table.shape, dtype=torch.float32).abs()
    expected = moe.experts_twin(z, mix, hits, packed, 4.0, 25.0)
    blocks, laid_out = (expert_rule("mma", warps, ahead, rows),) * 2, packed.interleave()
    for pdl in (False, True) if len(table) == 8 else (False,):
        out = experts_mma.experts(z, mix, hits, laid_out, 4.0, 25.0, blocks, pdl=pdl)
        assert (out - expected).norm() < LIMIT * expected.norm()
        assert not out[(hits.table < 0).all(1)].any()


@pytest.mark.gpu
def test_a_row_that_is_not_finite_spoils_no_other(draw: Draw, device: torch.device) -> None:
    """What stands in the place of rows that miss an expert is never added to them."""
    if device.type != "cuda":
        pytest.skip("needs tensor cores")
    packed, hits = packed_experts(device).interleave(), known_hits([[0], [2], [1], [2]], device)
    z, mix = draw(4, LATENT), torch.ones(4, 1, device=device)
    expected = moe.experts(z, mix, hits, packed, 4.0, 25.0)
    z[1] = float("nan")
    out = moe.experts(z, mix, hits, packed, 4.0, 25.0)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2, 3]], expected[[0, 2, 3]])


@pytest.mark.gpu
def test_a_model_for_tensor_cores_keeps_its_weights(draw: Draw, device: torch.device) -> None:
    """Its banks are interleaved when it is built and whenever weights are filled, and restore the same matrices."""
    if device.type != "cuda":
        pytest.skip("needs tensor cores")
    layers = []
    for kernels in ("torch", "triton"):
        config = preset("small", kernels=kernels, routing="seeded", held_experts=4, expert_weights="mxfp4")
        model = build(config, device="cuda", max_batch=4, context=128)
        with torch.no_grad():
            fill(model.weights.parts, 7, whole=False)
            model.prepare()
        layer = model.layers[1].mlp
        assert isinstance(layer, MoE)
        layers.append(layer)
    plain, laid_out = (layer.experts for layer in layers)
    assert (plain.interleaved, laid_out.interleaved) == (False, True)
    assert not torch.equal(plain.w2_packed, laid_out.w2_packed)
    for expert in range(4):
        for expected, found in zip(plain.matrices(expert), laid_out.matrices(expert), strict=True):
            assert torch.equal(expected, found)
    x = draw(4, 512)
    expected, found = (layer.step(x, Forks(POLICIES["serial"], None))[0] for layer in layers)
    assert (found - expected).norm() < 2e-2 * expected.norm()


def pairs_of(word: int) -> list[int]:
    """What the assembly of `RESTORE` makes of a word, before the factor: four registers."""
    operations: dict[str, Callable[..., int]] = {
        "and.b32": lambda a, b: a & b,
        "mul.lo.u32": lambda a, b: a * b & 0xFFFFFFFF,
        "shf.l.wrap.b32": lambda low, high, n: (high << n | low >> 32 - n) & 0xFFFFFFFF,
        "mul.bf16x2": lambda a, _: a,
    }
    values = {"$4": word, "$12": 0}
    text = getattr(experts_mma.RESTORE, "value", experts_mma.RESTORE)
    for name, to, *operands in re.findall(r"([\w.]+) (\$?\w+), (\$?\w+), (\$?\w+)(?:, (\$?\w+))?;", text):
        values[to] = operations[name](*(values[x] if x in values else int(x, 0) for x in operands if x))
    return [values[f"${i}"] for i in range(4)]


def test_the_assembly_restores_interleaved_codes() -> None:
    """Every code at every place of a word, whatever lies beside it: bits are those of 2^-126 times its value."""
    draw = torch.Generator().manual_seed(8)
    values = byte_table(torch.device("cpu"), torch.float64)[:16, 0]
    codes = torch.cat(
        [(torch.arange(16)[:, None] + torch.arange(128)) % 16, torch.randint(0, 16, (64, 128), generator=draw)]
    )
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    words = interleave(packed, torch.zeros(80, 4, dtype=torch.uint8))[0].view(torch.int32)
    registers = torch.tensor([[pairs_of(word & 0xFFFFFFFF) for word in row] for row in words.tolist()])
    bits = torch.stack((registers & 0xFFFF, registers >> 16), -1).to(torch.int16)
    tiles = (bits.view(torch.bfloat16).double() * 2.0**126).view(10, 8, 4, 4, 8)  # [.., row, quarter, group, column]
    assert torch.equal(tiles.transpose(2, 3).reshape(80, 128), values[codes])


def test_the_twin_sums_weighted_experts() -> None:
    """In float64, row by row: sum over held slots of mix W2 situ(W13 z)."""
    packed, hits = packed_experts(torch.device("cpu")), known_hits([[0, 2], [-1, 1]], torch.device("cpu"))
    draw = torch.Generator().manual_seed(6)
    z, mix = torch.randn(2, LATENT, generator=draw).double(), torch.rand(2, 2, generator=draw).double()
    out = moe.experts_twin(z, mix, hits, packed, 4.0, 25.0)
    for row in range(2):
        expected = torch.zeros(LATENT, dtype=torch.float64)
        for weight, expert in zip(mix[row], hits.table[row].tolist(), strict=True):
            if expert >= 0:
                w13 = dequantise(packed.w13[expert], packed.w13_scale[expert], torch.float64).flatten(0, 1)
                w2 = dequantise(packed.w2[expert], packed.w2_scale[expert], torch.float64)
                expected += weight * (w2 @ situ(w13 @ z[row], 4.0, 25.0))
        torch.testing.assert_close(out[row], expected)


def test_the_twin_picks_by_biased_scores_and_weighs_without_the_bias() -> None:
    """A bias pulls an expert to the front; weights are shares of the picked scores times the scale."""
    logits, bias = torch.tensor([[0.0, 1.0, 2.0, -1.0]]), torch.tensor([0.0, 0.0, 0.0, 5.0])
    picks, mix = moe.pick_twin(logits, bias, 2, 3.0)
    assert picks.tolist() == [[3, 2]]
    scores = logits.sigmoid()[0, [3, 2]]
    torch.testing.assert_close(mix[0], 3 * scores / scores.sum())


def test_known_hits_list_every_expert_once() -> None:
    """Ascending, with the slot each row hits it with; a slot that hits nothing here is in no list."""
    hits = known_hits([[4, 1], [-1, 4]], torch.device("cpu"))
    assert hits.experts is not None
    assert hits.slots is not None
    assert hits.experts.tolist() == [1, 4]
    assert hits.slots.tolist() == [[1, 0], [-1, 1]]
    assert hits.reads is not None
    assert hits.reads.tolist() == [[0, 0], [0, 1], *[[0, 0]] * 6]
