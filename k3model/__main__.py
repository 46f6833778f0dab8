"""`python -m k3model`: build a preset with seeded weights and print greedy tokens, or count its parameters.

In: a preset and options on the command line. Out: one line of tokens a row, or the counts. Out of scope: timing
(`k3bench measure`), serving.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from k3model.config import PRESETS, K3Config, preset
from k3model.errors import K3ModelError
from k3model.policy import POLICIES, policy, tables

EXAMPLES = """examples:
  python -m k3model nano --device cpu --tokens 16
  python -m k3model nano --device cpu --tokens 16 --policy after --batch 4
  python -m k3model nano-res --tokens 8 --set variant=A --set kda_weights=fp8
  torchrun --nproc-per-node 2 -m k3model nano --set tp_size=2
  python -m k3model full --count
  python -m k3model rank-93 --bytes --context 8192
"""


def parser() -> argparse.ArgumentParser:
    """All options, each with its default."""
    out = argparse.ArgumentParser(
        prog="python -m k3model",
        description="The Kimi K3 text decoder with its forks: greedy tokens from seeded weights.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("preset", help=f"one of: {', '.join(PRESETS)}")
    out.add_argument("--device", default="cpu", help="cpu, cuda or cuda:<index> (default: cpu)")
    choices = ", ".join((*POLICIES, *tables()))
    out.add_argument("--policy", default="before", help=f"one of: {choices} (default: before)")
    out.add_argument("--tokens", type=int, default=16, help="tokens to choose per row (default: 16)")
    out.add_argument("--batch", type=int, default=1, help="rows decoded together (default: 1)")
    out.add_argument("--prompt", type=int, default=4, help="length of the seeded random prompt (default: 4)")
    out.add_argument("--context", type=int, help="cache size in tokens (default: what the run needs)")
    out.add_argument("--seed", type=int, default=0, help="seed of weights and prompt (default: 0)")
    out.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="change an option of the preset"
    )
    out.add_argument("--count", action="store_true", help="print parameter counts from a build without memory")
    out.add_argument("--bytes", action="store_true", help="print bytes moved per step at batch 1, 2, 4, 8")
    out.add_argument("--by-op", action="store_true", help="with --bytes: op by op, at --batch")
    return out


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, or 2 with one clear error."""
    arguments = parser().parse_args(argv)
    try:
        config = preset(arguments.preset, **options(arguments.set))
        if arguments.count:
            _print_counts(config)
        elif arguments.bytes:
            context = 8192 if arguments.context is None else arguments.context
            _print_ops(config, arguments.batch, context) if arguments.by_op else _print_bytes(config, context)
        else:
            _print_tokens(config, arguments)
    except K3ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def options(pairs: list[str]) -> dict[str, Any]:
    """`name=value` pairs; numbers and truth values read as such."""
    named = {"true": True, "false": False}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = int(value) if value.lstrip("-").isdigit() else named.get(value.lower(), value)
    return options


def _print_tokens(config: K3Config, arguments: argparse.Namespace) -> None:
    import torch

    from k3model.capture import Decode
    from k3model.collectives import join_ranks, leave_ranks
    from k3model.decode import build, checked_device

    chosen = policy(arguments.policy, arguments.batch)
    checked_device(arguments.device)
    distributed = config.collectives == "distributed" and "WORLD_SIZE" in os.environ
    device = join_ranks(arguments.device) if distributed else arguments.device
    context = arguments.context or arguments.prompt + arguments.tokens
    model = build(config, device=device, seed=arguments.seed, max_batch=arguments.batch, context=context)
    if model.collectives.kind == "absent":
        print(
            f"note: {config.name} is one rank of {config.tp_size}, its peers are absent: sums are partial, "
            "tokens are exercise only",
            file=sys.stderr,
        )
    session = Decode(model, chosen, arguments.batch)
    model.caches.check(arguments.batch, arguments.prompt + arguments.tokens)
    generator = torch.Generator().manual_seed(arguments.seed)
    session.prefill(torch.randint(0, config.vocab, (arguments.batch, arguments.prompt), generator=generator))
    session.capture()
    for _ in range(arguments.tokens - 1):
        session.step()
    first = arguments.prompt - 1
    for row in session.history[:, first : first + arguments.tokens].tolist():
        if not model.collectives.rank:
            print(" ".join(str(token) for token in row))
    leave_ranks()


def _print_counts(config: K3Config) -> None:
    from k3model.footprint import count_parameters

    counted = count_parameters(config)
    print(f"{config.name}: {config.layers} layers, {len(config.kda_layers)} KDA and {len(config.mla_layers)} MLA")
    print(
        f"total parameters {counted.total} ({counted.total:.4e}), "
        f"active per token {counted.active} ({counted.active:.3e})"
    )


def _print_bytes(config: K3Config, context: int) -> None:
    from k3model.footprint import bytes_per_step

    for batch in (1, 2, 4, 8):
        moved = bytes_per_step(config, batch, context)
        parts = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in moved.items())
        print(f"batch {batch}: {sum(moved.values()) / 1e9:.1f} GB a step ({parts})")


def _print_ops(config: K3Config, batch: int, context: int) -> None:
    from k3model.footprint import READ_TB_S, bytes_by_op

    print(f"{config.name}, batch {batch}, {context} tokens; microseconds at {READ_TB_S} TB/s")
    print("family op                                  layers  MB each  us each  ms a step")
    rows = [row for row in bytes_by_op(config, batch, context) if row.layers]
    for row in rows:
        us = row.bytes_each / READ_TB_S / 1e6
        each = f"{row.bytes_each / 1e6:<8.2f} {us:<8.2f} {us * row.layers / 1e3:.3f}"
        print(f"{row.family:<6} {row.op:<36}{row.layers:<7} {each}")
    total = sum(row.layers * row.bytes_each for row in rows)
    print(f"step   {total / 1e9:.2f} GB, {total / READ_TB_S / 1e9:.3f} ms")


if __name__ == "__main__":
    raise SystemExit(main())
