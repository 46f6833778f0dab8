"""Probes of kind greedy: the tokens of whole greedy decodes, serial against overlapped.

In: a rig, a policy. Out: outcomes with the number of distinct tokens and the top-2 margins of the serial decode: random
weights can collapse to one token, and then equal tokens say nothing. Out of scope: bits of a single step (`forks.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from k3model.cache import Snapshot
from k3model.capture import Decode
from k3model.equivalence.legs import ProbeForks, SwappedForks
from k3model.equivalence.rig import Rig
from k3model.equivalence.rows import Outcome, Probe, caught, failed, not_run, passed
from k3model.policy import OverlapPolicy
from k3model.streams import multi_stream

PROMPTS = 8
PROMPT_TOKENS = 16
TOKENS = 256
MIN_DISTINCT = 64
#: Relative size of the perturbation: two units in the last place of a bfloat16 near one.
PERTURBATION = 1 / 64


@dataclass(frozen=True)
class Decoded:
    """Tokens [prompts, TOKENS]; margins [TOKENS, prompts] between the two largest logits of each step."""

    tokens: torch.Tensor
    margins: torch.Tensor

    @property
    def measures(self) -> dict[str, Any]:
        """Fields of the row."""
        margins = self.margins.double()
        return {
            "prompts": self.tokens.shape[0],
            "tokens": self.tokens.shape[1],
            "distinct_tokens": int(self.tokens.unique().numel()),
            "top2_margin_min": float(margins.min()),
            "top2_margin_median": float(margins.median()),
        }


class Greedy:
    """Prompts run once; every decode starts from the snapshot behind them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    @cached_property
    def start(self) -> tuple[Snapshot, torch.Tensor]:
        """After the prompts, one random prompt a row; with the latent rows, which snapshots leave to the caches."""
        session = self.rig.serial(PROMPTS)
        session.clear()
        generator = torch.Generator().manual_seed(self.rig.seed + 1)
        vocab = session.logits.shape[1]
        session.prefill(torch.randint(0, vocab, (PROMPTS, PROMPT_TOKENS), generator=generator))
        return session.snapshot(), session.model.caches.latent.clone()

    @cached_property
    def reference(self) -> Decoded:
        """The serial decode."""
        return self.decode(self.rig.serial(PROMPTS))

    def decode(self, session: Decode) -> Decoded:
        """TOKENS greedy steps from the snapshot."""
        snapshot, latent = self.start
        session.model.caches.latent.copy_(latent)
        session.restore(snapshot)
        margins = []
        for _ in range(TOKENS):
            session.step()
            best = session.logits.topk(2).values
            margins.append(best[:, 0] - best[:, 1])
        chosen = slice(snapshot.position, snapshot.position + TOKENS)
        return Decoded(session.history[:, chosen].clone(), torch.stack(margins))


def greedy_probes(rig: Rig, policies: tuple[OverlapPolicy, ...]) -> Iterator[Probe]:
    """Serial against each policy, and the control that other weights give other tokens."""
    greedy = Greedy(rig)
    what = "greedy tokens, serial against overlapped, captured"
    for policy in policies:
        yield Probe("greedy", what, policy.name, PROMPTS, lambda p=policy: overlapped(greedy, p))  # type: ignore[misc]
    if not rig.has_cuda:
        what = "greedy tokens, serial against right leg before left on one thread"
        for policy in policies:
            yield Probe("greedy", what, policy.name, PROMPTS, lambda p=policy: swapped(greedy, p), needs_cuda=False)  # type: ignore[misc]
    what = "greedy tokens after a slight change of one weight"
    yield Probe("control", what, "serial", PROMPTS, lambda: perturbed(greedy), needs_cuda=False)


def overlapped(greedy: Greedy, policy: OverlapPolicy) -> Outcome:
    """The captured step on two streams."""
    forks = ProbeForks(policy, greedy.rig.model().side_stream)
    return _judge(greedy, forks, greedy.rig.captured(policy, PROMPTS, forks))


def swapped(greedy: Greedy, policy: OverlapPolicy) -> Outcome:
    """Without streams the legs still may run in either order."""
    forks = SwappedForks(policy)
    with multi_stream():
        return _judge(greedy, forks, greedy.rig.session(policy, PROMPTS, forks))


def perturbed(greedy: Greedy) -> Outcome:
    """One norm weight of the middle layer, changed in place by a seeded sign pattern, and changed back."""
    expected, model = greedy.reference, greedy.rig.model()
    weight = model.layers[len(model.layers) // 2].input_layernorm
    kept = weight.clone()
    signs = torch.randint(0, 2, weight.shape, generator=torch.Generator().manual_seed(2)).to(weight) * 2 - 1
    try:
        weight.mul_(1 + PERTURBATION * signs)
        found = greedy.decode(greedy.rig.serial(PROMPTS))
    finally:
        weight.copy_(kept)
    step = _first_difference(expected, found)
    difference = "" if step is None else f"tokens differ from step {step} on"
    return caught(difference, **expected.measures, first_difference=step)


def _judge(greedy: Greedy, forks: ProbeForks | SwappedForks, session: Decode) -> Outcome:
    expected, found = greedy.reference, greedy.decode(session)
    if not forks.split:
        return not_run("this fork does not occur in this configuration")
    measures = expected.measures
    step = _first_difference(expected, found)
    if step is not None:
        return failed(f"tokens differ from step {step} on", **measures, first_difference=step)
    if measures["distinct_tokens"] < MIN_DISTINCT:
        return failed(f"fewer than {MIN_DISTINCT} distinct tokens: equal tokens say nothing", **measures)
    return passed(**measures)


def _first_difference(expected: Decoded, found: Decoded) -> int | None:
    steps = (expected.tokens != found.tokens).any(0).nonzero()
    return int(steps[0]) if steps.numel() else None
