"""The answer in ten seconds: the verdict sentence of a measured comparison, why, and what is missing.

In: the comparison record (as `At`). Out: blocks. Out of scope: tables.
"""

from __future__ import annotations

from k3bench.publish.cite import At, count, delta, entry, interval, p_value, percent, short, size, tally
from k3bench.publish.document import Block, Bullets, Paragraph
from k3bench.publish.evidence import other_builds
from k3bench.publish.spans import bold, code
from k3bench.publish.words import AGREEMENT, BECAUSE, WORD, label, side


def verdict_blocks(record: At) -> tuple[Block, ...]:
    """The sentence, the counts over all levels, and the three kinds of evidence in a line each."""
    return (
        Paragraph(_sentence(record, primary(record))),
        Paragraph(_over_levels(record)),
        *_cautions(record),
        Bullets(tuple(_evidence(record))),
    )


def primary(record: At) -> At:
    """The level whose verdict is the headline."""
    return next(level for level in record.levels if level.is_primary.raw)


def _sentence(record: At, level: At) -> str:
    head = record.headline
    what = f"{label(record.metric.raw)} at concurrency {count(head.concurrency)}, the primary level,"
    match head.word.raw:
        case "improvement" | "regression":
            word = _alone(head, WORD[head.word.raw].capitalize())
            way = side(record.better.raw, good=head.word.raw == "improvement")
            return (
                f"{bold(word)} {what} is {size(head.delta_pct)} % {way} after the change (95 % CI of the change "
                f"{interval(head.ci95)} %); {_how_sure(head)}."
            )
        case "within_noise":
            return (
                f"{bold(_alone(head, 'Within noise'))} {what} shows no difference beyond ±{short(head.margin_pct)} %: "
                f"the change is {delta(head.delta_pct)} % (90 % CI {interval(level.ci90)} %); {_how_sure(head)}."
            )
        case "inconclusive":
            return f"{bold('Inconclusive.')} {_inconclusive(head, level, what)}"
        case "disagreement":
            return f"{bold('Disagreement.')} {_disagreement(record, head, what)}"
        case _:
            return (
                f"{bold('No verdict: insufficient replication.')} {what} has no observation with the four valid pairs "
                "that a verdict needs. The figures below are printed, not judged."
            )


def _alone(head: At, word: str) -> str:
    return f"{word} on one observation, unreplicated." if head.n_observations.raw == 1 else f"{word}."


def _how_sure(head: At) -> str:
    planned = f"{count(head.n_observations)} of {count(head.n_planned)} planned observations"
    if head.n_observations.raw < 2:
        return planned
    together = AGREEMENT[head.agreement.raw]
    return f"{planned}, which {together}" + (f" ({p_value(head.agreement_p)})" if head.agreement_p else "")


def _inconclusive(head: At, level: At, what: str) -> str:
    text = (
        f"{what} changes by {delta(head.delta_pct)} % (95 % CI {interval(head.ci95)} %); {_how_sure(head)}. "
        f"Neither a difference nor its absence within ±{short(head.margin_pct)} % is shown"
    )
    if level.inconclusive_because:
        text += f": {BECAUSE[level.inconclusive_because.raw]}"
    if level.blocks_to_settle:
        text += (
            f". About {count(level.blocks_to_settle)} blocks an observation would settle it, "
            "if the change is what it seems"
        )
    return text + "."


def _disagreement(record: At, head: At, what: str) -> str:
    rows = []
    for row in record.observations:
        rows += [
            f"{code(row.observation.raw)} {delta(level.delta_pct)} %"
            for level in row.levels
            if level.concurrency.raw == head.concurrency.raw and level.delta_pct and not row.zero_change.raw
        ]
    return (
        f"{what} cannot be given one number: the observations contradict each other ({p_value(head.agreement_p)}): "
        f"{', '.join(rows)}. A further observation is needed before anything can be claimed."
    )


