"""The sweep against a brute-force pairwise count that shares nothing with it."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3bench.trace.timeline import Spans, intersection_ns, sweep

N_GROUPS, N_LANES = 3, 4


class Op(NamedTuple):
    group: int
    lane: int
    start: int
    end: int

    def ticks(self) -> set[int]:
        return set(range(self.start, self.end))


@st.composite
def op(draw: st.DrawFn) -> Op:
    start = draw(st.integers(0, 60))
    length = draw(st.one_of(st.just(0), st.integers(0, 6), st.integers(0, 40)))
    return Op(draw(st.integers(0, N_GROUPS - 1)), draw(st.integers(0, N_LANES - 1)), start, start + length)


ops_sets = (
    st.integers(0, 200)
    .flatmap(lambda n: st.lists(op(), min_size=n, max_size=n))
    .flatmap(lambda ops: st.sampled_from([ops, ops[: len(ops) // 2] * 2]))  # exact duplicates
)
clocks = st.sampled_from([(0, 1), (1_700_000_000_000_000_000, 1), (-5, 32), (0, 1 << 55)])


def columns(ops: list[Op], clock: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    base, tick = clock
    group, lane, start, end = (np.array([o[i] for o in ops], np.int64) for i in range(4))
    return group, lane, base + start * tick, base + end * tick


def pair_ticks(ops: list[Op], group: int, *, same_lane: bool | None) -> set[int]:
    """Ticks in which two operations of a group run, by every pair; lanes equal, different, or whatever."""
    mine = [o for o in ops if o.group == group]
    return {
        tick
        for a, b in combinations(mine, 2)
        if same_lane is None or (a.lane == b.lane) is same_lane
        for tick in a.ticks() & b.ticks()
    }


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    max_examples=60,
    deadline=None,
)
@given(ops_sets, clocks)
def test_the_sweep_equals_a_pairwise_count(ops: list[Op], clock: tuple[int, int]) -> None:
    """Busy, two-lane, same-lane and any-two times of every group equal the unions over all pairs."""
    swept = sweep(*columns(ops, clock), n_groups=N_GROUPS, n_lanes=N_LANES)
    for group in range(N_GROUPS):
        busy = {tick for o in ops if o.group == group for tick in o.ticks()}
        assert swept.busy_ns()[group] == len(busy) * clock[1]
        assert swept.residency_ns()[group] == len(pair_ticks(ops, group, same_lane=False)) * clock[1]
        assert swept.same_lane_ns()[group] == len(pair_ticks(ops, group, same_lane=True)) * clock[1]
        assert swept.conc2_ns()[group] == len(pair_ticks(ops, group, same_lane=None)) * clock[1]


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    max_examples=30,
    deadline=None,
)
@given(ops_sets)
def test_more_lanes_are_counted_lane_by_lane(ops: list[Op]) -> None:
    """Time with at least three and four distinct lanes equals a count of lanes in every tick."""
    swept = sweep(*columns(ops, (0, 1)), n_groups=N_GROUPS, n_lanes=N_LANES)
    for group in range(N_GROUPS):
        lanes_at = {t: {o.lane for o in ops if o.group == group and t in o.ticks()} for t in range(110)}
        for k in (3, 4):
            found = swept.more_lanes_ns[k - 3][group] if len(swept.more_lanes_ns) > k - 3 else 0
            assert found == sum(len(lanes) >= k for lanes in lanes_at.values())


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    max_examples=30,
    deadline=None,
)
@given(ops_sets, clocks)
def test_hidden_time_of_each_operation_equals_its_partners(ops: list[Op], clock: tuple[int, int]) -> None:
    """What lies beside other lanes, and beside any other operation, equals the union of the partners' overlaps."""
    group, lane, start, end = columns(ops, clock)
    swept = sweep(group, lane, start, end, n_groups=N_GROUPS, n_lanes=N_LANES)
    other_lane, any_op = (s.covered_ns(group, start, end) for s in (swept.two_lanes, swept.two_ops))
    for i, o in enumerate(ops):
        partners = [p for j, p in enumerate(ops) if j != i and p.group == o.group]
        beside = {t for p in partners if p.lane != o.lane for t in o.ticks() & p.ticks()}
        assert other_lane[i] == len(beside) * clock[1]
        assert any_op[i] == len({t for p in partners for t in o.ticks() & p.ticks()}) * clock[1]


def test_touching_intervals_do_not_overlap() -> None:
    """An end equal to the next start is no overlap, on one lane or on two."""
    ops = [Op(0, 0, 0, 5), Op(0, 1, 5, 9), Op(0, 1, 9, 12)]
    swept = sweep(*columns(ops, (0, 1)), n_groups=1, n_lanes=2)
    assert (swept.busy_ns()[0], swept.residency_ns()[0], swept.conc2_ns()[0]) == (12, 0, 0)


def test_a_second_operation_on_one_lane_is_no_second_lane() -> None:
    """Programmatic dependent launch overlaps on one stream: conc2 and same-lane time, no residency."""
    swept = sweep(*columns([Op(0, 2, 0, 10), Op(0, 2, 4, 14)], (0, 1)), n_groups=1, n_lanes=4)
    assert (swept.residency_ns()[0], swept.conc2_ns()[0], swept.same_lane_ns()[0]) == (0, 6, 6)


def test_the_common_part_of_three_span_sets() -> None:
    """The intersection counts a time only where every set has it, group by group."""

    def spans(*parts: tuple[int, int, int]) -> Spans:
        return Spans(*(np.array([p[i] for p in parts], np.int64) for i in range(3)))

    common = intersection_ns((spans((0, 0, 9), (1, 0, 4)), spans((0, 2, 20)), spans((0, 5, 7), (1, 0, 4))), 2)
    assert common.tolist() == [2, 0]
