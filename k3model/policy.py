"""Which forks are on: one frozen value in, read by every layer. Torch-free, so that recipes can name a policy.

A fork is two independent groups of ops whose legs may run on two streams. Out of scope: streams, events (`streams.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

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


def policy(name: str) -> OverlapPolicy:
    """The policy of that name. Raises `PolicyError` listing the valid names."""
    try:
        return POLICIES[name]
    except KeyError:
        raise PolicyError(f"unknown policy {name!r}", fix=f"valid policies: {', '.join(POLICIES)}") from None
