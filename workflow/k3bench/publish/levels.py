"""The main table and the observations: one row a level, one row a planned observation.

In: the comparison record (as `At`). Out: blocks. Out of scope: reported figures (`claims.py`).
"""

from __future__ import annotations

from k3bench.publish.cite import (
    DASH,
    At,
    count,
    delta,
    fixed,
    interval,
    ms,
    p_value,
    percent,
    share,
    short,
    words,
)
from k3bench.publish.document import Block, Bullets, Column, Paragraph, Table
from k3bench.publish.spans import bold, code, plain
from k3bench.publish.verdict import primary
from k3bench.publish.words import AGREEMENT, FLAG, WORD, label


def level_blocks(record: At) -> tuple[Block, ...]:
    """The main table, its legend, and what each flag means."""
    return (_main_table(record), Paragraph(_legend(record)), *_range_band(record), *_flags(record))


def _main_table(record: At) -> Table:
    unit = record.metric_unit.raw
    name = label(record.metric.raw)
    titles = ("c", f"{name} before [{unit}]", f"after [{unit}]", "delta [%]", "95 % CI [%]")
    columns = (
        *(Column(t) for t in titles),
        Column("zero-change band [±%]"),
        Column("worst case [%]"),
        Column("verdict", "left"),
    )
    return Table(columns, tuple(_level_row(level) for level in record.levels), wanted=True)


def _level_row(level: At) -> tuple[str, ...]:
    """Where observations contradict each other, their mean is no result: its cells stay empty."""
    band = level.delta_band
    torn = level.word.raw == "disagreement"
    return (
        count(level.concurrency),
        ms(level.before_median),
        ms(level.after_median),
        DASH if torn else delta(level.delta_pct),
        DASH if torn else interval(level.ci95),
        percent(band.half_width_pct) if band else DASH,
        DASH if torn else delta(level.worst_case_pct),
        _verdict_cell(level),
    )


def _verdict_cell(level: At) -> str:
    word = WORD[level.word.raw]
    text = bold(word) if level.word.raw in ("improvement", "regression", "disagreement") else word
    if level.is_primary.raw:
        text += " (primary)"
    return text


def _legend(record: At) -> str:
    floor = record.floor
    text = (
        f"c = concurrency; before and after are medians over observations; delta is the mean over observations of "
        f"paired after/before ratios, not these columns' ratio; intervals are unadjusted. Worst case: one-sided 95 % "
        f"bound on the bad side. Words: the primary level by its own p, the others by Holm; “within noise” needs the "
        f"90 % interval inside ±{short(record.margin_pct)} %. "
    )
    if floor.assumed.raw:
        return text + "The floor for what rebuilding alone does is assumed, not calibrated."
    return text + (
        f"The floor is held against {count(floor.n_zero_change_observations)} zero-change observations: they hold "
        "what place, time and process do, and not what rebuilding does, as both arms of one are the same build."
    )


def _range_band(record: At) -> list[Block]:
    """The band of older tables, for continuity: it decides nothing, and says how often it is wrong."""
    shown = [level for level in record.levels if level.range_band and level.range_band.band_pct]
    if not shown:
        return []
    groups: dict[str, list[str]] = {}
    for level in shown:
        band = level.range_band
        cell = f"{percent(band.band_pct)} % at c={count(level.concurrency)}"
        groups.setdefault(plain(_band_error(band)), [_band_error(band)]).append(cell)
    parts = "; ".join(f"{', '.join(cells)} ({error})" for error, *cells in groups.values())
    return [Paragraph(f"Range of zero-change runs, for continuity, decides nothing: {parts}.")]


def _band_error(band: At) -> str:
    runs = f"{count(band.n_runs)} runs"
    if not band.false_positive_rate:
        return runs
    return f"{runs}; a zero change exceeds such a range {share(band.false_positive_rate)} % of the time"


def _flags(record: At) -> list[Block]:
    where: dict[str, list[str]] = {}
    for level in record.levels:
        for flag in level.flags.raw:
            where.setdefault(flag, []).append(count(level.concurrency))
    for flag in record.headline.flags.raw:
        where.setdefault(flag, [])
    n_levels = len(record.levels)
    lines = []
    for flag in sorted(where):
        at = f" (c = {', '.join(where[flag])})" if 0 < len(where[flag]) < n_levels else ""
        lines.append(f"{code(flag)}{at}: {FLAG[flag]}.")  # type: ignore[index]
    lines += [_without(level) for level in record.levels if level.without_outliers]
    return [Bullets(tuple(lines))] if lines else []


def _without(level: At) -> str:
    found = level.without_outliers
    text = f"c={count(level.concurrency)} with its flagged pairs ({count(found.n_flagged)}) left out: "
    if found.word.raw == "disagreement":
        return text + WORD["disagreement"]
    return text + f"{WORD[found.word.raw]}, {delta(found.delta_pct)} % (95 % CI {interval(found.ci95)} %)"


