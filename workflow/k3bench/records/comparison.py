"""What `compare` found out: one record a campaign, with every number a report may print and nothing of how to print it.

In: what `compare.campaign` computed. Out: `k3bench.comparison/1`. Out of scope: sentences, rounding, layout (publish).

Log-ratios are ln(after/before); percentages are 100 (exp(log) - 1). A number that cannot be had is None, never 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from k3bench.records.base import Digest, Finite, Grown, Model, Name, PositiveMs, Record

Word = Literal["improvement", "regression", "within_noise", "inconclusive", "disagreement", "insufficient_replication"]
#: Every flag a verdict can carry. Publish explains each in one line; a flag never changes the word by itself,
#: except `outliers_decide`, which makes the word `inconclusive`.
Flag = Literal[
    "below_margin",
    "bimodal",
    "drift",
    "dropped_runs",
    "environment_differs",
    "environment_unverified",
    "floor_assumed",
    "incomplete",
    "levels_share_start",
    "missing_not_at_random",
    "nonparametric_disagrees",
    "not_steady",
    "order_effect",
    "outliers",
    "outliers_decide",
    "shared_process",
    "size_differs",
    "unreplicated",
    "zero_change_called",
]
Arm = Literal["before", "after"]
AgreementWord = Literal["agree", "size_differs", "disagree", "not_testable"]
Share = float  # 0..1


class IntervalPct(Model):
    """Bounds of a delta in percent, low <= high."""

    low_pct: Finite
    high_pct: Finite


class RangeBand(Model):
    """100 (max/min - 1) of n zero-change runs. Printed with its false-positive rate; decides nothing."""

    n_runs: int
    band_pct: Finite | None = None
    false_positive_rate: float | None = None
    source: str = ""


class DeltaBand(Model):
    """What a zero change of the same design stays inside with 95 %."""

    half_width_pct: Finite
    n_observations: int
    n_pairs: int
    df: Finite


class Agreement(Model):
    """Do the observations agree with each other, given their own noise and the floor? Over all usable observations."""

    word: AgreementWord
    n_observations: int
    f: Finite | None = None
    df_between: Finite | None = None
    df_within: Finite | None = None
    p: float | None = None
    p_holm: float | None = None
    q: Finite | None = None
    i2_pct: float | None = None
    #: exactly two observations: 100 |r2/r1 - 1|, the earlier first
    ratio_gap_pct: Finite | None = None
    #: two or more: 100 (max r / min r - 1)
    spread_pct: Finite | None = None


class NextRack(Model):
    """What a rack not tested may show (three or more observations; random effects, Paule-Mandel). Informative."""

    n_observations: int
    tau_log: Finite
    delta_pct: Finite
    ci95: IntervalPct
    pi95: IntervalPct
    expected_on_further_racks: bool


class WithoutOutliers(Model):
    """The same level with every flagged pair left out, to be printed beside the verdict that counts them."""

    word: Word
    delta_pct: Finite | None = None
    ci95: IntervalPct | None = None
    n_pairs: int
    n_flagged: int


class LevelResult(Model):
    """One concurrency level of one metric, all usable observations together."""

    concurrency: int
    is_primary: bool
    word: Word
    #: why an inconclusive level is so
    inconclusive_because: (
        Literal["interval_too_wide", "significant_alone", "primary_not_called", "outliers_decide"] | None
    ) = None
    flags: tuple[Flag, ...] = ()
    n_observations: int
    n_pairs: int
    before_median: Finite | None = None
    after_median: Finite | None = None
    estimate_log: Finite | None = None
    se_log: Finite | None = None
    df: Finite | None = None
    delta_pct: Finite | None = None
    ci95: IntervalPct | None = None
    ci90: IntervalPct | None = None
    #: half the 95 % interval, in log units, as a percentage
    half_width_pct: Finite | None = None
    p: float | None = None
    #: the p that decided: raw for the primary level, Holm among the others
    p_holm: float | None = None
    margin_pct: Finite
    #: "slower by the margin" is excluded at 95 % one-sided; None where it cannot be tested
    non_inferior: bool | None = None
    non_inferior_p: float | None = None
    #: one-sided 95 % bound on the worse side
    worst_case_pct: Finite | None = None
    blocks_to_settle: int | None = None
    agreement: Agreement
    next_rack: NextRack | None = None
    range_band: RangeBand | None = None
    delta_band: DeltaBand | None = None
    #: the seed's rule, |delta| > range band, for continuity
    beyond_range_band: bool | None = None
    without_outliers: WithoutOutliers | None = None


class MetricResult(Model):
    """The levels of a metric other than the headline's."""

    metric: Name
    unit: str
    better: Literal["lower", "higher"]
    #: the metric it restates at every level, if it does
    restates: str | None = None
    levels: tuple[LevelResult, ...]


