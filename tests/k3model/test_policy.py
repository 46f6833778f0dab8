"""Named overlap policies."""

from __future__ import annotations

import pytest

from k3model.errors import PolicyError
from k3model.policy import FORKS, LATER_FORKS, PR_FORKS, policies, policy, tables, with_forks


def test_the_arms_differ_by_the_three_forks_of_the_change() -> None:
    """Before has the MoE fork alone; after adds exactly the three."""
    assert policy("before").forks == ("routed_shared",)
    assert set(policy("after").forks) - set(policy("before").forks) == set(PR_FORKS)


def test_later_forks_are_off_in_both_arms() -> None:
    """Candidates from newer engines never leak into the comparison."""
    for arm in ("before", "after"):
        assert not set(policy(arm).forks) & set(LATER_FORKS)


@pytest.mark.parametrize("fork", FORKS)
def test_every_fork_is_a_policy_of_its_own(fork: str) -> None:
    """Each fork can be proven alone."""
    assert policy(fork).forks == (fork,)


def test_serial_is_nothing_and_all_is_everything() -> None:
    """The two ends."""
    assert policy("serial").forks == ()
    assert policy("all").forks == FORKS


def test_unknown_policy_lists_the_valid_ones() -> None:
    """The error is the list one needs."""
    with pytest.raises(PolicyError, match=r"unknown policy 'afterwards'[\s\S]*before, after, serial"):
        policy("afterwards")


def test_unknown_fork_is_refused() -> None:
    """A policy cannot be built from a fork that does not exist."""
    with pytest.raises(PolicyError, match=r"unknown fork 'moe'[\s\S]*kda_staging"):
        with_forks("mine", "moe")


def test_a_table_names_forks_for_every_batch() -> None:
    """From a batch on; below the first row the first row; a name without a batch is refused where one is needed."""
    rows = tables()["best-by-batch"]
    assert policy("best-by-batch", 8) is rows[8]
    assert policy("best-by-batch", 5) is rows[4]
    assert set(policies("best-by-batch")) == set(rows.values())
    assert policy("before", 8) is policy("before")
    with pytest.raises(PolicyError, match="depends on the batch"):
        policy("best-by-batch")
