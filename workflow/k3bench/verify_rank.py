"""One rank of a distributed model that is verified: the probes, run by all ranks in one order, each on its own bits.

In: a seat in the process group, subjects. Out: rows as plain data. Out of scope: merging the ranks' rows (`verify.py`).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import torch

from k3bench.ranks.link import Message
from k3bench.ranks.member import RankMember
from k3model.equivalence import Subject, probe_rows


class VerifyingRank(RankMember):
    """Asked for one subject after the other."""

    def do_probe(self, subject: dict[str, Any], batches: list[int], budget_s: float | None) -> Message:
        """Every row of one subject, as this rank sees it."""
        if self.device == "cpu":
            torch.set_num_threads(1)
        asked = Subject(subject["preset"], subject["options"], tuple(subject["policies"]))
        rows = probe_rows(asked, device=self.device, batches=tuple(batches), budget_s=budget_s, say=_say)
        return {"rows": [asdict(row) for row in rows]}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
