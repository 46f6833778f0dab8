"""Same bits or not: a decode session and a seed in; everything a few steps leave behind, and its comparison, out.

Compared are the logits after every step and every cache, state and buffer after the last. Out of scope: which sessions
to compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from k3model.capture import Decode

#: The steps cross a page of 64 tokens, so that two pages are written.
STEPS = 4
FILLED_TOKENS = 62
#: Fresh inputs a probe. At least two: a block of memory that still holds an earlier trial must not look right.
TRIALS = 2
COMPARED = STEPS * TRIALS
#: What steps change; the rest of the caches is addresses.
POOLS = ("conv", "state", "dense", "latent", "bank", "tokens", "positions", "history", "logits")


@dataclass(frozen=True)
class Trace:
    """Logits [steps, B, vocab] and the pools after the last step."""

    logits: torch.Tensor
    pools: dict[str, torch.Tensor]


def trace(session: Decode, seed: int, steps: int = STEPS) -> Trace:
    """Fresh caches and tokens by the seed, then the steps. Nothing of earlier runs is left in any pool."""
    caches = session.model.caches
    for name in POOLS:
        getattr(caches, name).view(torch.uint8).zero_()
    session.fill(FILLED_TOKENS, seed=seed)
    logits = []
    for _ in range(steps):
        session.step()
        logits.append(session.logits.clone())
    return Trace(torch.stack(logits), {name: getattr(caches, name).clone() for name in POOLS})


def traces(session: Decode) -> tuple[Trace, ...]:
    """One trace a trial."""
    return tuple(trace(session, seed=1000 * session.batch + trial) for trial in range(TRIALS))


def first_difference(expected: tuple[Trace, ...], found: tuple[Trace, ...]) -> str:
    """Where the first bit differs, in words; empty if none does."""
    for trial, (one, other) in enumerate(zip(expected, found, strict=True)):
        for step in range(one.logits.shape[0]):
            if not same_bits(one.logits[step], other.logits[step]):
                return f"logits after step {step} of trial {trial}: {_count(one.logits[step], other.logits[step])}"
        for name in POOLS:
            if not same_bits(one.pools[name], other.pools[name]):
                return f"{name} after trial {trial}: {_count(one.pools[name], other.pools[name])}"
    return ""


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bytes, so that NaN equals NaN and -0 differs from 0."""
    return one.dtype == other.dtype and torch.equal(_bytes(one), _bytes(other))


def is_telling(found: tuple[Trace, ...]) -> str:
    """Why comparing these could prove nothing; empty if it can."""
    for one in found:
        if not torch.isfinite(one.logits.float()).all():
            return "logits are not finite"
    if any(same_bits(found[0].logits, other.logits) for other in found[1:]):
        return "other inputs give the same logits"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _count(one: torch.Tensor, other: torch.Tensor) -> str:
    size = one.element_size()
    wrong = (_bytes(one).unflatten(-1, (-1, size)) != _bytes(other).unflatten(-1, (-1, size))).any(-1)
    return f"{int(wrong.sum())} of {one.numel()} elements differ"
