"""The words of a verdict: what each word and flag of the record means, in sentences. No numbers of its own."""

from __future__ import annotations

from k3bench.metrics import METRICS
from k3bench.records.comparison import Flag, Word

WORD: dict[Word, str] = {
    "improvement": "improvement",
    "regression": "regression",
    "within_noise": "within noise",
    "inconclusive": "inconclusive",
    "disagreement": "disagreement",
    "insufficient_replication": "insufficient replication",
}

FLAG: dict[Flag, str] = {
    "below_margin": "the change is real but smaller than the margin declared in the plan",
    "bimodal": "the runs fall into two groups; look at the run-order figure before quoting the mean",
    "drift": "times drift along the allocation; whole ABBA/BAAB blocks cancel a linear drift in the mean",
    "dropped_runs": "invalid runs dropped their pairs, by criteria written before the data; the details list them",
    "environment_differs": "the recorded builds are not what was declared, or not what was timed (see Outstanding), so"
    " the change may come from something else",
    "environment_unverified": "the environment of both arms is not recorded whole by this tool, so a difference besides"
    " the declared change cannot be excluded",
    "floor_assumed": "the floor is the default: three or more zero-change observations would show what place, time"
    " and process do",
    "incomplete": "planned observations or pairs are missing; they are rows below and counted",
    "levels_share_start": "levels were measured after the same start, so they corroborate within an observation and do"
    " not replicate it",
    "missing_not_at_random": "one arm lost more runs than the other: look at the reasons before the numbers",
    "nonparametric_disagrees": "a rank or sign-flip test does not agree with the t interval about significance",
    "not_steady": "the second half of runs differs from the first: more warm-up is needed",
    "order_effect": "pairs that ran before-first differ from pairs that ran after-first; the interval allows for it",
    "outliers": "pairs lie far from the others; they are counted, and the result without them is printed beside",
    "outliers_decide": "the word would change without the flagged pairs, so the level is called inconclusive",
    "shared_process": "both arms ran in one process (restart: none): process-to-process variation is in the floor only",
    "size_differs": "all observations point the same way, but their sizes differ by more than their own noise",
    "unreplicated": "one observation only: nothing is known about another rack or build",
    "zero_change_called": "zero-change observations were called different: the pipeline or the machine is not at rest",
}

BECAUSE = {
    "interval_too_wide": "the interval is too wide to tell",
    "significant_alone": "significant alone, not over the sweep",
    "primary_not_called": "significant alone, but the primary level was not called",
    "outliers_decide": "flagged pairs decide it",
}

AGREEMENT = {
    "agree": "agree",
    "size_differs": "agree in direction, not in size",
    "disagree": "disagree",
    "not_testable": "cannot be tested for agreement",
}

LABEL = {
    "tpot_ms": "TPOT",
    "tpot_median_ms": "TPOT",
    "ttft_median_ms": "TTFT",
    "itl_median_ms": "ITL",
    "itl_mean_ms": "mean ITL",
    "step_p99_ms": "step p99",
    "tps_user": "tokens/s per user",
    "output_tok_s": "output throughput",
}


def label(metric: str) -> str:
    """The short name that a metric has in sentences."""
    return LABEL.get(metric, metric)


def formula(metric: str) -> str:
    """The metric's definition, or nothing for one that the registry does not hold."""
    return METRICS[metric].formula if metric in METRICS else ""


def side(better: str, *, good: bool) -> str:
    """`lower` or `higher`: the direction that is good (or bad) for a metric."""
    up = (better == "higher") == good
    return "higher" if up else "lower"
