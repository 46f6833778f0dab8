"""Every launch of a step, compiled for a GPU that is not there: how many a layer takes, registers, spills, wide loads.

    python benchmarks/launches.py rank-93 --batch 1          needs Triton and torch, no GPU; a minute or two

In: a preset at its true widths (few layers of it). Out: launches by layer kind, and a line for each kernel variant.
Nothing runs on a device: outputs are whatever memory holds, so no number of the model means anything here.
Out of scope: time (`decode.py`, `kernels.py`).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from k3model import kernels
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import build
from k3model.kernels import warm
from k3model.policy import POLICIES

TARGET = GPUTarget("cuda", 90, 32)
#: What torch calls that starts nothing on a device.
VIEWS = (
    "view", "new_empty", "slice", "split", "expand", "transpose", "unsqueeze", "squeeze", "select", "as_strided",
    "detach", "empty", "t.", "permute", "alias", "unbind", "item", "_local_scalar", "chunk", "narrow", "unflatten",
    "lift",
)  # fmt: skip
PATTERNS = {
    "ld.v4": r"ld\.global[^;]*v4\.", "ld.v2": r"ld\.global[^;]*v2\.", "ld": r"ld\.global[^;v]*;",
    "cp.async.16": r"cp\.async\.c[ga][^;]*0x10", "mma": r"mma\.sync|wgmma\.mma", "bar": r"bar\.sync",
}  # fmt: skip


class NoDevice:
    """What Triton asks its driver while it compiles."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Counted(TorchDispatchMode):
    """Counts what torch starts, and stands where launches are counted by range."""

    def __init__(self) -> None:
        super().__init__()
        self.where = "other"
        self.launches: dict[str, Counter[str]] = {}
        self.variants: dict[str, Any] = {}

    def add(self, name: str) -> None:
        """One launch in the range at hand."""
        self.launches.setdefault(self.where, Counter())[name] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if not name.startswith(VIEWS):
            self.add(f"torch {name}")
        return func(*args, **(kwargs or {}))

    @contextmanager
    def ranges(self, name: str) -> Iterator[None]:
        """A layer's range; forks and heads are inside one."""
        before = self.where
        if name.startswith("L"):
            self.where = name
        yield
        self.where = before


@contextmanager
def compiling(counted: Counted) -> Iterator[None]:
    """Launches compile and do nothing else."""
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        name = self.fn.__name__
        counted.add(name)
        counted.variants.setdefault(f"{name} {compiled.hash[:8]}", compiled)
        return compiled

    JITFunction.run = compile_only
    triton.runtime.driver.set_active(NoDevice())
    try:
        yield
    finally:
        JITFunction.run = run


def resources(compiled: Any) -> dict[str, Any]:
    """Registers and spills as the assembler says, loads as the code has them."""
    ptx = compiled.asm["ptx"]
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        arch = re.search(r"\.target (sm_\w+)", ptx)
        words = [str(assembler), f"-arch={arch.group(1) if arch else 'sm_90a'}", "-v", "-o", "/dev/null", file.name]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stderr
    registers, spills = re.search(r"Used (\d+) registers", said), re.search(r"(\d+) bytes spill stores", said)
    return {
        "registers": int(registers.group(1)) if registers else None,
        "spill_bytes": int(spills.group(1)) if spills else None,
        "shared": compiled.metadata.shared,
        **{name: len(re.findall(pattern, ptx)) for name, pattern in PATTERNS.items()},
    }


def main() -> None:
    """Compile a step and print what it starts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset", nargs="?", default="rank-93")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, help="of the true model; default: all of the sixteen that `warm` takes")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--context", type=int, default=8448)
    args = parser.parse_args()
    from k3model.__main__ import options

    told = {"kernels": "torch", **options(args.set)}
    if args.layers:
        told["layers"] = args.layers
    config = warm.shallow(preset(args.preset, **told))
    with torch.no_grad():
        model = build(config, device="cpu", dtype=torch.bfloat16, max_batch=args.batch, context=args.context)
    ops = kernels._triton(bool(told.get("pdl", False)))
    model.ops = ops
    for layer in model.layers:
        layer.self_attn.ops = layer.mlp.ops = ops
        for part in ("mlp", "shared_experts"):
            if hasattr(layer.mlp, part):
                getattr(layer.mlp, part).ops = ops
    counted = Counted()
    session = Decode(model, POLICIES["serial"], args.batch, ranges=counted.ranges)
    with compiling(counted):
        session.step()  # constants that are made once
        counted.launches.clear()
        with counted:
            session.step()
    _print(counted)


def _print(counted: Counted) -> None:
    middle = {where: count for where, count in counted.launches.items() if not where.startswith(("L0.", "L1."))}
    for family in ("KDA", "MLA", "MoE", "other"):
        of = [count for where, count in middle.items() if where.endswith(f".{family}")]
        if of:
            common = Counter(tuple(sorted(c.items())) for c in of).most_common(1)[0][0]
            names = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in common)
            print(f"{family}: {sum(n for _, n in common)} launches: {names}")
    print(f"step: {sum(sum(c.values()) for c in counted.launches.values())} launches\n")
    for name, compiled in sorted(counted.variants.items()):
        print(f"{name:30s} {resources(compiled)}")


if __name__ == "__main__":
    main()