class DroppedPair(Model):
    """A pair left out whole, because a run of it was invalid by criteria written before the data."""

    concurrency: int
    block: int
    pair: int
    arm: Arm | None = None
    reason: str


class ObservationLevel(Model):
    """One observation at one level. `set_aside` is the reason why it does not enter the pooled estimate, or None."""

    concurrency: int
    n_pairs: int
    set_aside: str | None = None
    before_median: Finite | None = None
    after_median: Finite | None = None
    estimate_log: Finite | None = None
    sd_log: Finite | None = None
    delta_pct: Finite | None = None
    ci95: IntervalPct | None = None
    #: with the floor: what the observation says about other observations
    own_ci95: IntervalPct | None = None
    p: float | None = None
    interval_basis: Literal["pairs", "order_adjusted"] = "pairs"
    order_p: float | None = None
    sign_flip_p: float | None = None
    wilcoxon_p: float | None = None
    #: change of this side's median against the median of the other observations' medians
    before_moved_pct: Finite | None = None
    after_moved_pct: Finite | None = None
    moved: Literal["before", "after", "both", "neither"] | None = None


class ObservationRow(Grown):
    """A planned observation, present or not. All planned ones are rows.

    `made_from` (arm -> commit, wheel, image or sources) is told where builds were made; a pair that only names what is
    installed has none.
    """

    ADDED: ClassVar[tuple[str, ...]] = ("rebuilt", "made_from")
    observation: Name
    rack: str | None = None
    build_pair: str | None = None
    rebuilt: bool = False
    made_from: dict[Arm, str] = Field(default_factory=dict)
    job: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    zero_change: bool
    status: Literal["complete", "incomplete", "missing"]
    reason: str | None = None
    order: tuple[str, ...] = ()
    n_runs_planned: int
    n_runs_valid: int
    levels: tuple[ObservationLevel, ...] = ()
    dropped_pairs: tuple[DroppedPair, ...] = ()


class RunValue(Model):
    """One run at one level: a dot in a figure. `position` counts runs within the observation from 1."""

    record_id: str
    digest: Digest | None = None
    observation: Name
    block: int
    position: int
    arm: Arm
    concurrency: int
    value: Finite | None = None
    valid: bool
    reason: str | None = None


class Restatement(Model):
    """`metric` says the same as `of`: it is no witness."""

    metric: str
    of: str
    kind: Literal["exact_ratio", "exact_product", "near"]
    #: mean of metric/of, or of metric*of
    factor: Finite | None = None
    cv: Finite | None = None
    r2: Finite | None = None
    concurrency: int | None = None
    declared: bool = False


class LevelCorrelation(Model):
    """Correlation of pair log-ratios between two levels; above 0.5 they count as one witness."""

    concurrency_a: int
    concurrency_b: int
    r: Finite
    shares_start: bool
    counts_as_one: bool


class Witnesses(Model):
    """Who corroborates the headline (same allocation), and how often it was replicated (other allocations)."""

    restatements: tuple[Restatement, ...] = ()
    #: declared identities that the data contradict
    contradicted: tuple[str, ...] = ()
    n_metrics: int
    effective_number: Finite | None = None
    level_correlations: tuple[LevelCorrelation, ...] = ()
    corroborating: tuple[str, ...] = ()
    n_corroborations: int
    n_replications: int


