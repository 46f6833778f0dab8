"""Mechanism, equality and independence: the evidence beside the time, or the line that says it is missing.

In: the comparison record (as `At`). Out: blocks. Out of scope: lane pictures.
"""

from __future__ import annotations

from k3bench.publish.cite import DASH, At, count, delta, fixed, share, tally, words
from k3bench.publish.document import Block, Bullets, Column, Paragraph, Table
from k3bench.publish.spans import bold
from k3bench.publish.words import label


def mechanism_blocks(record: At) -> tuple[Block, ...]:
    """Busy time, residency, share and headroom of every family in both arms, and whether they explain the gain."""
    if not record.mechanism:
        return (Paragraph("No trace of these builds: nothing is said about why."),)
    right: tuple[str, ...] = (
        "segments/step",
        "busy [ms/step]",
        "two-stream residency [ms/step]",
        "share of busy [%]",
        "headroom [ms/step]",
        "profiled/unprofiled",
    )
    several = any(row.worst_rank_residency_ms_per_step for row in record.mechanism.families)
    right += ("worst rank [ms/step]",) if several else ()
    columns = (Column("family", "left"), Column("arm", "left"), *(Column(t) for t in right))
    rows = tuple(_family_row(row, several=several) for row in _by_family(record.mechanism.families))
    return (Table(columns, rows), *_explained(record.mechanism))


def _by_family(families: At) -> list[At]:
    order = {"before": 0, "after": 1}
    return sorted(families, key=lambda row: (row.family.raw, order[row.arm.raw]))


def _family_row(row: At, *, several: bool) -> tuple[str, ...]:
    worst = (fixed(row.worst_rank_residency_ms_per_step, 4),) if several else ()
    segments = row.segments_per_step
    return (
        words(row.family),
        row.arm.raw,
        count(segments) if segments and float(segments.raw).is_integer() else fixed(segments, 1),
        fixed(row.busy_ms_per_step, 4),
        fixed(row.two_stream_residency_ms_per_step, 4),
        fixed(row.share_of_busy_pct, 1),
        fixed(row.headroom_ms_per_step, 4),
        fixed(row.profiled_over_unprofiled, 3),
        *worst,
    )


def _explained(found: At) -> list[Block]:
    lines = [_traces(found)] if found.traces else []
    for field, what in (
        ("gain_ms_per_step", "gained, by the timed runs"),
        ("explained_ms_per_step", "busy time removed: explained by the trace"),
        ("ceiling_ms_per_step", "all of the overlap: the ceiling of a gain by overlap inside the families"),
        ("ideal_ms_per_step", "ideal: every fork hides its shorter leg whole"),
    ):
        at = getattr(found, field)
        if at:
            lines.append(f"{fixed(at, 3)} ms a step: {what}")
    if found.achieved_share:
        lines.append(f"{share(found.achieved_share)} % of the ideal is reached")
    if found.n_collectives:
        ns, n = count(found.collectives_concurrent_ns), count(found.n_collectives)
        lines.append(f"{n} collectives in the traces; concurrent on two lanes: {ns} ns")
    if found.same_lane_ms_per_step:
        lines.append(
            f"{fixed(found.same_lane_ms_per_step, 3)} ms a step: kernels of one stream on top of each other before the"
            " change (programmatic dependent launch). A kernel that waits for the one ahead counts as busy, so busy"
            " times, residency, headroom and ideal are upper bounds"
        )
    if found.beyond_ceiling.raw:
        lines.append(bold("even the low end of the gain exceeds the ideal, so something besides the overlap changed"))
    return [Bullets(tuple(lines))] if lines else []


def _traces(found: At) -> str:
    """What the means are over."""
    return "traces: " + "; ".join(
        f"{words(of.observation)} at c={count(of.concurrency)}, {count(of.n_before)} before, {count(of.n_after)} after"
        for of in found.traces
    )


#: More probes than this are shown by kind of probe, and each of them in the details.
SHORT = 12
PROBE_COLUMNS = tuple(Column(t, "left") for t in ("probe", "kind", "result", "preset", "batch", "policy", "remark"))


def equality_blocks(record: At) -> tuple[Block, ...]:
    """One row a probe, or one a kind of probe; controls are faults planted to see that a probe can fail."""
    if not record.equality:
        return (Paragraph("No probe of sameness was run: equal outputs are not claimed."),)
    elsewhere = _elsewhere(record.equality)
    if len(record.equality) <= SHORT:
        return (*elsewhere, probe_table(record))
    return (*elsewhere, _probes_by_kind(record.equality), Paragraph("Every single probe stands in the details."))


def _elsewhere(probes: At) -> list[Block]:
    found = other_builds(probes)
    text = f"{bold('Other builds than were timed')} ran {tally(probes, found)} probes: they say nothing about these."
    return [Paragraph(text)] if found else []


def other_builds(probes: At) -> list[int]:
    """Which probes are not of the builds that were timed."""
    return [i for i, row in enumerate(probes) if row.other_builds.raw]


