"""Random effects by every customary method, so that a reader can hold our lines against their own software.

In: estimates and variances. Out: one line a method. Only Paule-Mandel with `adhoc` is reported (`next_rack`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from k3bench.compare.pairs import Floats

METHODS = ("FE", "DL", "PM", "REML")
TESTS = ("z", "knha", "adhoc")


@dataclass(frozen=True)
class MetaLine:
    """One method with one test; `knha` scales by the spread, `adhoc` never below 1."""

    estimate: float
    se: float
    ci95: tuple[float, float]
    p: float
    q: float
    q_p: float
    tau2: float
    i2_pct: float
    pi95: tuple[float, float]


def tau_squared(effects: Floats, variances: Floats, method: str) -> float:
    """Variance between studies, never negative."""
    if method == "FE":
        return 0.0
    weight = 1.0 / variances
    q, k = cochran_q(effects, variances), len(effects)
    moment = max(0.0, (q - (k - 1)) / (weight.sum() - (weight**2).sum() / weight.sum()))
    if method == "DL":
        return moment
    return _root(_paule_mandel if method == "PM" else _restricted_score, effects, variances)


def cochran_q(effects: Floats, variances: Floats) -> float:
    """Weighted squared deviations from the fixed-effect mean."""
    weight = 1.0 / variances
    return float((weight * (effects - (weight * effects).sum() / weight.sum()) ** 2).sum())


def _paule_mandel(effects: Floats, variances: Floats, tau2: float) -> float:
    """Q with the total variances less what it should be."""
    return cochran_q(effects, variances + tau2) - (len(effects) - 1)


def _restricted_score(effects: Floats, variances: Floats, tau2: float) -> float:
    """Derivative of the restricted log likelihood, times two."""
    w = 1.0 / (variances + tau2)
    residual = effects - (w * effects).sum() / w.sum()
    return float((w**2 * residual**2).sum() - w.sum() + (w**2).sum() / w.sum())


def _root(equation: Callable[[Floats, Floats, float], float], effects: Floats, variances: Floats) -> float:
    """Where the falling `equation` crosses zero, 0 if it starts below.

    Solved to the last digit: `combine_effects` stops at 1e-5 of the equation, and returns 0 when asked for more.
    """
    if equation(effects, variances, 0.0) <= 0:
        return 0.0
    top = max(float(np.var(effects)), 1e-12)
    while equation(effects, variances, top) > 0:
        top *= 2.0
    return float(optimize.brentq(lambda t: equation(effects, variances, t), 0.0, top, xtol=1e-16, rtol=1e-14))


def meta_line(effects: Floats, variances: Floats, method: str, test: str) -> MetaLine:
    """Estimate, interval and prediction interval; t with k-1 degrees of freedom except for z."""
    effects, variances = np.asarray(effects, dtype=float), np.asarray(variances, dtype=float)
    k, q = len(effects), cochran_q(effects, variances)
    tau2 = tau_squared(effects, variances, method)
    weight = 1.0 / (variances + tau2)
    estimate = float((weight * effects).sum() / weight.sum())
    scale2 = cochran_q(effects, variances + tau2) / (k - 1)
    factor = {"z": 1.0, "knha": scale2, "adhoc": max(1.0, scale2)}[test]
    se = float(np.sqrt(factor / weight.sum()))
    law = stats.norm if test == "z" else stats.t(k - 1)
    crit = float(law.ppf(0.975))
    reach = crit * float(np.sqrt(tau2 + se**2))
    return MetaLine(
        estimate,
        se,
        (estimate - crit * se, estimate + crit * se),
        float(2 * law.sf(abs(estimate) / se)) if se > 0 else float(estimate == 0),
        q,
        float(stats.chi2.sf(q, k - 1)),
        tau2,
        100.0 * i_squared(q, k),
        (estimate - reach, estimate + reach),
    )


def i_squared(q: float, k: int) -> float:
    """max(0, 1 - (k-1)/Q)."""
    return max(0.0, 1.0 - (k - 1) / q) if q > 0 else 0.0