class Finding(Model):
    """One thing noticed about the runs' health. `flagged` says whether it passed its threshold."""

    kind: Literal["outlier", "drift", "warm_up", "not_steady", "bimodal", "missing_not_at_random", "clocks", "throttle"]
    flagged: bool
    observation: str | None = None
    concurrency: int | None = None
    arm: Arm | None = None
    where: str = ""
    statistic: str = ""
    value: Finite | None = None
    threshold: Finite | None = None
    p: float | None = None


class Health(Model):
    """Counts of runs and what was noticed about them. Nothing here drops a value."""

    n_runs_planned: int
    n_runs_measured: int
    n_runs_valid: int
    n_invalid_before: int
    n_invalid_after: int
    missing_p: float | None = None
    reasons: dict[str, int] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


#: Log units: no floor is smaller, whatever zero-change observations show.
LEAST_FLOOR = 0.003


class Floor(Model):
    """tau0: the standard deviation, between observations, of the delta of a zero change; never below the least.

    `assumed` is false where zero-change observations were asked, also where they showed less than the least.
    """

    tau0_log: Finite
    assumed: bool
    n_zero_change_observations: int = 0
    dates: tuple[str, ...] = ()
    source: str | None = None


class ZeroChange(Model):
    """What the zero-change observations show, and whether the pipeline called something that cannot be there."""

    n_observations: int
    levels: tuple[LevelResult, ...] = ()
    run_sd_pct: dict[str, Finite] = Field(default_factory=dict)
    #: their own spread, also below the least floor (older records have the larger of the two here)
    tau_log: Finite | None = None
    called: bool = False
    called_p_holm: float | None = None
    #: too improbable (Holm p < 0.001): its bands and floor are not used
    blocked: bool = False


class FamilyMechanism(Grown):
    """Residency of one family in one arm's profiled runs, per decode step: means over the ranks, and the worst rank."""

    ADDED: ClassVar[tuple[str, ...]] = ("worst_rank_residency_ms_per_step",)
    arm: Arm
    family: str
    segments_per_step: Finite | None = None
    busy_ms_per_step: Finite | None = None
    two_stream_residency_ms_per_step: Finite | None = None
    share_of_busy_pct: Finite | None = None
    headroom_ms_per_step: Finite | None = None
    profiled_over_unprofiled: Finite | None = None
    #: the least residency of any rank; None for a trace of one rank
    worst_rank_residency_ms_per_step: Finite | None = None


class TracesOf(Model):
    """What was profiled of one observation at one level: traces of each arm, one a rank."""

    observation: Name
    concurrency: int | None = None
    n_before: int
    n_after: int


class Mechanism(Grown):
    """Does the trace explain the gain? Times are per decode step."""

    ADDED: ClassVar[tuple[str, ...]] = ("n_collectives", "collectives_concurrent_ns", "same_lane_ms_per_step", "traces")
    families: tuple[FamilyMechanism, ...]
    gain_ms_per_step: Finite | None = None
    #: busy time that the change removed: what the trace explains
    explained_ms_per_step: Finite | None = None
    #: all of the overlap: more than this it cannot have gained by overlap inside the families
    ceiling_ms_per_step: Finite | None = None
    ideal_ms_per_step: Finite | None = None
    achieved_share: Finite | None = None
    #: the low end of the gain's interval lies above the ideal
    beyond_ceiling: bool | None = None
    sources: tuple[str, ...] = ()
    traces: tuple[TracesOf, ...] = ()
    #: kernels of collectives in all traces, and the time in which two of a device ran at once; None without any
    n_collectives: int | None = None
    collectives_concurrent_ns: int | None = None
    #: before the change, kernels on top of each other in one lane, over all families; None below 1 % of busy
    same_lane_ms_per_step: Finite | None = None


class EqualityRow(Grown):
    """One probe of sameness. A control that is caught is a pass."""

    ADDED: ClassVar[tuple[str, ...]] = ("other_builds",)
    kind: Literal["fork", "greedy", "control", "accuracy"]
    status: Literal["pass", "fail", "not_run"]
    what: str
    preset: str | None = None
    batch: int | None = None
    policy: str | None = None
    reason: str | None = None
    #: it ran, and not on the builds that its observation timed: it says nothing about these
    other_builds: bool = False


