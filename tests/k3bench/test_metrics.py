"""The metric registry: each formula, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3bench.metrics import HEADLINE, IDENTITIES, METRICS, BatchTimes, point_metrics

MS = 1_000_000


def test_the_formulas_worked_by_hand() -> None:
    """Two rows, three batches of a first step of 9 ms and four steps of 10, 12 and 20 ms."""
    batches = [BatchTimes((9 * MS, *(step * MS,) * 4)) for step in (10, 12, 20)]
    values = point_metrics(batches, level=2, stream_interval=2)
    assert values["tpot_median_ms"] == 12.0
    assert values["ttft_median_ms"] == 9.0
    assert values["itl_median_ms"] == 24.0
    assert values["step_p99_ms"] == 20.0
    assert values["tps_user"] == pytest.approx(1000 / 12)
    assert values["output_tok_s"] == pytest.approx(2 * 15 / 0.195)


def test_an_output_shorter_than_a_chunk_has_no_inter_chunk_time() -> None:
    """What cannot be measured is absent, never 0."""
    assert "itl_median_ms" not in point_metrics([BatchTimes((MS, MS, MS))], level=1, stream_interval=10)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=50))
def test_tpot_is_the_mean_of_all_steps_but_the_first(steps: list[int]) -> None:
    """(last - first) / (OSL - 1), whatever the steps."""
    assert BatchTimes(tuple(steps)).tpot_ms == pytest.approx(sum(steps[1:]) / (len(steps) - 1) / MS)


def test_every_declared_identity_and_the_headline_name_registered_metrics() -> None:
    """A typo in a tag would silence the witness check."""
    assert HEADLINE in METRICS
    assert {tag for left, right, _ in IDENTITIES for tag in (left, right)} <= set(METRICS)
