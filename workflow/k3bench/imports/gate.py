"""A summary's own numbers held against one another: counts, lengths, signs, sums. In: facts, metrics. Out: checks.

In our words only; whatever lacks a number is not judged by it. Out of scope: per-request data (`requests.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from k3bench.errors import RecordError
from k3bench.imports.reading import Facts, check
from k3bench.records.measurement import Check

#: Medians of parts do not add up exactly; a wrong denominator is off by a factor.
MAX_SUM_MISS = 0.15
#: Work done / time there was. Seconds taken for milliseconds are off by a thousand.
LOAD_SHARE = (0.02, 3.0)
#: Slowest against typical first token, beyond which one run says little.
MAX_TTFT_SPREAD = 10.0
#: Mean against median, either way: a stall moves a mean by a few times, another unit by a thousand and more.
MAX_MEAN_RATIO = 1e3
#: More slots than any server has.
MAX_LEVEL = 10**6


@dataclass(frozen=True)
class Totals:
    """Counts of a whole run, where the file states them."""

    output_tokens: float | None = None
    duration_s: float | None = None
    closed_loop: bool = True


def refuse_empty(facts: Facts, where: str) -> None:
    """A run in which nothing completed has no numbers. Raises `RecordError`."""
    if facts.completed == 0:
        raise RecordError("no request completed", where=f"{where}: completed", fix="run the benchmark again")


def refuse_impossible(facts: Facts, totals: Totals, at: Mapping[str, str], where: str) -> None:
    """A duration or a level that no run has. `at` names the file's fields. Raises `RecordError`."""
    field = at.get("duration_s") or at.get("duration_ms") or at.get("duration") or "duration"
    if totals.duration_s is not None and totals.duration_s <= 0:
        raise RecordError(
            f"the run took {totals.duration_s:g} s: no measured duration is zero or negative",
            where=f"{where}: {field}",
            fix="restore the file, or run the benchmark again",
        )
    if facts.level is not None and facts.level > MAX_LEVEL:
        raise RecordError(
            f"{facts.level} is no concurrency: the most is {MAX_LEVEL}",
            where=f"{where}: {at.get('level', 'level')}",
            fix="restore the file, or run the benchmark with the level to be compared",
        )


def counted(facts: Facts) -> Facts:
    """What is implied about failures: a file without a failed count has planned - completed."""
    failed, completed, planned = facts.failed, facts.completed, facts.planned
    if completed is not None and failed is not None and planned is None:
        planned = completed + failed
    if completed is not None and planned is not None:
        failed = max(failed or 0, planned - completed)
    return replace(facts, planned=planned, failed=failed)


def summary_checks(facts: Facts, metrics: Mapping[str, float], totals: Totals) -> Iterator[Check]:
    """Every criterion that the summary can witness."""
    if facts.completed is not None and facts.planned is not None:
        yield check(
            "completed_equals_planned",
            facts.completed == facts.planned and not facts.failed,
            f"{facts.completed} of {facts.planned} requests completed, {facts.failed or 0} failed",
        )
    yield from _lengths(facts, totals)
    bad = [f"{name} {value:g}" for name, value in sorted(metrics.items()) if not value > 0]
    yield check("times_positive", not bad, f"{', '.join(bad)}: no measured value is zero or negative")
    yield from _mean(metrics)
    yield from _sum(facts, metrics)
    yield from _load(facts, metrics, totals)


def _lengths(facts: Facts, totals: Totals) -> Iterator[Check]:
    if totals.output_tokens is None or not facts.completed:
        return
    mean = totals.output_tokens / facts.completed
    exact = mean == facts.osl_tokens if facts.osl_tokens else mean == int(mean) and mean >= 1
    wanted = f", {facts.osl_tokens} were asked for" if facts.osl_tokens else ": outputs differ in length"
    yield check("output_length_exact", exact, f"{mean:.2f} output tokens a request{wanted}")


def _mean(metrics: Mapping[str, float]) -> Iterator[Check]:
    """Mean and median of the same requests are of one size."""
    median, mean = metrics.get("tpot_median_ms", 0.0), metrics.get("tpot_mean_ms", 0.0)
    if min(median, mean) <= 0:
        return
    yield check(
        "mean_fits_median",
        max(mean / median, median / mean) <= MAX_MEAN_RATIO,
        f"tpot_median_ms is {median:.4g}, tpot_mean_ms {mean:.4g}: one of them was edited or is in another unit",
    )


def _sum(facts: Facts, metrics: Mapping[str, float]) -> Iterator[Check]:
    """TTFT + TPOT (OSL - 1) is the latency, unless a denominator is not the number of tokens."""
    names = ("ttft_median_ms", "tpot_median_ms", "e2el_median_ms")
    if any(metrics.get(n, 0.0) <= 0 for n in names) or not facts.osl_tokens:
        return
    ttft, tpot, latency = (metrics[n] for n in names)
    total = ttft + tpot * (facts.osl_tokens - 1)
    yield check(
        "times_add_up",
        abs(total / latency - 1) <= MAX_SUM_MISS,
        f"TTFT + TPOT x (OSL - 1) is {total:.4g} ms, the latency {latency:.4g} ms",
    )


def _load(facts: Facts, metrics: Mapping[str, float], totals: Totals) -> Iterator[Check]:
    """Requests x their time against slots x duration: shows times that are in another unit than they say."""
    tpot, ttft = metrics.get("tpot_median_ms", 0.0), metrics.get("ttft_median_ms", 0.0)
    completed, level, osl, duration = facts.completed, facts.level, facts.osl_tokens, totals.duration_s
    if not (completed and level and osl and duration and totals.closed_loop) or min(tpot, ttft, duration) <= 0:
        return
    work = completed * (ttft + tpot * (osl - 1))
    share = work / (min(level, completed) * duration * 1e3)
    low, high = LOAD_SHARE
    yield check(
        "times_fit_duration",
        low <= share <= high,
        f"requests took {share:.2g} of the time that {level} slots had in {duration:g} s: wrong unit?",
    )


def dispersion(metrics: Mapping[str, float]) -> str | None:
    """A remark where first tokens spread so far that one run is not to be trusted."""
    median, p99 = metrics.get("ttft_median_ms", 0.0), metrics.get("ttft_p99_ms", 0.0)
    if median <= 0 or p99 / median <= MAX_TTFT_SPREAD:
        return None
    return f"ttft_p99_ms is {p99 / median:.0f} times the median: first tokens of this run are not alike"
