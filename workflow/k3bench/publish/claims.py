"""A published claim seen through its own numbers: same facts as the source, and nothing that does not follow from them.

In: a comparison of kind `reported` (as `At`). Out: blocks for the verdict, the main table and the observations.
"""

from __future__ import annotations

from k3bench.publish.cite import (
    DASH,
    At,
    count,
    delta,
    fixed,
    interval,
    p_number,
    p_value,
    percent,
    published,
    share,
    short,
    words,
)
from k3bench.publish.document import Block, Bullets, Column, Paragraph, Table
from k3bench.publish.levels import at_level
from k3bench.publish.spans import bold, code
from k3bench.publish.verdict import verdict_blocks
from k3bench.publish.words import WORD, label


def claim_verdict_blocks(record: At) -> tuple[Block, ...]:
    """What the published figures say, and why that is not a verdict; where runs allow one, the verdict."""
    if record.headline.word.raw != "insufficient_replication":
        return (Paragraph(_provenance_of_claim(record)), *verdict_blocks(record))
    lines = [*_first_look(record), *_agreement_lines(record)]
    lines.append(f"{bold('Missing:')} {_missing(record)}")
    return (
        Paragraph(
            f"{bold('No verdict: insufficient replication.')} {_provenance_of_claim(record)} They show no pairs in "
            "declared order; a verdict needs four in at least one observation. What follows is printed, not judged."
        ),
        Bullets(tuple(lines)),
    )


def _provenance_of_claim(record: At) -> str:
    return "These are published figures, not measured here; the environment of both arms is not verified."


def _first_look(record: At) -> list[str]:
    swept = sweep(record)
    outside = [count(f.concurrency) for f in swept if f.beyond_band.raw is True]
    inside = [count(f.concurrency) for f in swept if f.beyond_band.raw is False]
    recomputed = [f for f in record.reported.figures if f.reproduces.raw is not None]
    lines = []
    if outside or inside:
        text = f"{bold('Against its own band:')} "
        text += f"beyond it at c = {', '.join(outside)}" if outside else "beyond it nowhere"
        text += f"; inside it at c = {', '.join(inside)}" if inside else ""
        lines.append(text + f".{_band_caveat(record)}")
    if recomputed:
        every = all(f.reproduces.raw for f in recomputed)
        lines.append(
            f"{bold('Arithmetic:')} "
            + ("every delta whose levels are printed reproduces." if every else "not every printed delta reproduces.")
        )
    return lines


def _band_caveat(record: At) -> str:
    bands = [level.range_band for level in record.levels if level.range_band and level.range_band.false_positive_rate]
    if not bands:
        return ""
    return (
        f" The band is the range of {count(bands[0].n_runs)} zero-change runs, and an unchanged build exceeds that "
        f"{share(bands[0].false_positive_rate)} % of the time at each level, so it decides nothing."
    )


def _agreement_lines(record: At) -> list[str]:
    found = record.reported
    lines = []
    if found.ratio_gap_pct:
        between = " and ".join(words(at) for at in found.published_ratio_gap_between) or "the two observations"
        text = f"{bold('Agreement:')} ratio gap of observations {between} {percent(found.ratio_gap_pct, 3)} %"
        if found.published_ratio_gap_pct:
            text += f" (published as {short(found.published_ratio_gap_pct)} %"
            text += _rounding(found) + ")"
        text += "; it is a gap of the ratios after/before, not of the deltas"
        lines.append(text + _spread(found) + ".")
    elif found.spread_pct:
        lines.append(f"{bold('Agreement:')}{_spread(found).removeprefix(';')}.")
    return lines


def _rounding(found: At) -> str:
    if not found.ratio_gap_range_pct:
        return ""
    low, high = found.ratio_gap_range_pct[0], found.ratio_gap_range_pct[1]
    return f", inside what the rounding of its inputs allows, {fixed(low, 3)} to {fixed(high, 3)} %"


def _spread(found: At) -> str:
    if not found.spread_pct:
        return ""
    over = ", ".join(words(at) for at in found.spread_over)
    return f"; over all of {over} the spread of the ratios is {percent(found.spread_pct)} %"


def _missing(record: At) -> str:
    kinds = sorted({o.kind.raw.replace("_", "-") for o in record.outstanding})
    return (", ".join(kinds) if kinds else "see below") + " (see Outstanding)."


