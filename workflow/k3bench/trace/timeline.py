"""Interval arithmetic on integer nanoseconds: who runs when, and how many at once.

In: arrays of half-open intervals [start, end) with a group and a lane each. Out: times per group, and spans to ask
"how much of this interval lies in them". Out of scope: what a group, a lane or a family is; files.

Everything is a sort of endpoints packed into one integer each (group, lane, time, end bit), a running count, and sums
of gaps: O(n log n) and exact. Zero-length intervals have no measure and take no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_KEY_BITS = 63


@dataclass(frozen=True)
class Spans:
    """Disjoint half-open intervals, sorted by (group, start)."""

    group: Ints
    start: Ints
    end: Ints

    def total_ns(self, n_groups: int) -> Ints:
        """Length of the spans of every group."""
        running = np.concatenate(([0], np.cumsum(self.end - self.start)))
        edges = np.searchsorted(self.group, np.arange(n_groups + 1))
        result: Ints = running[edges[1:]] - running[edges[:-1]]
        return result

    def covered_ns(self, group: Ints, start: Ints, end: Ints) -> Ints:
        """For every interval asked: how much of it lies in the spans of its own group."""
        if not len(self.group) or not len(group):
            return np.zeros(len(group), np.int64)
        clock = _Clock.over(int(max(self.group[-1], group.max())) + 1, (self.start, start), (self.end, end))
        starts = clock.key(self.group, self.start)
        running = np.concatenate(([0], np.cumsum(self.end - self.start)))
        return self._before(clock, starts, running, group, end) - self._before(clock, starts, running, group, start)

    def _before(self, clock: _Clock, starts: Ints, running: Ints, group: Ints, time: Ints) -> Ints:
        """Covered time from the first span of all groups up to `time` in `group`."""
        index = np.searchsorted(starts, clock.key(group, time), side="right") - 1
        last = np.maximum(index, 0)
        until = np.where(self.group[last] == group, np.minimum(time, self.end[last]), self.end[last])
        result: Ints = np.where(index >= 0, running[last] + until - self.start[last], 0)
        return result


@dataclass(frozen=True)
class _Clock:
    """Packs (row, time) into one sortable integer. Times too long for that are replaced by their ranks."""

    base: int
    bits: int
    ranks: Ints | None = None

    @staticmethod
    def over(n_rows: int, starts: tuple[Ints, ...], ends: tuple[Ints, ...]) -> _Clock:
        base = min(int(s.min()) for s in starts if len(s))
        span = max(int(e.max()) for e in ends if len(e)) - base
        room = _KEY_BITS - 1 - (max(n_rows - 1, 0)).bit_length()
        if span >= 0 and span.bit_length() <= room:
            return _Clock(base, span.bit_length())
        ranks = np.unique(np.concatenate((*starts, *ends)))
        return _Clock(0, len(ranks).bit_length(), ranks)

    def key(self, row: Ints, time: Ints) -> Ints:
        ticks: Ints = time - self.base if self.ranks is None else np.searchsorted(self.ranks, time)
        ticks |= row << self.bits
        return ticks

    def split(self, key: Ints) -> tuple[Ints, Ints]:
        ticks = key & ((1 << self.bits) - 1)
        return key >> self.bits, ticks + self.base if self.ranks is None else self.ranks[ticks]


@dataclass(frozen=True)
class _Profile:
    """How many intervals of each row are open after every endpoint, in (row, time) order, starts before ends."""

    clock: _Clock
    #: (row, time) packed, then the end bit
    keys: Ints
    is_end: NDArray[np.bool_]
    open_after: NDArray[np.int32]

    @staticmethod
    def of(row: Ints, start: Ints, end: Ints, n_rows: int) -> _Profile:
        if not len(row):
            return _Profile(_Clock(0, 1), np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int32))
        clock = _Clock.over(n_rows, (start,), (end,))
        keys = np.empty(2 * len(row), np.int64)
        np.left_shift(clock.key(row, start), 1, out=keys[: len(row)])
        np.left_shift(clock.key(row, end), 1, out=keys[len(row) :])
        keys[len(row) :] |= 1
        keys.sort()
        is_end = (keys & 1).astype(np.bool_)
        open_after = np.cumsum(1 - 2 * is_end.view(np.int8), dtype=np.int32)
        return _Profile(clock, keys, is_end, open_after)

    @property
    def peak(self) -> int:
        return int(self.open_after.max(initial=0))

    def at_least(self, k: int) -> Spans:
        """Where at least k intervals of a row are open at once. Spans that only touch are one."""
        opens = ~self.is_end & (self.open_after == k)
        closes = self.is_end & (self.open_after == k - 1)
        row, start = self.clock.split(self.keys[opens] >> 1)
        _, end = self.clock.split(self.keys[closes] >> 1)
        real = end > start
        return Spans(row, start, end) if real.all() else Spans(row[real], start[real], end[real])


@dataclass(frozen=True)
class Sweep:
    """All times of one set of intervals, per group."""

    n_groups: int
    busy: Spans
    two_lanes: Spans
    two_ops: Spans
    same_lane: Spans
    #: per (group * n_lanes + lane): where the lane is busy
    lanes: Spans
    #: at least 3, 4, ... lanes, per group
    more_lanes_ns: tuple[Ints, ...]

    def busy_ns(self) -> Ints:
        """Time with at least one operation."""
        return self.busy.total_ns(self.n_groups)

    def residency_ns(self) -> Ints:
        """Time with at least two distinct lanes."""
        return self.two_lanes.total_ns(self.n_groups)

    def conc2_ns(self) -> Ints:
        """Time with at least two operations, on whatever lane."""
        return self.two_ops.total_ns(self.n_groups)

    def hidden_ns(self, group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Of every interval asked: (time with two lanes busy, time with two operations), in its own group."""
        other = self.two_lanes.covered_ns(group, start, end)
        return other, other if self.two_ops is self.two_lanes else self.two_ops.covered_ns(group, start, end)

    def same_lane_ns(self) -> Ints:
        """Time in which some single lane has at least two operations."""
        return self.same_lane.total_ns(self.n_groups)


