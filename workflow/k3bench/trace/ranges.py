"""Which named ranges were open on a thread at a time. In: ranges, questions (thread, time). Out: range indices.

Out of scope: what the names mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3bench.trace.ops import Ints, Ranges


def only(ranges: Ranges, wanted: Callable[[str], bool]) -> Ranges:
    """The ranges whose name is wanted; every distinct name is asked once."""
    verdict = {text: wanted(text) for text in set(ranges.text)}
    index = [i for i, text in enumerate(ranges.text) if verdict[text]]
    chosen = np.array(index, np.int64)
    return Ranges(ranges.thread[chosen], ranges.start[chosen], ranges.end[chosen], tuple(ranges.text[i] for i in index))


def innermost(ranges: Ranges, thread: Ints, time: Ints) -> list[list[int]]:
    """For every question the open ranges as indices, innermost first. A range holds its start and its end."""
    answers: list[list[int]] = [[] for _ in range(len(time))]
    for one in np.unique(thread).tolist():
        mine = np.flatnonzero(ranges.thread == one)
        opening = mine[np.lexsort((-ranges.end[mine], ranges.start[mine]))].tolist()
        asked = np.flatnonzero(thread == one)
        _answer(ranges, opening, asked[np.argsort(time[asked], kind="stable")].tolist(), time, answers)
    return answers


def _answer(ranges: Ranges, opening: list[int], asked: list[int], time: Ints, answers: list[list[int]]) -> None:
    """Both lists run in time order; ranges that have ended are forgotten."""
    open_now: list[int] = []
    at = 0
    for question in asked:
        now = int(time[question])
        while at < len(opening) and ranges.start[opening[at]] <= now:
            open_now.append(opening[at])
            at += 1
        open_now = [r for r in open_now if ranges.end[r] >= now]
        answers[question] = open_now[::-1]
