"""Collectives in a trace: how long they run, and that no two of them ever run at once on two lanes.

In: operations with a group (device) each, the sweep over all of them. Out: `CollectiveTimes`. Two collectives at once
on two streams can wait for each other for ever, or spoil the memory they share: the time must be 0. Names decide.
Out of scope: which family a collective belongs to; it counts in the family whose range it was captured in.
"""

from __future__ import annotations

import re

import numpy as np

from k3bench.records.residency import CollectiveTimes
from k3bench.trace.ops import KERNEL, Ints, Ops
from k3bench.trace.swept import Swept
from k3bench.trace.timeline import Sweep

#: NCCL, torch's symmetric memory, vLLM's and TensorRT-LLM's own kernels.
_NAMES = re.compile(
    r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|userbuffers|multimem", re.IGNORECASE
)


def collective_times(ops: Ops, everything: Sweep, group: Ints, n_groups: int) -> list[CollectiveTimes | None]:
    """Per group (device); None where no kernel bears such a name."""
    named = np.array([bool(_NAMES.search(name)) for name in ops.names] or [False])
    mine = named[ops.name] & (ops.kind == KERNEL) if len(ops) else np.zeros(0, np.bool_)
    if not mine.any():
        return [None] * n_groups
    part, of = ops.bare(mine), group[mine]
    swept = Swept.of(part, of, n_groups)
    hidden = everything.two_lanes.covered_ns(of, part.start, part.end)
    found: list[CollectiveTimes | None] = []
    for index in range(n_groups):
        measured = swept.measure(np.array([index]))
        lanes = len(np.unique(part.lane[of == index]))
        times = CollectiveTimes(
            n_kernels=measured.n_ops,
            n_lanes=lanes,
            busy_ns=measured.busy_ns,
            concurrent_ns=measured.residency_ns,
            hidden_ns=int(hidden[of == index].sum()),
        )
        found.append(times if measured.n_ops else None)
    return found
