"""Power and blocks: the published planning table, and that more never makes things worse."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from k3bench.compare.planning import (
    Design,
    blocks_for,
    blocks_for_harmless,
    blocks_to_settle,
    pairs_for,
    power,
    power_of_pairs,
)

RUN_SDS = (0.01, 0.015, 0.02, 0.025, 0.03)
#: effect, observations, alpha -> blocks by run sd; None where the table shows nothing
TABLE = {
    (0.01, 3, 0.05): (6, 12, 21, 33, 47),
    (0.01, 3, 0.0125): (10, 20, 35, 53, None),
    (0.02, 1, 0.05): (5, 10, 16, 23, 33),
    (0.02, 2, 0.05): (3, 4, 7, 10, 14),
    (0.02, 3, 0.05): (2, 3, 5, 7, 9),
    (0.02, 3, 0.0125): (3, 4, 6, 9, 13),
    (0.02, 4, 0.05): (2, 2, 4, 5, 7),
    (0.04, 2, 0.05): (2, 2, 2, 3, 4),
}


@pytest.mark.parametrize(("effect", "k", "alpha"), TABLE)
def test_blocks_for_ninety_percent_power(effect: float, k: int, alpha: float) -> None:
    """Every cell of the planning table."""
    for sd, expected in zip(RUN_SDS, TABLE[(effect, k, alpha)], strict=True):
        if expected is not None:
            assert blocks_for(Design.of_runs(k, sd), effect, alpha=alpha) == expected


def test_blocks_for_a_zero_change_to_be_called_harmless() -> None:
    """Three observations, margins of 2 and 1 percent."""
    for margin, expected in ((0.02, (2, 3, 4, 6, 8)), (0.01, (5, 10, 16, 25, 36))):
        seen = tuple(blocks_for_harmless(Design.of_runs(3, sd), math.log1p(margin)) for sd in RUN_SDS)
        assert seen == expected


def test_the_floor_can_forbid_an_answer() -> None:
    """One observation cannot find an effect that rebuilding alone could make, however many blocks it has."""
    assert blocks_for(Design.of_runs(1, 0.01), 0.005) is None


def test_power_grows_with_blocks_and_observations() -> None:
    """Never the other way round."""
    blocks = np.arange(2.0, 40.0)
    rows = [power(Design.of_runs(k, 0.015), 0.02, blocks) for k in (1, 2, 3, 4)]
    assert all((np.diff(row) >= -1e-9).all() for row in rows)
    assert all((b >= a).all() for a, b in pairwise(rows))


def test_an_open_question_near_zero_is_settled_by_the_margin_and_one_far_off_by_the_effect() -> None:
    """The hardest is in between: neither zero nor clearly off it."""
    design = Design.of_runs(3, 0.015)
    near, between, far = (blocks_to_settle(design, e, math.log1p(0.02)) for e in (0.0, 0.01, 0.03))
    assert near is not None
    assert between is not None
    assert far is not None
    assert far <= near < between


def test_textbook_sample_size_and_its_power_are_inverse() -> None:
    """The sample size asked for has the power asked for."""
    pairs = pairs_for(0.02, 0.0212, 0.9)
    assert power_of_pairs(0.02, 0.0212, pairs) == pytest.approx(0.9, abs=1e-4)
