"""One word, one room: plan in, both arms of a build pair made runnable, each with a record of what it is.

    recipe ──> inputs (commit, patch, wheel: by digest) ──> place (made once, reused) ──> Build ──> declared change?

Out of scope: how a process runs a build (`k3bench.runnable`), and what differs (`k3bench.change`).
"""

from k3bench.build.pair import build_arm, build_pair

__all__ = ["build_arm", "build_pair"]
