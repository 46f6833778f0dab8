"""Probes of a model over several ranks against the same model on one: sums are taken in another order, so not by bits.

In: a rig whose preset has ranks. Out: outcomes. In float32 logits agree within `RELATIVE`, and a row's tokens may part
only where the two best logits are closer than that; bfloat16 is reported without a bound. Rank 0 compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from k3model.capture import Decode
from k3model.config import K3Config, preset
from k3model.decode import K3, build
from k3model.equivalence.rig import SERIAL, Rig
from k3model.equivalence.rows import Outcome, Probe, caught, failed, passed

#: Of the largest logit of the row.
RELATIVE = 1e-4
ROWS = 4
PROMPT_TOKENS = 16
STEPS = 32


@dataclass(frozen=True)
class Decoded:
    """Logits [STEPS + 1, ROWS, vocab], the first ones after the prompt, and the tokens they chose."""

    logits: torch.Tensor

    @property
    def tokens(self) -> torch.Tensor:
        """[STEPS + 1, ROWS]."""
        return self.logits.argmax(-1)

    @property
    def scale(self) -> torch.Tensor:
        """The largest logit of every row and step, by size."""
        return self.logits.abs().amax(-1).clamp_min(1e-30)

    @property
    def margins(self) -> torch.Tensor:
        """How far the best logit is ahead, of the scale."""
        best = self.logits.topk(2).values
        return (best[..., 0] - best[..., 1]) / self.scale


@dataclass(frozen=True)
class Apart:
    """How far two decodes are apart while their tokens are the same, and where a row's tokens part."""

    largest: float
    parted: tuple[tuple[int, float], ...]  # (step, margin of the reference there) of every row that parts

    @property
    def first(self) -> int | None:
        """The first step at which a row's tokens part."""
        return min((step for step, _ in self.parted), default=None)

    def excess(self, bound: float) -> str:
        """What the bound does not allow, in words; empty if all is within it."""
        if not self.largest <= bound:
            return f"logits differ by {self.largest:.1e} of the largest, {bound:.0e} is allowed"
        wide = [(step, margin) for step, margin in self.parted if not margin < bound]
        return f"tokens part at step {wide[0][0]} where the best logit is {wide[0][1]:.1e} ahead" if wide else ""

    def in_words(self) -> str:
        """For a row's reason."""
        parts = f"{len(self.parted)} of {ROWS} rows part"
        where = f", the first at step {self.first}" if self.parted else ""
        return f"logits within {self.largest:.1e} of the largest, {parts}{where}"


def across_probes(rig: Rig) -> Iterator[Probe]:
    """The comparison, and the control that a sum which one layer leaves out is seen."""
    ranks = rig.config.tp_size
    what = f"{ranks} ranks against one, float32"
    yield Probe("greedy", what, "serial", ROWS, lambda: against_one(rig), needs_cuda=False)
    what = f"{ranks} ranks against one, float32; one layer leaves out the sum over ranks"
    yield Probe("control", what, "serial", ROWS, lambda: unsummed(rig), needs_cuda=False)


def against_one(rig: Rig) -> Outcome:
    """Float32 decides; bfloat16 is told beside it."""
    ours = _decode(_built(rig, rig.config, torch.float32))
    same = rig.model().collectives.same_everywhere(ours.logits.to(rig.device))
    narrow = _decode(_built(rig, rig.config, torch.bfloat16))
    if not same:
        return failed("ranks hold different logits")
    if rig.rank:
        return passed()
    reference = _decode(_built(rig, one_rank(rig), torch.float32))
    found = apart(reference, ours)
    told = apart(_decode(_built(rig, one_rank(rig), torch.bfloat16)), narrow)
    reason = f"{found.in_words()}; bfloat16, reported without a bound: {told.in_words()}"
    excess = found.excess(RELATIVE)
    measures = _measures(reference, found)
    return failed(f"{excess}; {reason}", **measures) if excess else passed(reason, **measures)


def unsummed(rig: Rig) -> Outcome:
    """Every rank leaves out the same sum, so that no rank waits for another."""
    model = _built(rig, rig.config, torch.float32)
    attention = model.layers[len(model.layers) // 2].self_attn
    attention.collectives = _Alone()  # type: ignore[assignment]
    ours = _decode(model)
    if rig.rank:
        return passed("caught on rank 0")
    found = apart(_decode(_built(rig, one_rank(rig), torch.float32)), ours)
    return caught(found.excess(RELATIVE))


class _Alone:
    """As if there were no peers."""

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """The partial sum."""
        return partial


def one_rank(rig: Rig) -> K3Config:
    """The same model, all of it on one rank."""
    whole: dict[str, Any] = {**rig.options, "tp_size": 1, "collectives": "none_needed"}
    return preset(rig.name, **(whole | {"shares": rig.config.shares} if rig.config.shares else whole))


def _built(rig: Rig, config: K3Config, dtype: torch.dtype) -> K3:
    context = PROMPT_TOKENS + STEPS
    return build(config, device=str(rig.device), dtype=dtype, seed=rig.seed, max_batch=ROWS, context=context)


def _decode(model: K3) -> Decoded:
    """Greedy from one prompt a row, eager, one stream."""
    session = Decode(model, SERIAL, ROWS)
    generator = torch.Generator().manual_seed(model.seed + 3)
    session.prefill(torch.randint(0, model.config.vocab, (ROWS, PROMPT_TOKENS), generator=generator))
    logits = [session.logits.clone()]
    for _ in range(STEPS):
        session.step()
        logits.append(session.logits.clone())
    return Decoded(torch.stack(logits).float().cpu())


def apart(reference: Decoded, ours: Decoded) -> Apart:
    """Compare every row as far as the tokens before are the same: from there on the questions differ."""
    differ = reference.tokens != ours.tokens
    alike = torch.cat([torch.ones_like(differ[:1]), (differ.long().cumsum(0) == 0)[:-1]])
    error = (reference.logits - ours.logits).abs().amax(-1) / reference.scale
    largest = float(torch.where(alike, error, 0.0).max())
    parted = []
    for row in range(differ.shape[1]):
        steps = differ[:, row].nonzero()
        if steps.numel():
            step = int(steps[0])
            parted.append((step, float(reference.margins[step, row])))
    return Apart(largest if torch.isfinite(error[alike]).all() else float("nan"), tuple(parted))


def _measures(reference: Decoded, found: Apart) -> dict[str, Any]:
    margins = (reference.margins * reference.scale).double()
    return {
        "prompts": ROWS,
        "tokens": STEPS,
        "distinct_tokens": int(reference.tokens.unique().numel()),
        "first_difference": found.first,
        "top2_margin_min": float(margins.min()),
        "top2_margin_median": float(margins.median()),
    }
