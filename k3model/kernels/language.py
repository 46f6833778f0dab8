"""The door to Triton: the language where it is installed, a stand-in that only says so where it is not.

A kernel's module imports `triton`, `tl` and `jit` from here and keeps its torch twin beside the kernel, so that a CPU
without Triton imports it and runs the twin. Out of scope: which of the two a model runs on (`kernels/__init__.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    jit: Callable[..., Any] = triton.jit
    found = True
except ImportError:  # pragma: no cover - CI has no Triton
    triton = tl = gdc_launch_dependents = gdc_wait = None
    found = False

    def jit(kernel: Callable[..., Any]) -> Any:
        """Keeps the kernel's name; it is never launched, because `kernels.ops` refuses first."""
        return kernel


def interpreted() -> bool:
    """Whether kernels run on the CPU through Triton's interpreter (TRITON_INTERPRET=1, set before the import)."""
    return found and bool(triton.knobs.runtime.interpret)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n: a block's size."""
    return 1 << (n - 1).bit_length()


def launch(pdl: bool) -> dict[str, Any]:
    """Arguments of every launch. With programmatic dependent launch a kernel may start before the one ahead of it ends:

    it calls `gdc_wait` (under `if PDL:`) before it reads or writes anything that another kernel writes or reads, and
    `gdc_launch_dependents` as early as it likes. Loads of weights may stand before the wait.
    """
    return {"PDL": True, "launch_pdl": True} if pdl else {"PDL": False}