def probe_table(record: At) -> Table:
    """Every probe, a row each."""
    published = record.kind.raw == "reported"
    rows = tuple(
        (
            words(row.what),
            row.kind.raw,
            _status(row, published=published),
            words(row.preset),
            count(row.batch),
            words(row.policy),
            words(row.reason),
        )
        for row in record.equality
    )
    return Table(PROBE_COLUMNS, rows)


def _probes_by_kind(probes: At) -> Table:
    groups: dict[tuple[str, str], list[int]] = {}
    for i, row in enumerate(probes):
        groups.setdefault((row.kind.raw, row.what.raw), []).append(i)
    left = (Column("probe", "left"), Column("kind", "left"))
    right = (Column("probes"), Column("equal, or caught"), Column("failed"), Column("not run"))
    rows = [_kind_row(probes, kind, indices) for (kind, _), indices in groups.items()]
    return Table((*left, *right, Column("first remark of a failure", "left")), tuple(rows))


def _kind_row(probes: At, kind: str, indices: list[int]) -> tuple[str, ...]:
    by = {status: [i for i in indices if probes[i].status.raw == status] for status in ("pass", "fail", "not_run")}
    open_ = [*by["fail"], *by["not_run"]]
    remark = next((words(probes[i].reason) for i in open_ if probes[i].reason.raw), "")
    failed = tally(probes, by["fail"])
    return (
        words(probes[indices[0]].what),
        kind,
        tally(probes, indices),
        tally(probes, by["pass"]),
        failed,
        tally(probes, by["not_run"]),
        remark,
    )


def _status(row: At, *, published: bool) -> str:
    if published and row.status.raw == "pass":
        return "equal, as published"
    if row.kind.raw == "control" and row.status.raw == "pass":
        return "caught"
    if row.kind.raw == "accuracy" and row.status.raw == "pass":
        return "held"
    return {"pass": "equal", "fail": bold("failed"), "not_run": "not run"}[row.status.raw]


def independence_blocks(record: At) -> tuple[Block, ...]:
    """Which metrics and levels are no witnesses of their own, and how many corroborations and replications remain."""
    found = record.witnesses
    if not found:
        if record.kind.raw == "reported":
            text = "No runs are shown, so nothing can be checked; what the source says on it is noted under Provenance."
            return (Paragraph(text),)
        return (Paragraph(f"Only {label(record.metric.raw)} is compared; no other metric is counted as a witness."),)
    lines = [*_restated(found), *_correlated(found)]
    for at in found.contradicted:
        lines.append(f"declared as a restatement, but the data contradict it: {words(at)}")
    lines.append(
        f"independent corroborations of the headline: {count(found.n_corroborations)}"
        + (f" ({', '.join(_witness(at) for at in found.corroborating)})" if found.corroborating else "")
        + f"; replications in other allocations: {count(found.n_replications)}"
    )
    if found.effective_number:
        lines.append(
            f"the {count(found.n_metrics)} metrics carry the information of {fixed(found.effective_number, 1)}"
            " independent ones"
        )
    return (Bullets(tuple(lines)), *_other_metrics(record))


def _witness(at: At) -> str:
    return label(at.raw) if label(at.raw) != at.raw else words(at)


def _restated(found: At) -> list[str]:
    """A line for each pair of metrics: an identity once, a near restatement with its r² at each level."""
    groups: dict[tuple[str, str, str], list[At]] = {}
    for row in found.restatements:
        groups.setdefault((row.metric.raw, row.of.raw, row.kind.raw), []).append(row)
    return [f"{bold('not independent:')} {_restatement(rows)}" for rows in groups.values()]


def _restatement(rows: list[At]) -> str:
    first = rows[0]
    one, other = label(first.metric.raw), label(first.of.raw)
    text = f"{one} restates {other}"
    if first.kind.raw == "exact_ratio" and first.factor:
        return f"{text} ({one} = {fixed(first.factor, 3)} × {other})"
    if first.kind.raw == "exact_product" and first.factor:
        return f"{text} ({one} × {other} = {fixed(first.factor, 3)})"
    shown = [
        fixed(row.r2, 3) + (f" at c={count(row.concurrency)}" if row.concurrency else "") for row in rows if row.r2
    ]
    return f"{text} (r² = {', '.join(shown)})" if shown else text


def _correlated(found: At) -> list[str]:
    return [
        f"levels {count(row.concurrency_a)} and {count(row.concurrency_b)} move together (r = {fixed(row.r, 2)}): "
        "counted as one"
        for row in found.level_correlations
        if row.counts_as_one.raw
    ]


def _other_metrics(record: At) -> list[Block]:
    """Deltas of the metrics that restate nothing; a restated one would only repeat the main table."""
    rows = []
    for metric in record.other_metrics:
        if metric.restates:
            continue
        cells = [f"c={count(level.concurrency)}: {delta(level.delta_pct)} %" for level in metric.levels]
        rows.append((label(metric.metric.raw), f"{metric.better.raw} is better", "; ".join(cells) or DASH))
    if not rows:
        return []
    columns = (Column("other metric", "left"), Column("direction", "left"), Column("delta by level", "left"))
    return [Table(columns, tuple(rows))]