def sweep(record: At) -> list[At]:
    """The figures of the observation that shows most levels: the published sweep, in level order."""
    by: dict[str, list[At]] = {}
    for figure in record.reported.figures:
        by.setdefault(figure.observation.raw, []).append(figure)
    best = max(by, key=lambda name: (len(by[name]), name))
    return sorted(by[best], key=lambda f: int(f.concurrency.raw))


def claim_level_blocks(record: At) -> tuple[Block, ...]:
    """The published sweep beside what its own numbers give, then the lines that are no verdict."""
    unit = record.metric_unit.raw
    name = label(record.metric.raw)
    right = (
        "c",
        f"{name} before [{unit}]",
        f"after [{unit}]",
        "delta [%]",
        "as published [%]",
        "published band [±%]",
        "p of that rule",
    )
    columns = (*(Column(t) for t in right), Column("beyond the band", "left"), Column("verdict", "left"))
    rows = tuple(_sweep_row(record, figure) for figure in sweep(record))
    observation = words(sweep(record)[0].observation)
    return (
        Paragraph(f"The sweep of observation {observation}, one row a level:"),
        Table(columns, rows, wanted=True),
        Paragraph(
            "delta is recomputed from the two levels in its row. p of that rule: how often one before and one after "
            "run of an unchanged build lie at least this far apart, measured in such a band. No interval can be formed "
            "from one value an arm, so none is printed."
        ),
        *_not_a_verdict(record),
    )


def _sweep_row(record: At, figure: At) -> tuple[str, ...]:
    level = next((lv for lv in record.levels if lv.concurrency.raw == figure.concurrency.raw), None)
    word = DASH if level is None else WORD[level.word.raw] + (" (primary)" if level.is_primary.raw else "")
    return (
        count(figure.concurrency),
        fixed(figure.before_ms, 4),
        fixed(figure.after_ms, 4),
        delta(figure.recomputed_delta_pct),
        published(figure.published_delta_pct),
        fixed(figure.published_band_pct, 2),
        p_number(figure.range_rule_p),
        {True: "yes", False: "no", None: DASH}[figure.beyond_band.raw],
        word,
    )


def _not_a_verdict(record: At) -> list[Block]:
    found = record.reported
    if not found.t_ci95:
        return []
    text = (
        f"{bold('Not a verdict:')} a one-sample t over the observations at c={count(record.headline.concurrency)} "
        f"gives {delta(found.t_delta_pct)} % (95 % CI {interval(found.t_ci95)} %, {p_value(found.t_p)})"
    )
    if found.t_pi95:
        text += f", and for one further rack {interval(found.t_pi95)} %"
    return [Paragraph(text + ".")]


def claim_observation_blocks(record: At) -> tuple[Block, ...]:
    """Every figure of every observation with its job, rack and build, and which side of it moved."""
    unit = record.metric_unit.raw
    left = ("observation", "job", "rack", "build")
    right = ("c", f"before [{unit}]", f"after [{unit}]", "delta [%]", "as published [%]")
    columns = (*(Column(t, "left") for t in left), *(Column(t) for t in right))
    rows = tuple(_figure_row(record, figure) for figure in record.reported.figures)
    return (Table(columns, rows), *_which_side(record), *_not_shown(record))


def _figure_row(record: At, figure: At) -> tuple[str, ...]:
    row = next((r for r in record.observations if r.observation.raw == figure.observation.raw), None)
    names = (DASH,) * 3 if row is None else (words(row.job), words(row.rack), words(row.build_pair))
    return (
        words(figure.observation),
        *names,
        count(figure.concurrency),
        fixed(figure.before_ms, 4),
        fixed(figure.after_ms, 4),
        delta(figure.recomputed_delta_pct, 3),
        published(figure.published_delta_pct),
    )


def _which_side(record: At) -> list[Block]:
    """A spread between observations has a side: a slow before run is not a better after run."""
    lines = []
    for row in record.observations:
        found = at_level(row, record.headline.concurrency.raw)
        if found is None or found.moved.raw in (None, "neither"):
            continue
        lines.append(
            f"{code(row.observation.raw)} against the others: before {delta(found.before_moved_pct)} %, after "
            f"{delta(found.after_moved_pct)} %"
            + ("." if found.moved.raw == "both" else f", so its delta differs by its {found.moved.raw} side.")
        )
    # Two observations move against each other by the same step: one line says it.
    return [Bullets(tuple(lines[1:] if len(lines) == 2 else lines))] if lines else []


def _not_shown(record: At) -> list[Block]:
    shown = tuple(words(at) for at in record.reported.not_shown)
    return [Paragraph("The source does not show:"), Bullets(shown)] if shown else []
