"""Several levels of one metric: which p decides at which level.

In: raw p-values along the last axis, NaN where a level has none. Out: adjusted ones. Intervals stay unadjusted.
"""

from __future__ import annotations

import numpy as np

from k3bench.compare.pairs import Floats


def holm(p: Floats) -> Floats:
    """Holm's step-down adjustment along the last axis, vectorised; NaN entries are no members of the family."""
    order = np.argsort(p, axis=-1)  # NaN sorts last
    members = np.isfinite(p).sum(axis=-1, keepdims=True)
    steps = members - np.arange(p.shape[-1])
    scaled = np.take_along_axis(p, order, axis=-1) * np.maximum(steps, 1)
    adjusted = np.minimum(np.maximum.accumulate(scaled, axis=-1), 1.0)
    out = np.empty_like(adjusted)
    np.put_along_axis(out, order, adjusted, axis=-1)
    return np.where(np.isnan(p), np.nan, out)


def gatekept(p: Floats, primary: int, passes_at: Floats) -> Floats:
    """The primary level keeps its raw p; the others get Holm among themselves, never below the gate.

    `passes_at` is the p with which the primary opens the gate (1 where it is not called), so that no other level is
    called unless the primary is.
    """
    others = np.delete(p, primary, axis=-1)
    gate = np.where(np.isnan(passes_at), 1.0, passes_at)[..., None]
    return np.insert(np.maximum(holm(others), gate), primary, p[..., primary], axis=-1)


def holm_beside(p: Floats, primary: int) -> Floats:
    """The primary raw, the others by Holm among themselves, without a gate (used for agreement)."""
    return np.insert(holm(np.delete(p, primary, axis=-1)), primary, p[..., primary], axis=-1)
