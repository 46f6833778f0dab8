"""Compile the kernels of a config before they are needed, one process a batch side by side, into Triton's cache.

    python -m k3model.kernels.warm rank-93 --batches 1 2 4 8 --set kernels=triton

In: a preset with options. Out: a filled cache and one line a batch. What is compiled is a model of sixteen layers with
a snapshot every other one: every shape and number of candidates that the deep model has. Out of scope: timing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace

from k3model.config import K3Config, preset

LAYERS, MLA_LAYERS, BLOCK = 16, (3, 7, 11, 15), 2


def shallow(config: K3Config) -> K3Config:
    """The same widths, few layers; nothing to do where the model is no deeper."""
    if config.layers <= LAYERS:
        return config
    return replace(config, layers=LAYERS, mla_layers=MLA_LAYERS, attn_res_block=BLOCK)


def warm(config: K3Config, batch: int, rows: int, context: int) -> float:
    """One eager step of `batch` rows, in caches of `rows`: seconds it took, compiling included."""
    from k3model.capture import Decode
    from k3model.decode import build
    from k3model.policy import policy

    model = build(shallow(config), device="cuda", max_batch=rows, context=context)
    started = time.monotonic()
    session = Decode(model, policy("serial"), batch)
    session.clear()
    session.step()
    session.position()  # waits for the device
    return time.monotonic() - started


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 if every batch was compiled."""
    parser = argparse.ArgumentParser(prog="python -m k3model.kernels.warm", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("preset")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=int, help="rows of the caches (default: the largest batch)")
    parser.add_argument("--context", type=int, default=8448)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args(argv)
    rows = args.rows or max(args.batches)
    if len(args.batches) == 1:
        from k3model.__main__ import options

        config = preset(args.preset, **options(args.set))
        print(f"batch {args.batches[0]}: {warm(config, args.batches[0], rows, args.context):.1f} s", flush=True)
        return 0
    words = [sys.executable, "-m", "k3model.kernels.warm", args.preset, "--rows", str(rows)]
    words += ["--context", str(args.context), *(word for pair in args.set for word in ("--set", pair))]
    running = [subprocess.Popen([*words, "--batches", str(batch)]) for batch in args.batches]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    raise SystemExit(main())
