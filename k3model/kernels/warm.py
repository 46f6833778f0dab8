"""Compile the kernels of a config before they are needed, processes side by side, into Triton's cache.

    python -m k3model.kernels.warm rank-93 --batches 1 2 4 8 --set kernels=triton

In: a preset with options. Out: a filled cache and one line a process. What is compiled is a model of sixteen layers
with a snapshot every other one: every shape and number of candidates that the deep model has. Kernels of a step are
compiled one after the other, so beside each batch's step its attention and feed-forward parts run in processes of their
own, and the step finds most of its kernels in the cache. They share the GPU's memory: parts have four layers.
Out of scope: timing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from k3model.config import K3Config, preset

if TYPE_CHECKING:
    from k3model.capture import Decode

LAYERS, BLOCK, PART_LAYERS = 16, 2, 4
#: What one process compiles: a whole step, or the part of one family.
STEP, FAMILIES = "step", ("KDA", "MLA", "MoE")


def shallow(config: K3Config, part: str = STEP) -> K3Config:
    """The same widths, few layers, every fourth MLA; nothing to do where the model is no deeper."""
    layers = LAYERS if part == STEP else PART_LAYERS
    if config.layers <= layers:
        return config
    return replace(config, layers=layers, mla_layers=tuple(range(3, layers, 4)), attn_res_block=BLOCK)


def warm(config: K3Config, batch: int, rows: int, context: int, part: str = STEP) -> float:
    """One eager step of `batch` rows, in caches of `rows`, or a part of it: seconds it took, compiling included."""
    from k3model.capture import Decode
    from k3model.decode import build
    from k3model.policy import policy

    model = build(shallow(config, part), device="cuda", max_batch=rows, context=context)
    started = time.monotonic()
    session = Decode(model, policy("serial"), batch)
    session.clear()
    if part == STEP:
        session.step()
    else:
        _one_part(session, part)
    session.position()  # waits for the device
    return time.monotonic() - started


def _one_part(session: Decode, family: str) -> None:
    """The attention or feed-forward of the first layer of that family, on zeros; nothing where there is none."""
    import torch

    model, rows = session.model, session.rows.stepping()
    x = torch.zeros(session.batch, model.config.hidden, device=model.device, dtype=model.dtype)
    attention = next((a for layer in model.layers if (a := layer.self_attn).family == family), None)
    feed_forward = next((m for layer in model.layers if (m := layer.mlp).family == family), None)
    with torch.no_grad():
        if attention is not None:
            attention.step(x, model.caches, rows, session.forks)
        if feed_forward is not None:
            feed_forward.step(x, session.forks)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 if every batch was compiled."""
    parser = argparse.ArgumentParser(prog="python -m k3model.kernels.warm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=int, help="rows of the caches (default: the largest batch)")
    parser.add_argument("--context", type=int, default=8448)
    parser.add_argument("--part", choices=(STEP, *FAMILIES), help="of one batch, in this process")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args(argv)
    rows = args.rows or max(args.batches)
    if args.part:
        from k3model.__main__ import options

        config = preset(args.preset, **options(args.set))
        for batch in args.batches:
            print(f"batch {batch}, {args.part}: {warm(config, batch, rows, args.context, args.part):.1f} s", flush=True)
        return 0
    words = [sys.executable, "-m", "k3model.kernels.warm", args.preset, "--rows", str(rows)]
    words += ["--context", str(args.context), *(word for pair in args.set for word in ("--set", pair))]
    parts = [(str(batch), part) for batch in args.batches for part in (*FAMILIES, STEP)]
    running = [subprocess.Popen([*words, "--batches", batch, "--part", part]) for batch, part in parts]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    raise SystemExit(main())