def sweep(group: Ints, lane: Ints, start: Ints, end: Ints, *, n_groups: int, n_lanes: int) -> Sweep:
    """Union inside each lane first, then count lanes: PDL on one lane is no second lane."""
    real = end > start
    if not real.all():
        group, lane, start, end = group[real], lane[real], start[real], end[real]
    row, decode = _rows(group, lane, n_groups, n_lanes)
    by_lane = _Profile.of(row, start, end, n_groups * n_lanes if decode is None else len(decode))
    lanes, doubled = (_decoded(by_lane.at_least(k), decode) for k in (1, 2))
    counted = _Profile.of(lanes.group // n_lanes, lanes.start, lanes.end, n_groups)
    two_lanes = counted.at_least(2)
    two_ops, same_lane = two_lanes, doubled
    if len(doubled.group):
        two_ops = _Profile.of(group, start, end, n_groups).at_least(2)
        same_lane = union(doubled.group // n_lanes, doubled.start, doubled.end, n_groups)
    more = tuple(counted.at_least(k).total_ns(n_groups) for k in range(3, counted.peak + 1))
    return Sweep(n_groups, counted.at_least(1), two_lanes, two_ops, same_lane, lanes, more)


def union(group: Ints, start: Ints, end: Ints, n_groups: int) -> Spans:
    """Where at least one interval of a group is."""
    return _Profile.of(group, start, end, n_groups).at_least(1)


def at_least(k: int, group: Ints, start: Ints, end: Ints, n_groups: int) -> Spans:
    """Where at least k intervals of a group are."""
    return _Profile.of(group, start, end, n_groups).at_least(k)


def intersection_ns(spans: tuple[Spans, ...], n_groups: int) -> Ints:
    """Per group, the time that lies in every one of the span sets."""
    group, start, end = (np.concatenate([getattr(s, name) for s in spans]) for name in ("group", "start", "end"))
    return at_least(len(spans), group, start, end, n_groups).total_ns(n_groups)


def _rows(group: Ints, lane: Ints, n_groups: int, n_lanes: int) -> tuple[Ints, Ints | None]:
    """One integer for (group, lane); made dense only where there are too many to leave room for the time."""
    row = group * n_lanes + lane
    if n_groups * n_lanes < 1 << 24:
        return row, None
    decode, dense = np.unique(row, return_inverse=True)
    return dense.astype(np.int64), decode


def _decoded(spans: Spans, decode: Ints | None) -> Spans:
    return spans if decode is None else Spans(decode[spans.group], spans.start, spans.end)
