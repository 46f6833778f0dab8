"""Time of one launch inside a CUDA graph of many, each with other weights, so that none is found in the cache.

In: a function of an index, and how many sets of inputs it has. Out: microseconds a launch. Needs a GPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

#: Weights that pass through between two uses of one set: several times the L2 of an H200.
COLD_BYTES = 256 << 20
#: Launches of one graph: enough that its start and end do not count.
LAUNCHES = 48
REPLAYS = 7


def copies(size: int) -> int:
    """How many sets of `size` bytes make every use a cold one."""
    return max(3, min(192, -(-COLD_BYTES // size)))


def launch_us(call: Callable[[int], object], sets: int) -> float:
    """Median over replays of a graph of launches, each on the next set."""
    launches = max(LAUNCHES, sets)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            call(i % sets)
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times)