def observation_blocks(record: At) -> tuple[Block, ...]:
    """Every planned observation as a row at the primary level, present or not, then agreement over all of them."""
    level = primary(record)
    return (_observation_table(record, level), *_agreement(record, level), *_moved(record, level))


def _observation_table(record: At, level: At) -> Table:
    left = ("observation", "status", "rack", "builds", "job", "order")
    right = ("pairs", f"before [{record.metric_unit.raw}]", f"after [{record.metric_unit.raw}]", "delta [%]")
    columns = (*(Column(t, "left") for t in left), *(Column(t) for t in right), Column("95 % CI [%]"))
    rows = sorted(record.observations, key=lambda row: bool(row.zero_change.raw))
    return Table(columns, tuple(_observation_row(row, level) for row in rows))


def _observation_row(row: At, level: At) -> tuple[str, ...]:
    name = code(row.observation.raw) + (" (zero change)" if row.zero_change.raw else "")
    status = row.status.raw + (f": {words(row.reason)}" if row.reason else "")
    order = _orders(row.order.raw)
    head = (name, status, words(row.rack), _builds(row), words(row.job), order)
    found = at_level(row, level.concurrency.raw)
    if found is None:
        return (*head, *[DASH] * 5)
    if found.set_aside:
        head = (name, f"{status}; set aside: {words(found.set_aside)}", *head[2:])
    return (
        *head,
        count(found.n_pairs),
        ms(found.before_median),
        ms(found.after_median),
        delta(found.delta_pct, 3),
        interval(found.ci95),
    )


def _builds(row: At) -> str:
    """The pair; where it was made, what each arm was made from."""
    pair = words(row.build_pair) + (" (rebuilt)" if row.rebuilt.raw else "")
    made = {arm: words(origin) for arm, origin in row.made_from.items()}
    if len(set(made.values())) > 1:
        return f"{pair}: before {made['before']}, after {made['after']}"
    return f"{pair}: {next(iter(made.values()))}" if made else pair


def _orders(orders: tuple[str, ...]) -> str:
    """Block orders two by two, so that a narrow column breaks between pairs of them."""
    return " ".join("\u00a0".join(orders[i : i + 2]) for i in range(0, len(orders), 2)) or DASH


def at_level(row: At, concurrency: int) -> At | None:
    """An observation's result at one level, or None where it has none."""
    return next((found for found in row.levels if found.concurrency.raw == concurrency), None)


def _moved(record: At, level: At) -> list[Block]:
    """Which side of an observation stands apart: worth a line only where the observations do not agree."""
    if level.agreement.word.raw in ("agree", "not_testable"):
        return []
    lines = []
    for row in record.observations:
        found = None if row.zero_change.raw else at_level(row, level.concurrency.raw)
        if found is None or found.moved.raw in (None, "neither"):
            continue
        lines.append(
            f"{code(row.observation.raw)}: against the other observations its before side stands at "
            f"{delta(found.before_moved_pct)} %, its after side at {delta(found.after_moved_pct)} %: "
            + ("both sides moved." if found.moved.raw == "both" else f"the {found.moved.raw} side moved.")
        )
    return [Bullets(tuple(lines))] if lines else []


def _agreement(record: At, level: At) -> list[Block]:
    found = level.agreement
    if found.n_observations.raw < 2:
        return [Paragraph("Agreement cannot be tested with fewer than two usable observations.")]
    text = (
        f"{bold('Agreement')} at c={count(level.concurrency)} over all {count(found.n_observations)} usable "
        f"observations (zero-change ones never enter): they {AGREEMENT[found.word.raw]}"
    )
    if found.f:
        text += f" (F = {fixed(found.f, 2)}, {p_value(found.p)})"
    if found.ratio_gap_pct:
        text += f"; ratio gap {percent(found.ratio_gap_pct, 3)} %"
    if found.spread_pct and not found.ratio_gap_pct:
        text += f"; largest over smallest ratio less one {percent(found.spread_pct)} %"
    return [Paragraph(text + "."), *_next_rack(level)]


def _next_rack(level: At) -> list[Block]:
    found = level.next_rack
    if not found or level.word.raw == "disagreement":
        return []
    claim = "is expected to hold on further racks" if found.expected_on_further_racks.raw else "is shown on these only"
    return [
        Paragraph(
            f"Next rack, informative: {delta(found.delta_pct)} % (95 % CI {interval(found.ci95)} %), a single further "
            f"rack between {delta(found.pi95.low_pct)} and {delta(found.pi95.high_pct)} %; the change {claim}."
        )
    ]
