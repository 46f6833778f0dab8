"""Named ranges around a step's ops, so that a trace can tell layer, family and leg. In: names. Out: context managers.

`L<layer>.<family>` holds every op of a step; `fork.<name>.main` and `fork.<name>.side` hold the legs of a fork inside
it, forked or not. They are opened while a step is captured or profiled; a replay needs none.
Out of scope: reading traces, what a graph holds (`captured.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

#: Opens a range of that name.
Ranges = Callable[[str], AbstractContextManager[object]]

_NOTHING = nullcontext()


def no_ranges(name: str) -> AbstractContextManager[object]:
    """Nothing to attribute to: one shared manager, so that an eager timed step pays next to nothing."""
    return _NOTHING


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A push/pop range; open while its ops are captured, so that a trace of replays can be attributed."""
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()