def _over_levels(record: At) -> str:
    head = record.headline
    found = [w for w in WORD if w in head.levels_by_word.raw or w in ("improvement", "regression")]
    counts = ", ".join(f"{entry(head.levels_by_word, w)} {WORD[w]}" for w in found)
    text = f"Over {count(head.n_levels)} concurrency levels: {counts}. "
    worse = f"{side(record.better.raw, good=False)} by {short(head.margin_pct)} % or more"
    if head.regresses_nothing.raw:
        return text + f"That {label(record.metric.raw)} is {worse} is excluded at every level (one-sided, 95 %)."
    return text + (
        f"That {label(record.metric.raw)} is {worse} is excluded at {count(head.n_non_inferior)} of "
        f"{count(head.n_levels)} levels (one-sided, 95 %), so “regresses nothing” is not claimed."
    )


def on_cpu(record: At) -> bool:
    """True when the device was a CPU, where forks run one after the other."""
    found = record.provenance
    device = (found.hardware_class.raw or "", *found.environment.raw.get("device", ()))
    return any(d.lower() == "cpu" or d.lower().startswith("cpu") for d in device)


def _cautions(record: At) -> list[Block]:
    found: list[Block] = []
    if record.simulated.raw:
        found.append(Paragraph(f"{bold('Simulated.')} Every number here was drawn around a planted effect."))
    if on_cpu(record) and not record.simulated.raw:
        found.append(
            Paragraph(
                f"{bold('Measured on a CPU')}, where the forks run one after the other: this shows that the pipeline "
                "works, not what the change gains. An honest zero is called something in about one run of ten."
            )
        )
    return found


def _evidence(record: At) -> list[str]:
    lines = [f"{bold('Why:')} {_why(record)}", f"{bold('Same results:')} {_same(record)}"]
    names = ", ".join(sorted({o.kind.raw.replace("_", "-") for o in record.outstanding}))
    missing = f"{names} (see Outstanding)" if names else "nothing of what was planned"
    lines.append(f"{bold('Missing or incomplete:')} {missing}.")
    return lines


def _why(record: At) -> str:
    if not record.mechanism:
        return "not shown, there is no trace of these builds."
    found = record.mechanism
    after = [f for f in found.families if f.arm.raw == "after" and f.two_stream_residency_ms_per_step.raw]
    if not after:
        return "the trace shows no two-stream residency after the change, so overlap explains nothing."
    before = {f.family.raw: f.two_stream_residency_ms_per_step for f in found.families if f.arm.raw == "before"}
    parts = [
        f"{f.family.raw} "
        + (f"from {percent(before[f.family.raw], 4)} to " if f.family.raw in before else "")
        + f"{percent(f.two_stream_residency_ms_per_step, 4)} ms a step"
        + (f" ({percent(f.share_of_busy_pct, 1)} % of its busy time)" if f.share_of_busy_pct else "")
        for f in after
    ]
    text = f"two-stream residency by family: {', '.join(parts)}."
    if found.gain_ms_per_step and found.explained_ms_per_step:
        text += (
            f" The gain is {percent(found.gain_ms_per_step, 3)} ms a step; the trace explains "
            f"{percent(found.explained_ms_per_step, 3)} ms of busy time."
        )
    if found.same_lane_ms_per_step:
        text += " Kernels that wait count as busy here (see Mechanism), so these times are upper bounds."
    if found.beyond_ceiling.raw:
        text += " Even the low end of the gain exceeds what hiding every shorter leg gives: something else changed too."
    return text


def _same(record: At) -> str:
    """Whether outputs are the same; a control that was not caught makes every "equal" worth less."""
    if not record.equality:
        return "not checked."
    probes = record.equality
    failed = [i for i, row in enumerate(probes) if row.status.raw == "fail" and row.kind.raw != "control"]
    missed = [i for i, row in enumerate(probes) if row.status.raw == "fail" and row.kind.raw == "control"]
    open_ = [i for i, row in enumerate(probes) if row.status.raw == "not_run"]
    elsewhere = other_builds(probes)
    text = "every probe that ran is equal"
    if elsewhere:
        text = f"not shown, {tally(probes, elsewhere)} probes ran on other builds than were timed"
    if failed:
        text = f"not shown, {tally(probes, failed)} of {tally(probes, range(len(probes)))} probes failed"
    if open_:
        text += f"; {tally(probes, open_)} did not run"
    if missed:
        text += f"; {tally(probes, missed)} planted faults were not caught"
    return text + " (see Equality)."
