"""Row GEMV kernels against their twins, and the twins against plain arithmetic in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.kernels import choices, gemv
from k3model.kernels.choices import Choice
from k3model.streams import side_leg

Draw = Callable[..., torch.Tensor]
#: Rounding to bfloat16 after sums of another order: one unit in the last place now and then.
CLOSE = {"rtol": 1.6e-2, "atol": 2e-3}
#: ||difference|| / ||expected|| after two roundings to bfloat16; the interpreter cuts off instead.
ROUNDED = 6e-3 if torch.cuda.is_available() else 1.2e-2

#: Rows x columns: even and uneven, columns that are no power of two, and ones that end inside a piece.
#: Small, because the interpreter takes a tenth of a second a program; `benchmarks/kernels.py` checks the real shapes.
SHAPES = [(6, 256), (5, 384), (18, 264), (40, 320)]
PATHS = {
    "rule": None,
    "fma": Choice("fma", 2, 128, 2, 4),
    "mma": Choice("mma", 8, 64, 2, 2),
    "mma, few rows": Choice("mma", 4, 64, 8, 4),
    "mma, many rows": Choice("mma", 16, 64, 2, 2),
}
#: Rows of a program on the tensor cores: one block of sixteen, or two.
MORE_ROWS = [Choice("mma", 16, 64, 2, 2), Choice("mma", 32, 64, 1, 1)]


def drawn(draw: Draw, rows: int, columns: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x whose rows lie apart, and W of products near one."""
    return draw(batch, columns + 8)[:, :columns], draw(rows, columns, spread=columns**-0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_linear_equals_its_twin(draw: Draw, rows: int, columns: int, batch: int, path: str) -> None:
    """Rounded, and in float32 where only the order of the sum can differ."""
    x, weight = drawn(draw, rows, columns, batch)
    torch.testing.assert_close(gemv.linear(x, weight, choice=PATHS[path]), gemv.linear_twin(x, weight), **CLOSE)
    for choice in (PATHS[path], *MORE_ROWS):
        wide = gemv.linear_wide(x, weight, choice=choice)
        torch.testing.assert_close(wide, (x.double() @ weight.double().T).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("rows", "columns", "batch"), [(6, 256, 1), (3, 264, 2), (20, 192, 8)])
def test_fused_products_equal_their_twins(draw: Draw, rows: int, columns: int, batch: int, path: str) -> None:
    """RMSNorm ahead of the product, SiTU behind it."""
    x, weight = drawn(draw, 2 * rows, columns, batch)
    norm = 1 + draw(columns, spread=0.1)
    out = gemv.norm_linear(x, norm, 1e-5, weight, choice=PATHS[path])
    expected = gemv.norm_linear_twin(x.double(), norm.double(), 1e-5, weight.double())
    assert (out - expected).norm() < ROUNDED * expected.norm()
    out = gemv.norm_linear(x, norm, 1e-5, weight, choice=MORE_ROWS[1])
    assert (out - expected).norm() < ROUNDED * expected.norm()
    out = gemv.situ_linear(3 * x, weight, 4.0, 25.0, choice=PATHS[path])
    expected = gemv.situ_linear_twin(3 * x.double(), weight.double(), 4.0, 25.0)
    assert (out - expected).norm() < ROUNDED * expected.norm()


@pytest.mark.gpu
def test_a_row_has_the_same_bits_alone_in_a_fused_weight(draw: Draw) -> None:
    """With equal blocks a row's sum does not depend on which rows stand beside it, so weights may be fused or split."""
    x, weight = drawn(draw, 16, 384, 2)
    blocks = Choice("fma", 4, 128, 3, 4)
    whole = gemv.linear(x, weight, choice=blocks)
    assert torch.equal(whole[:, 8:12], gemv.linear(x, weight[8:12], choice=blocks))


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["fma", "mma"])
def test_a_side_leg_kept_to_few_programs_gives_the_same_bits(draw: Draw, path: str) -> None:
    """A program then takes several blocks one after the other; elsewhere than in a side leg nothing changes."""
    x, weight = drawn(draw, 36, 256, 2)
    few = side_leg(lambda: gemv.linear(x, weight, choice=PATHS[path], side_programs=2))
    assert torch.equal(few(), gemv.linear(x, weight, choice=PATHS[path], side_programs=2))


@pytest.mark.gpu
def test_many_rows_go_to_the_library(draw: Draw) -> None:
    """Past eight rows the call is the twin itself, to the bit."""
    x, weight = drawn(draw, 16, 128, 9)
    assert torch.equal(gemv.linear(x, weight), gemv.linear_twin(x, weight))


def test_the_rule_fills_the_card_and_bounds_the_registers() -> None:
    """Real shapes: no more bytes ahead than fit, and four programs a multiprocessor wherever the rows allow it."""
    for rows, columns in [(3072, 7168), (576, 7168), (896, 7168), (7168, 768), (7168, 3584), (1152, 1536)]:
        blocks = choices.fma_rule(rows, columns, 1)
        assert blocks.block_n * columns * 2 <= choices.BYTES_AHEAD * blocks.warps
        assert rows // blocks.block_n >= 4 * choices.PROCESSORS or blocks.block_n == 1
        assert columns % blocks.block_k == 0


def test_measured_choices_are_data_and_go_before_the_rule() -> None:
    """Every entry names a shape it can run: whole pieces of columns for the tensor cores."""
    for name, choice in choices.measured().items():
        op, shape, _, batch = name.rsplit(" ", 3)
        rows, columns = map(int, shape.split("x"))
        assert choices.choose(op, rows, columns, int(batch)) == choice
        assert choice.path == "fma" or (columns % choice.block_k == 0 and choice.block_n in (2, 4, 8, 16, 32))


def test_twins_are_plain_arithmetic() -> None:
    """Norm, product and activation as the formulas say, in float64."""
    draw = torch.Generator().manual_seed(3)
    x, weight = torch.randn(2, 24, generator=draw).double(), torch.randn(12, 24, generator=draw).double()
    norm = torch.randn(24, generator=draw).double()
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    torch.testing.assert_close(gemv.norm_linear_twin(x, norm, 1e-5, weight), normed @ weight.T)
    a, u = (x @ weight.T).chunk(2, dim=-1)
    situ = 4 * torch.tanh(a / 4) * torch.sigmoid(a) * 25 * torch.tanh(u / 25)
    torch.testing.assert_close(gemv.situ_linear_twin(x, weight, 4.0, 25.0), situ)