class Outstanding(Model):
    """Evidence that this record does not hold."""

    kind: Literal["time", "residency", "equality", "replication", "zero_change", "observation", "environment"]
    what: str
    fix: str = ""


class Headline(Model):
    """The verdict of the primary level, with the counts over all levels."""

    word: Word
    concurrency: int
    metric: str
    delta_pct: Finite | None = None
    ci95: IntervalPct | None = None
    n_observations: int
    n_planned: int
    agreement: AgreementWord
    agreement_p: float | None = None
    flags: tuple[Flag, ...] = ()
    n_levels: int
    levels_by_word: dict[Word, int]
    n_non_inferior: int
    #: every level passed its own non-inferiority test; None where a level was not tested or its observations disagree
    regresses_nothing: bool | None = None
    margin_pct: Finite


class InputRef(Model):
    """A record that went in. An allocation vouches for its points by digest; `runs` names each of them."""

    kind: Literal["plan", "build", "allocation", "reported", "residency", "equivalence", "noise"]
    record_id: str
    digest: Digest


class Provenance(Model):
    """Where and from what the numbers come. Values that differ between runs are listed, sorted."""

    engine: str | None = None
    preset: str | None = None
    hardware_class: str | None = None
    restart: str | None = None
    commits: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    versions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    environment: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    workload: dict[str, str] = Field(default_factory=dict)
    declared_change: str | None = None
    first_started_at: str | None = None
    last_ended_at: str | None = None
    seed: int | None = None
    source_title: str | None = None
    source_url: str | None = None
    notes: tuple[str, ...] = ()


class ReportedFigure(Model):
    """One published cell and what its own numbers give. None where the source shows nothing."""

    observation: str
    concurrency: int
    before_ms: PositiveMs | None = None
    after_ms: PositiveMs | None = None
    published_delta_pct: Finite | None = None
    recomputed_delta_pct: Finite | None = None
    #: the recomputed value rounds to the published one; None where it cannot be recomputed
    reproduces: bool | None = None
    published_band_pct: Finite | None = None
    band_runs: int | None = None
    beyond_band: bool | None = None
    #: p of |delta| over a range of that many runs (one before, one after, normal noise)
    range_rule_p: float | None = None


class ReportedSummary(Model):
    """A published claim seen through its own numbers: labelled "not a verdict"."""

    figures: tuple[ReportedFigure, ...]
    published_ratio_gap_pct: Finite | None = None
    published_ratio_gap_between: tuple[str, ...] = ()
    ratio_gap_pct: Finite | None = None
    #: what rounding of the printed inputs allows the gap to be
    ratio_gap_range_pct: tuple[float, float] | None = None
    spread_pct: Finite | None = None
    spread_over: tuple[str, ...] = ()
    #: one-sample t over the observations' log-ratios at the primary level (three or more), not a verdict
    t_delta_pct: Finite | None = None
    t_ci95: IntervalPct | None = None
    t_p: float | None = None
    t_pi95: IntervalPct | None = None
    not_shown: tuple[str, ...] = ()


class Comparison(Record):
    """`k3bench.comparison/1`."""

    SCHEMA: ClassVar[str] = "k3bench.comparison/1"
    schema_: Literal["k3bench.comparison/1"] = Field(default="k3bench.comparison/1", alias="schema")
    campaign: Name
    title: str
    kind: Literal["measured", "reported"]
    simulated: bool
    recipe_digest: Digest | None = None
    inputs: tuple[InputRef, ...]
    metric: str
    metric_unit: str
    better: Literal["lower", "higher"]
    primary_level: int
    alpha: float
    margin_pct: Finite
    looks: int = 1
    floor: Floor
    headline: Headline
    levels: tuple[LevelResult, ...]
    other_metrics: tuple[MetricResult, ...] = ()
    observations: tuple[ObservationRow, ...]
    runs: tuple[RunValue, ...] = ()
    witnesses: Witnesses | None = None
    health: Health
    zero_change: ZeroChange | None = None
    mechanism: Mechanism | None = None
    equality: tuple[EqualityRow, ...] | None = None
    outstanding: tuple[Outstanding, ...] = ()
    reported: ReportedSummary | None = None
    provenance: Provenance
