"""The metric registry: each formula, worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3bench.metrics import (
    HEADLINE,
    IDENTITIES,
    METRICS,
    BatchTimes,
    RequestTimes,
    point_metrics,
    request_metrics,
)

MS = 1_000_000


def test_the_formulas_worked_by_hand() -> None:
    """Two rows, three batches of a first step of 9 ms and four steps of 10, 12 and 20 ms."""
    batches = [BatchTimes((9 * MS, *(step * MS,) * 4)) for step in (10, 12, 20)]
    values = point_metrics(batches, level=2, stream_interval=2)
    assert values["tpot_median_ms"] == 12.0
    assert values["ttft_median_ms"] == 9.0
    assert values["itl_median_ms"] == values["itl_mean_ms"] == 24.0
    assert values["step_p99_ms"] == 20.0
    assert values["tps_user"] == pytest.approx(1000 / 12)
    assert values["output_tok_s"] == pytest.approx(2 * 15 / 0.195)


def test_an_output_shorter_than_a_chunk_has_no_inter_chunk_time() -> None:
    """What cannot be measured is absent, never 0."""
    assert "itl_median_ms" not in point_metrics([BatchTimes((MS, MS, MS))], level=1, stream_interval=10)


def _request(sizes: tuple[int, ...], gaps_ms: tuple[int, ...], *, told: bool = True) -> RequestTimes:
    stamps = [9, *(9 + sum(gaps_ms[: i + 1]) for i in range(len(gaps_ms)))]
    return RequestTimes(0, tuple(MS * at for at in stamps), sum(sizes), sizes if told else None, counted=True)


def test_a_stall_moves_tpot_and_the_mean_gap_alike_and_the_median_gap_not_at_all() -> None:
    """Forty tokens in four chunks, 2 ms a token, 50 ms of waiting in between: the mean gap is still ten TPOT."""
    values = request_metrics([_request((1, 10, 10, 10, 10), (20, 70, 20, 20))])
    assert values["tpot_median_ms"] == 130 / 40
    assert values["itl_mean_ms"] == 10 * values["tpot_median_ms"]
    assert values["itl_median_ms"] == 20.0


def test_a_last_chunk_of_what_was_left_is_no_gap_of_a_whole_chunk() -> None:
    """Nothing left out where the server does not tell how many tokens a chunk holds, and then there is no mean gap."""
    values = request_metrics([_request((1, 10, 10, 4), (20, 22, 8))])
    assert values["itl_mean_ms"] == values["itl_median_ms"] == 21.0
    untold = request_metrics([_request((1, 10, 10, 4), (20, 22, 8), told=False)])
    assert untold["itl_median_ms"] == 20.0
    assert "itl_mean_ms" not in untold


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=50))
def test_tpot_is_the_mean_of_all_steps_but_the_first(steps: list[int]) -> None:
    """(last - first) / (OSL - 1), whatever the steps."""
    assert BatchTimes(tuple(steps)).tpot_ms == pytest.approx(sum(steps[1:]) / (len(steps) - 1) / MS)


def test_every_declared_identity_and_the_headline_name_registered_metrics() -> None:
    """A typo in a tag would silence the witness check."""
    assert HEADLINE in METRICS
    assert {tag for left, right, _ in IDENTITIES for tag in (left, right)} <= set(METRICS)
