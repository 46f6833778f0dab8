"""Do residency, shares, exposure and the claimed gain fit each other?

In: `Figures`. Out: findings. A share whose denominator is not shown implies one; it is printed as implied.
"""

from __future__ import annotations

from collections.abc import Iterator

from k3bench.compare.check_pr.evidence import Exposure, Family
from k3bench.compare.check_pr.figures import Figures
from k3bench.compare.check_pr.finding import Finding
from k3bench.compare.published import Printed


def mechanism(figures: Figures) -> Iterator[Finding]:
    """Shares, then exposure against zero residency, then the gain against what the trace can explain."""
    for family in figures.families:
        yield from _share(family)
    for exposure in figures.exposures:
        yield from _exposure(exposure, figures)
    yield from _gain(figures)


def _share(f: Family) -> Iterator[Finding]:
    if f.share_after is None or f.residency_after is None or not f.share_after.value:
        return
    implied, low, high = implied_range(f.residency_after, f.share_after)
    if f.busy_after is not None:
        exact = 100.0 * f.residency_after.value / f.busy_after.value
        fits = low <= f.busy_after.ends[1] and f.busy_after.ends[0] <= high
        status, word = ("holds", "follows") if fits else ("does_not_follow", "does not follow")
        text = f"{f.name}: {f.share_after.value:g} % {word} from {f.residency_after.value:g}/{f.busy_after.value:g} ms"
        yield Finding(status, "share", f"{text} = {exact:.1f} %", {"share_pct": exact})  # type: ignore[arg-type]
        return
    text = (
        f"{f.name}: {f.share_after.value:g} % is {f.residency_after.value:g} ms over an after-change busy time that is "
        f"not shown; it implies {implied:.3f} ms ({low:.3f} to {high:.3f})"
    )
    values = {"implied_busy_after_ms": implied, "low_ms": low, "high_ms": high}
    if f.busy_before is not None:
        over_before = 100.0 * f.residency_after.value / f.busy_before.value
        text += f"; over the {f.busy_before.value:g} ms that is shown it would be {over_before:.1f} %"
        values["share_of_busy_before_pct"] = over_before
        if f.share_after.admits(over_before):
            yield Finding("holds", "share", f"{f.name}: {f.share_after.value:g} % is the share of busy before", values)
            return
    yield Finding("does_not_follow", "share", text, values)


def implied_range(residency: Printed, share: Printed) -> tuple[float, float, float]:
    """Busy time that a share implies, and what the share's rounding allows."""
    return (
        100.0 * residency.value / share.value,
        100.0 * residency.value / share.ends[1],
        100.0 * residency.value / share.ends[0] if share.ends[0] > 0 else float("inf"),
    )


def _exposure(e: Exposure, figures: Figures) -> Iterator[Finding]:
    """Partly hidden work in a family of zero two-stream residency needs another definition of hidden."""
    hidden = e.percent.value if e.word == "hidden" else 100.0 - e.percent.value
    family = next((f for f in figures.families if f.name == e.family), None)
    if family is None or family.residency_before is None:
        return
    if family.residency_before.value == 0.0 and hidden > 0:
        yield Finding(
            "does_not_follow",
            "exposure",
            f"{e.percent.value:g} % {e.word} in {family.name} leaves {hidden:g} % hidden, yet its two-stream residency "
            f"is {family.residency_before.value:.4f} ms: both hold only under a definition of hidden that is not given "
            "(another family's kernels, or overlap on one stream)",
            {"hidden_pct": hidden, "residency_before_ms": family.residency_before.value},
        )


def _gain(figures: Figures) -> Iterator[Finding]:
    overlap = [f.residency_after.value for f in figures.families if f.residency_after is not None]
    saved = [s for f in figures.families if (s := _saved(f)) is not None]
    if not overlap:
        return
    ceiling = sum(overlap)
    for row in figures.primary().values():
        if row.before is None or row.after is None:
            continue
        gain = row.before.value - row.after.value
        values = {"gain_ms": gain, "ceiling_ms": ceiling}
        text = f"observation {row.observation} saved {gain:.3f} ms a step; all overlap seen is {ceiling:.3f} ms"
        if len(saved) == len(overlap):
            values["explained_ms"] = sum(saved)
            text += f", of which the busy times explain {sum(saved):.3f} ms"
        fits = gain <= ceiling
        text += "" if fits else ": more than overlap can give"
        beyond = len(saved) == len(overlap) and gain > 1.2 * sum(saved)
        if fits and beyond:
            text += f": {gain - sum(saved):.2f} ms more than the trace explains"
        yield Finding("holds" if fits and not beyond else "does_not_follow", "gain", text, values)


def _saved(f: Family) -> float | None:
    if f.busy_before is None:
        return None
    if f.busy_after is not None:
        return f.busy_before.value - f.busy_after.value
    if f.share_after is None or f.residency_after is None or not f.share_after.value:
        return None
    return f.busy_before.value - 100.0 * f.residency_after.value / f.share_after.value
