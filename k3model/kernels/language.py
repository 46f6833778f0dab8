"""The door to Triton: the language where it is installed, a stand-in that only says so where it is not.

A kernel's module imports `triton`, `tl` and `jit` from here and keeps its torch twin beside the kernel, so that a CPU
without Triton imports it and runs the twin. Out of scope: which of the two a model runs on (`kernels/__init__.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What PDL is in a kernel where it is on: the next one is called near this one's end, or at its start.
AT_END, AT_START = 1, 2

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    jit: Callable[..., Any] = triton.jit
    found = True
    LATE, EARLY = tl.constexpr(AT_END), tl.constexpr(AT_START)
except ImportError:  # pragma: no cover - CI has no Triton
    triton = tl = gdc_launch_dependents = gdc_wait = None
    found = False
    LATE = EARLY = None

    def jit(kernel: Callable[..., Any]) -> Any:
        """Keeps the kernel's name; it is never launched, because `kernels.ops` refuses first."""
        return kernel


def interpreted() -> bool:
    """Whether kernels run on the CPU through Triton's interpreter (TRITON_INTERPRET=1, set before the import)."""
    return found and bool(triton.knobs.runtime.interpret)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n: a block's size."""
    return 1 << (n - 1).bit_length()


def launch(pdl: bool, rows: int = 1) -> dict[str, Any]:
    """Arguments of every launch. With programmatic dependent launch a kernel may start before the one ahead of it ends:

    it calls `gdc_wait` (under `if PDL:`) before it reads or writes anything that another kernel writes or reads, and
    `gdc_launch_dependents` when it likes. Loads of weights may stand before the wait. A kernel that fills the GPU makes
    its call by `rows`, those of the batch: with one, its many small programs come and go, and the next kernel's find
    room anywhere. With more, about one large program a multiprocessor stays to the end: the next kernel's, called
    early, would crowd where there is room, and finish late.
    """
    if not pdl:
        return {"PDL": 0}
    return {"PDL": AT_START if rows == 1 else AT_END, "launch_pdl": True}
