"""From the pairs of a sweep to a word for every level: the rule, and nothing but the rule.

In: `Pairs` shaped (..., level, observation, pair), down is good. Out: `Verdict` arrays shaped (..., level).
Out of scope: records, flags that need more than pairs, sentences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from k3bench.compare.agreement import Agreement, agreement
from k3bench.compare.interval import Estimate, PerObservation, per_observation
from k3bench.compare.multiplicity import gatekept, holm, holm_beside
from k3bench.compare.pairs import Bools, Floats, Ints, Pairs
from k3bench.compare.pooled import DEFAULT_FLOOR, MIN_PAIRS, Pooled, pool

#: Codes in the arrays; the index is the code.
WORDS = (
    "insufficient_replication",
    "disagreement",
    "improvement",
    "regression",
    "within_noise",
    "inconclusive",
)
INSUFFICIENT, DISAGREEMENT, IMPROVEMENT, REGRESSION, WITHIN_NOISE, INCONCLUSIVE = range(6)


@dataclass(frozen=True)
class Rule:
    """What is fixed before the data. `primary` is the index of the primary level, None for Holm over all levels."""

    margin: float = 0.02
    alpha: float = 0.05
    tau0: float = DEFAULT_FLOOR
    primary: int | None = None
    #: looks declared in the plan; each is tested at alpha/looks
    looks: int = 1
    #: use the order-adjusted estimate of an observation whose order effect shows (the plain one is s^2/n always)
    adjust_order: bool = True

    @property
    def bound(self) -> float:
        """The margin in log units."""
        return math.log1p(self.margin)

    @property
    def alpha_a_look(self) -> float:
        """What one look may spend."""
        return self.alpha / self.looks


@dataclass(frozen=True)
class Verdict:
    """Everything the rule computed on its way to `code`; each array has one entry a level."""

    code: Ints
    each: PerObservation
    #: what entered the pooled estimate, one an observation
    used: Estimate
    usable: Bools
    pooled: Pooled
    agreement: Agreement
    p: Floats
    p_deciding: Floats
    p_het_deciding: Floats
    significant_alone: Bools
    size_differs: Bools
    below_margin: Bools
    non_inferior_p: Floats

    def word(self, *index: int) -> str:
        """The word at one level."""
        return WORDS[int(self.code[index])]

    def gate_is_shut(self, index: tuple[int, ...], rule: Rule) -> bool:
        """Whether the primary level bars the one at `index` (another), whatever the p of that one is."""
        if rule.primary is None:
            return False
        gate = _gate(self.p, self.code == DISAGREEMENT, rule.primary)[index[:-1]]
        return not gate < rule.alpha_a_look


def judge(pairs: Pairs, rule: Rule, *, standing: Verdict | None = None) -> Verdict:
    """The verdict of every level, all observations counted; those below four valid pairs are set aside.

    `standing` is the verdict of the same sweep with every pair in: which observations are usable and whether they agree
    is then taken from it, since leaving extreme pairs out makes noise look smaller than it is.
    """
    each = per_observation(pairs)
    usable = each.n >= MIN_PAIRS if standing is None else standing.usable & (each.n >= 2)
    used = each.reported() if rule.adjust_order else each.plain
    pooled, agree = pool(used, usable, rule.tau0), agreement(used, usable, rule.tau0)
    p, p_het = pooled.p(), _deciding_p_het(agree.p, rule)
    differ = (p_het < rule.alpha) & (pooled.k >= 2)
    disagree = differ & ~agree.same_side if standing is None else standing.code == DISAGREEMENT
    p_deciding = _deciding_p(p, disagree, rule)
    code, alone = _decide(pooled, disagree, p, p_deciding, rule)
    within = _inside(pooled, rule)
    called = (code == IMPROVEMENT) | (code == REGRESSION)
    return Verdict(
        code,
        each,
        used,
        usable,
        pooled,
        agree,
        p,
        p_deciding,
        p_het,
        alone,
        differ & agree.same_side,
        called & within,
        pooled.p_not_above(rule.bound),
    )


def _decide(pooled: Pooled, disagree: Bools, p: Floats, p_deciding: Floats, rule: Rule) -> tuple[Ints, Bools]:
    """The order of the questions is the rule: enough, agreeing, significant, inside the margin, else inconclusive."""
    low, high = pooled.interval(0.95)
    one_side = (high < 0) | (low > 0)
    significant = one_side & (p_deciding < rule.alpha_a_look)
    alone = one_side & (p < rule.alpha_a_look) & ~significant
    code = np.select(
        [pooled.k == 0, disagree, significant & (high < 0), significant & (low > 0), _inside(pooled, rule) & ~alone],
        [INSUFFICIENT, DISAGREEMENT, IMPROVEMENT, REGRESSION, WITHIN_NOISE],
        default=INCONCLUSIVE,
    )
    return code, alone & (code == INCONCLUSIVE)


def _inside(pooled: Pooled, rule: Rule) -> Bools:
    """Both one-sided tests against the margin pass: with one look, the 90 % interval lies inside it."""
    worst = np.maximum(pooled.p_not_above(rule.bound), pooled.p_not_below(-rule.bound))
    return worst < rule.alpha_a_look


def _deciding_p(p: Floats, disagree: Bools, rule: Rule) -> Floats:
    if rule.primary is None:
        return holm(p)
    return gatekept(p, rule.primary, _gate(p, disagree, rule.primary))


def _gate(p: Floats, disagree: Bools, primary: int) -> Floats:
    """The p with which the primary level opens the way to the others: 1 where its observations disagree."""
    return np.where(disagree[..., primary], 1.0, p[..., primary])


def _deciding_p_het(p_het: Floats, rule: Rule) -> Floats:
    return holm(p_het) if rule.primary is None else holm_beside(p_het, rule.primary)
