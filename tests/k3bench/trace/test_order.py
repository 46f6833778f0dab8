"""Order of capture against the truth: random decodes with forks, replayed with random lengths, node ids taken away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3bench.trace.attribution import UNKNOWN, attribute
from k3bench.trace.families import CapturedGraph, CapturedNode, CapturedRange, CaptureRecord, Grammar, Label
from k3bench.trace.ops import NO_NODES, NO_RANGES, Launches, Ops, Source, Trace
from k3bench.trace.steps import steps_of
from tests.k3bench.trace.golden import ROOT

NAMES = ("gemm", "copy", "norm")


@dataclass(frozen=True)
class Segment:
    """A main leg, a side leg beside it (perhaps empty), then a tail after the join; kernel names of each."""

    main: tuple[int, ...]
    side: tuple[int, ...]
    tail: tuple[int, ...]
    main_lane: int
    side_lane: int


names = st.integers(0, len(NAMES) - 1)
segments = st.builds(
    Segment,
    st.lists(names, min_size=1, max_size=3).map(tuple),
    st.lists(names, max_size=3).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    st.integers(0, 2),
    st.integers(3, 5),
)


def truth(decode: list[Segment]) -> tuple[list[Label], list[str], CapturedGraph]:
    """Labels and names in capture order, and the capture record."""
    labels, spelled, ranges = [], [], []
    for i, s in enumerate(decode):
        family, first = ("KDA", "MoE")[i % 2], len(labels)
        for leg, part in (("main", s.main), ("side", s.side), ("", s.tail)):
            at = len(labels)
            legs = (("f", leg),) if leg and s.side else ()
            labels += [Label(family, f"L{i}.{family}", legs)] * len(part)
            spelled += [NAMES[n] for n in part]
            if legs:
                ranges.append(CapturedRange(f"fork.f.{leg}", at, len(labels)))
        ranges.append(CapturedRange(f"L{i}.{family}", first, len(labels)))
    ordered = tuple(sorted(ranges, key=lambda r: (r.first_node, -r.end_node)))
    return labels, spelled, CapturedGraph(len(labels), ordered, nodes=tuple(CapturedNode("kernel", n) for n in spelled))


def replay(decode: list[Segment], dice: np.random.Generator, now: int) -> list[tuple[int, int, int]]:
    """(start, end, lane) in capture order; every fork is joined, lengths and gaps are random."""
    ops = []

    def leg(part: tuple[int, ...], lane: int, at: int) -> int:
        for _ in part:
            at += int(dice.integers(1, 40))
            ops.append((at, at + int(dice.integers(1, 300)), lane))
            at = ops[-1][1]
        return at

    for s in decode:
        joined = max(leg(s.main, s.main_lane, now), leg(s.side, s.side_lane, now))
        now = leg(s.tail, s.main_lane, joined)
    return ops


def trace_of(decode: list[Segment], spelled: list[str], seed: int, n_replays: int) -> Trace:
    """Kineto as torch 2.11 writes it: launches, lanes, names; rows of a replay in no useful order."""
    dice = np.random.default_rng(seed)
    rows = []
    for step in range(n_replays):
        order = dice.permutation(len(spelled))
        ops = replay(decode, dice, 1_000_000 * step)
        rows += [(*ops[i], NAMES.index(spelled[i]), step, int(i)) for i in order]
    start, end, lane, name, step, _ = (np.array([r[i] for r in rows], np.int64) for i in range(6))
    n, none = len(rows), np.full(len(rows), -1, np.int64)
    zeros = np.zeros(n, np.int64)
    lanes = tuple((0, 1, 7 + i) for i in range(6))
    ops = Ops(start, end, zeros, lane, zeros.astype(np.int8), name, zeros, step, none, none, lanes, NAMES, NAMES)
    calls = np.arange(n_replays, dtype=np.int64)
    on = np.ones(n_replays, np.bool_)
    launches = Launches(np.zeros_like(calls), calls, np.zeros_like(calls), 1_000_000 * calls - 10, on, ~on)
    return Trace(Source(ROOT, "kineto", "0" * 64, 1), ops, launches, NO_RANGES, NO_NODES)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(segments, min_size=1, max_size=6), st.integers(0, 10_000), st.integers(1, 4))
def test_family_and_layer_are_right_and_legs_are_right_or_left_open(
    decode: list[Segment], seed: int, n_replays: int
) -> None:
    """Whatever the lengths: every operation gets its own family and layer, and never the other leg."""
    labels, spelled, captured = truth(decode)
    trace = trace_of(decode, spelled, seed, n_replays)
    found = attribute(trace, steps_of(trace), Grammar(), CaptureRecord("k3bench.capture/1", (captured,)))
    dice = np.random.default_rng(seed)
    for step in range(n_replays):
        order = dice.permutation(len(spelled))
        replay(decode, dice, 0)
        for row, node in enumerate(order.tolist(), step * len(spelled)):
            assert found.of_op[row] != UNKNOWN
            got, right = found.table[found.of_op[row]], labels[node]
            assert (got.family, got.segment, got.fork) == (right.family, right.segment, right.fork)
            assert all(a == b or b[1] == "" for a, b in zip(right.legs, got.legs, strict=True))
