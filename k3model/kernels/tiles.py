"""The door to Gluon, Triton's language of explicit layouts, and the layouts of a few rows of x beside rows of a weight.

A warp multiplies 16 or 32 rows of a weight with eight rows of x. Sums over columns may go in any order, so each thread
takes columns that lie together, in the weight as in x: 16-byte loads that are operands of the tensor cores where they
are, with no trip through shared memory. Columns are dealt out to the warps ("parts"), whose sums are added last.
Out of scope: the kernels (`gemv_mma.py`, `experts_mma.py`).
"""

# mypy: disable-error-code="assignment, misc, no-untyped-def"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from k3model.kernels.language import interpreted

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.ampere import mma_v2

    jit: Callable[..., Any] = gluon.jit
    constexpr: Callable[..., Any] = gl.constexpr
    constexpr_function: Callable[..., Any] = gluon.constexpr_function
    found = not interpreted()
except ImportError:  # no Triton, or one from before Gluon
    gl = mma_v2 = None
    found = False

    def jit(kernel: Callable[..., Any]) -> Any:
        """Keeps the name."""
        return kernel

    constexpr = constexpr_function = jit


#: A pause that no program takes, as none has this number. The assembler moves no load across it and cannot drop it, as
#: it does a barrier of a warp that is together anyway.
FENCE = constexpr("{ .reg .pred p; setp.eq.u32 p, $1, 0x7fffffff; @p nanosleep.u32 0; mov.b32 $0, $1; }")


@constexpr_function
def sums(parts):
    """[part, row of the weight, row of x] in float32."""
    return gl.NVMMADistributedLayout([2, 0], [parts, 1, 1], [1, 16, 8])


@constexpr_function
def left(parts, together):
    """The weight [part, rows, columns]: `together` neighbouring columns a thread, four threads a row."""
    return gl.DotOperandLayout(0, sums(parts), together)


@constexpr_function
def right(parts, together):
    """x [part, columns, 8], likewise."""
    return gl.DotOperandLayout(1, sums(parts), together)


@jit
def of_parts(layout: gl.constexpr, PARTS: gl.constexpr):  # type: ignore[name-defined]
    """0 to PARTS - 1 as [PARTS, 1, 1]."""
    return gl.arange(0, PARTS, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]


@jit
def of_middle(layout: gl.constexpr, SIZE: gl.constexpr):  # type: ignore[name-defined]
    """0 to SIZE - 1 as [1, SIZE, 1]."""
    return gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]


@jit
def of_last(layout: gl.constexpr, SIZE: gl.constexpr):  # type: ignore[name-defined]
    """0 to SIZE - 1 as [1, 1, SIZE]."""
    return gl.arange(0, SIZE, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]


@constexpr_function
def _by_cell(parts):
    return gl.BlockedLayout([parts, 1, 1], [1, 4, 8], [1, parts, 1], [2, 1, 0])


@jit
def over_parts(acc, PARTS: gl.constexpr):  # type: ignore[name-defined]
    """[part, rows, 8] summed over parts. Each thread first gets all parts of its cells: a reduction between warps goes
    through shared memory as well, but its accesses meet in few banks.
    """
    return gl.sum(gl.convert_layout(acc, _by_cell(PARTS)), 0)


@jit
def fence():
    """Loads stay ahead of it; else they are put where they are used, and little is in flight."""
    gl.inline_asm_elementwise(FENCE, "=r,r", [gl.program_id(0)], dtype=gl.int32, is_pure=False, pack=1)


@jit
def situ_of_halves(y, beta, linear_beta, dtype: gl.constexpr):  # type: ignore[name-defined]
    """y [2n, 8], gate rows and their up rows -> [n, 8]. Both are rounded first, as products of their own are."""
    halves = gl.reshape(y, [2, y.shape[0] // 2, 8])
    half = gl.arange(0, 2, layout=gl.SliceLayout(1, gl.SliceLayout(2, halves.type.layout)))[:, None, None]
    a = gl.sum(gl.where(half == 0, halves, 0.0), 0).to(dtype).to(gl.float32)
    u = gl.sum(gl.where(half == 1, halves, 0.0), 0).to(dtype).to(gl.float32)
    h = (2.0 * _sigmoid(2.0 * a / beta) - 1.0) * _sigmoid(a) * (2.0 * _sigmoid(2.0 * u / linear_beta) - 1.0)
    return h * (beta * linear_beta)


@jit
def _sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))
