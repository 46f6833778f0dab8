"""Which forks are on: one frozen value in, read by every layer. Torch-free, so that recipes can name a policy.

A fork is two independent groups of ops whose legs may run on two streams. A table (`policies.json`) names forks for
each batch, where the best ones differ. Out of scope: streams, events (`streams.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from k3model.errors import PolicyError


@dataclass(frozen=True)
class OverlapPolicy:
    """One flag a fork; `name` is for records only and takes no part in equality of behaviour."""

    name: str = "serial"
    kda_staging: bool = False  # PR fork 1: in-projection and f_b | conv window, repack, state gather
    mla_q_kv: bool = False  # PR fork 2: q_a, norm, q_b | kv_a, norm, latent row
    mla_absorb_rope: bool = False  # PR fork 3: absorb bmm | query tail, cache append, lengths
    routed_shared: bool = False  # the one fork of the "before" model: routed experts | shared experts
    kda_qkvg_bfa: bool = False  # later engines: QKVG | [f_a|b] then f_b (needs the split projection)
    moe_router_latent: bool = False  # later engines: router and top-k | latent down projection
    mla_gate_core: bool = False  # later engines: attention core | output gate projection

    @property
    def forks(self) -> tuple[str, ...]:
        """Names of the forks that are on, in layer order."""
        return tuple(fork for fork in FORKS if getattr(self, fork))


#: Every fork, in the order in which a layer meets them.
FORKS: tuple[str, ...] = tuple(field.name for field in fields(OverlapPolicy) if field.name != "name")
#: The change under test.
PR_FORKS: tuple[str, ...] = ("kda_staging", "mla_q_kv", "mla_absorb_rope")
#: Found in newer engines; off in both arms of the comparison.
LATER_FORKS: tuple[str, ...] = ("kda_qkvg_bfa", "moe_router_latent", "mla_gate_core")


def with_forks(name: str, *forks: str) -> OverlapPolicy:
    """A policy with exactly these forks on. Raises `PolicyError` for a fork that does not exist."""
    for fork in forks:
        if fork not in FORKS:
            raise PolicyError(f"unknown fork {fork!r}", fix=f"valid forks: {', '.join(FORKS)}")
    return OverlapPolicy(name, **dict.fromkeys(forks, True))


#: Named policies: the two arms, nothing at all, the PR's three without MoE, everything, and each fork alone.
POLICIES: dict[str, OverlapPolicy] = {
    "before": with_forks("before", "routed_shared"),
    "after": with_forks("after", "routed_shared", *PR_FORKS),
    "serial": with_forks("serial"),
    "three": with_forks("three", *PR_FORKS),
    "all": with_forks("all", *FORKS),
    **{fork: with_forks(fork, fork) for fork in FORKS},
}


#: What `benchmarks/policy_table.py` chose, batch by batch, with its provenance.
TABLE = Path(__file__).with_name("policies.json")


@cache
def tables() -> dict[str, dict[int, OverlapPolicy]]:
    """Every table: from which batch on which forks are on."""
    told: dict[str, Any] = json.loads(TABLE.read_text())["tables"]
    return {
        name: {int(batch): with_forks(f"{name}/{batch}", *forks) for batch, forks in rows.items()}
        for name, rows in told.items()
    }


def policies(name: str) -> tuple[OverlapPolicy, ...]:
    """All that a name can stand for: one policy, or a table's. Raises `PolicyError` listing the valid names."""
    if name in POLICIES:
        return (POLICIES[name],)
    if name not in tables():
        raise PolicyError(f"unknown policy {name!r}", fix=f"valid policies: {', '.join((*POLICIES, *tables()))}")
    return tuple(tables()[name].values())


def policy(name: str, batch: int | None = None) -> OverlapPolicy:
    """The policy of that name; of a table the one for a batch. Raises `PolicyError` listing the valid names."""
    found = policies(name)
    if name in POLICIES:
        return found[0]
    if batch is None:
        raise PolicyError(f"policy {name!r} depends on the batch, and none is named here", fix="name a plain policy")
    rows = tables()[name]
    return rows[max((at for at in rows if at <= batch), default=min(rows))]
