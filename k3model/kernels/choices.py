"""Which blocks a weight-reading kernel runs with: op, shape and batch in, one `Choice` out, from data or from a rule.

`choices.json` holds what `benchmarks/kernels.py` measured to be fastest. Nothing is tuned at run time and nothing but
shape and batch is looked at, so that both arms of a comparison run the same kernels. Out of scope: the kernels.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).with_name("choices.json")
#: Multiprocessors to keep busy, and how many programs on each are enough to keep memory busy.
PROCESSORS, PROGRAMS_EACH = 132, 4
#: Rows of x from which a sum on the plain cores costs more than reading the weight, by counting instructions.
TENSOR_BATCH = 4
#: Warps among which the tensor-core path deals columns out: with fewer, what is asked for does not fit in registers.
MMA_WARPS = 8
#: Weights that one warp asks for at once: 56 registers a thread.
BYTES_AHEAD = 7 * 1024


@dataclass(frozen=True)
class Choice:
    """Blocks of one launch. `path`: "fma" sums rows on the plain cores, "mma" multiplies on the tensor cores."""

    path: Literal["fma", "mma"]
    block_n: int  # rows of the weight in one program
    block_k: int  # columns taken at a time; of one warp for "mma"
    ahead: int  # how many such pieces are asked for before the first is used
    warps: int


def choose(op: str, rows: int, columns: int, batch: int) -> Choice:
    """Measured if there is a measurement, else the rule."""
    found = measured().get(key(op, rows, columns, batch))
    if found is not None:
        return found
    if op.startswith("expert"):
        return expert_rule("mma")
    return rule(rows, columns, batch, paired=op == "situ")


def key(op: str, rows: int, columns: int, batch: int) -> str:
    """The name of a choice in the data file."""
    return f"{op} {rows}x{columns} batch {batch}"


def rule(rows: int, columns: int, batch: int, *, paired: bool = False) -> Choice:
    """Blocks for a shape nobody measured."""
    if batch >= TENSOR_BATCH and columns % 64 == 0 and columns >= 256:
        return mma_rule(rows, columns, paired=paired)
    return fma_rule(rows, columns, batch, paired=paired)


def mma_rule(rows: int, columns: int, *, paired: bool = False) -> Choice:
    """Sixteen rows of the weight a program where that fills the card, else eight."""
    wide = rows * (2 if paired else 1) >= 16 * PROCESSORS
    ahead = min(4 if wide else 8, -(-columns // (64 * MMA_WARPS)))
    return Choice("mma", (16 if wide else 8) // (2 if paired else 1), 64, ahead, MMA_WARPS)


def fma_rule(rows: int, columns: int, batch: int, *, paired: bool = False) -> Choice:
    """Enough programs to fill the card, then as many bytes in flight as fit."""
    block_k = max(16, min(1024, columns & -columns))
    if block_k < 128:
        block_k = min(1024, 1 << (columns - 1).bit_length())  # the last piece is masked
    warps = max(1, block_k // 256)  # eight columns a thread, so that x needs no other layout than the weights
    most, block_n = BYTES_AHEAD * warps // (columns * (4 if paired else 2)), 16
    while block_n > 1 and (rows // block_n < PROCESSORS * PROGRAMS_EACH or block_n > most):
        block_n //= 2
    steps = -(-columns // block_k)
    return Choice("fma", block_n, block_k, steps if batch <= 2 else min(steps, 3), warps)


def expert_rule(path: Literal["fma", "mma"], warps: int = 4, ahead: int = 3, rows: int = 16) -> Choice:
    """Blocks for MXFP4 experts of any shape. On the tensor cores only the columns taken at a time are not free."""
    return Choice("mma", rows, 128, ahead, warps) if path == "mma" else Choice("fma", 4, 512, 0, 4)


@cache
def measured() -> dict[str, Choice]:
    """What the data file holds."""
    found: dict[str, Any] = json.loads(DATA.read_text())["choices"]
    return {name: Choice(**choice) for name, choice in found.items()}


def write(choices: dict[str, Choice], provenance: dict[str, Any], path: Path = DATA) -> None:
    """Replace the data file. `provenance` says on what card and with which versions it was measured."""
    body = {"provenance": provenance, "choices": {name: asdict(choice) for name, choice in sorted(choices.items())}}
    lines = json.dumps(body, indent=1)
    path.write_text(lines + "\n")
