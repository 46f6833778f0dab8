"""The figures of a report: time against concurrency, forest, run order, noise against claim, residency.

In: a comparison record. Out: `Figure`s with a caption that states n and what each band is. Out of scope: style and
files (`figures.py`), what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3bench.publish import series
from k3bench.publish.figures import Figure, Theme, bare, canvas, dots, figure, signed
from k3bench.publish.words import WORD, label
from k3bench.records.comparison import Comparison, IntervalPct, ObservationRow

if TYPE_CHECKING:
    from k3bench.publish.figures import Axes, Canvas


def figures(record: Comparison) -> Iterator[Figure]:
    """The two main figures always, empty where nothing was measured; the others where the record has data for them."""
    for stem, draw, wanted in (
        ("tpot", _tpot, True),
        ("forest", _forest, True),
        ("order", _order, series.order_known(record)),
        ("noise", _noise, series.n_pairs(record, zero_change=True) > 0 and series.order_known(record)),
        ("residency", _residency, record.mechanism is not None),
    ):
        if wanted:
            yield figure(record, stem, draw)


# --- TPOT against concurrency ---------------------------------------------------------------------------------------


def _tpot(record: Comparison, theme: Theme) -> Canvas:
    made, (top, bottom) = canvas(5.4, 2, sharex=True, gridspec_kw={"height_ratios": [1.25, 1]})
    _draw_values(top, record, theme)
    _draw_deltas(bottom, record, theme)
    at = range(len(series.levels(record)))
    bottom.set_xticks(list(at), [str(c) for c in series.levels(record)])
    bottom.set_xlabel("concurrency")
    bottom.set_xlim(-0.5, len(at) - 0.15)
    return made


def _draw_values(ax: Axes, record: Comparison, theme: Theme) -> None:
    """Both arms side by side at each level: every run a dot, the medians joined."""
    place = {c: i for i, c in enumerate(series.levels(record))}
    ends = []
    for arm, shift, colour in (("before", -0.11, theme.before), ("after", 0.11, theme.after)):
        runs = series.values(record, arm)
        x = [place[d.concurrency] + shift + d.spread for d in runs]
        dots(ax, x, [d.value for d in runs], group=arm, says=[d.says for d in runs], color=colour, s=13, alpha=0.6,
              linewidth=0, zorder=3)  # fmt: skip
        line = series.medians(record, arm)
        ax.plot([place[c] + shift for c in line], list(line.values()), color=colour, linewidth=1.6, zorder=2)
        if line:
            last = max(line)
            ends.append((place[last] + shift, line[last], arm, colour))
    _label_ends(ax, ends)
    ax.set_ylabel(f"{label(record.metric)} [{record.metric_unit}]")
    bare(ax, theme)


def _label_ends(ax: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Name the lines where they end; the upper name goes up and the lower one down, so that they never meet."""
    for rank, (_, y, text, colour) in enumerate(sorted(ends, key=lambda e: -e[1])):
        ax.annotate(
            text, (max(e[0] for e in ends), y), xytext=(13, 5 if rank == 0 else -5), textcoords="offset points",
            va="bottom" if rank == 0 else "top", color=colour, fontweight="bold",
        )  # fmt: skip


def _draw_deltas(ax: Axes, record: Comparison, theme: Theme) -> None:
    """The change at each level with its interval, over what an unchanged build shows."""
    ax.axhline(0, color=theme.ink, linewidth=0.9, zorder=2)
    for i, level in enumerate(sorted(record.levels, key=lambda lv: lv.concurrency)):
        claim = series.claim(record, level.concurrency)
        band = level.delta_band.half_width_pct if level.delta_band else claim.published_band_pct if claim else None
        if band is not None:
            ax.fill_between([i - 0.36, i + 0.36], -band, band, color=theme.band, linewidth=0, zorder=1)
        change = claim.published_delta_pct if claim else level.delta_pct
        if change is None or level.word == "disagreement":
            ax.annotate(WORD[level.word], (i, 0), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8.5)
            continue
        if level.ci95:
            ax.plot([i, i], [level.ci95.low_pct, level.ci95.high_pct], color=theme.after, linewidth=2.2, zorder=3)
        word = WORD[level.word]
        dots(ax, [i], [change], group=f"c={level.concurrency}", says=[f"{signed(change)} %, {word}"],
              color=theme.after, s=36, linewidth=0, zorder=4)  # fmt: skip
        _label_change(ax, record, i, change, level.ci95, word, theme)
    ax.margins(y=0.16)
    ax.set_ylabel("change [%]")
    bare(ax, theme)


def _label_change(
    ax: Axes, record: Comparison, i: int, change: float, ci95: IntervalPct | None, word: str, theme: Theme
) -> None:
    """Number and word beside the dot; with many levels the number alone under it; with very many nothing."""
    if len(record.levels) > 10:
        return
    if len(record.levels) > 5:
        low = ci95.low_pct if ci95 else change
        ax.annotate(signed(change), (i, low), xytext=(0, -4), textcoords="offset points", ha="center", va="top",
                    fontsize=8)  # fmt: skip
        return
    text = f"{signed(change)} %" + (f"\n{word}" if record.kind == "measured" else "")
    ax.annotate(text, (i, change), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8.5,
                bbox={"facecolor": theme.paper, "alpha": 0.7, "linewidth": 0, "pad": 1.2}, zorder=5)  # fmt: skip


# --- forest ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    name: str
    note: str
    estimate: float | None
    interval: IntervalPct | None
    look: str


def _forest(record: Comparison, theme: Theme) -> Canvas:
    rows = _forest_rows(record)
    made, (ax,) = canvas(1.25 + 0.33 * len(rows) + 0.4)
    ax.axvline(0, color=theme.ink, linewidth=0.9, zorder=1)
    for edge in (-record.margin_pct, record.margin_pct):
        ax.axvline(edge, color=theme.muted, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
    for place, row in enumerate(reversed(rows)):
        _forest_row(ax, place, row, theme)
    ax.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], color=theme.ink)
    ax.set_ylim(-0.7, len(rows) - 0.3)
    ax.margins(x=0.08)
    ax.set_xlabel(f"change of {label(record.metric)} at c={record.primary_level} [%]   (dotted: the margin)")
    bare(ax, theme, grid="x")
    return made


def _forest_rows(record: Comparison) -> list[_Row]:
    real = [row for row in record.observations if not row.zero_change]
    zero = [row for row in record.observations if row.zero_change]
    level = series.primary_level(record)
    rows = [_observation_row(record, row) for row in real]
    if record.headline.word not in ("disagreement", "insufficient_replication"):
        rows.append(_Row("all observations", "", level.delta_pct, level.ci95, "pooled"))
    if level.next_rack and record.headline.word != "disagreement":
        rows.append(_Row("next rack", "", level.next_rack.delta_pct, level.next_rack.pi95, "next"))
    return rows + [_observation_row(record, row) for row in zero]


def _observation_row(record: Comparison, row: ObservationRow) -> _Row:
    look = "zero" if row.zero_change else "observation"
    where = f" ({row.rack})" if row.rack and not row.zero_change else ""
    found = series.at_primary(record, row)
    claim = series.claim_of(record, row.observation)
    if claim is not None:
        return _Row(row.observation + where, "no interval", claim.published_delta_pct, None, look)
    if found is None or found.delta_pct is None:
        return _Row(row.observation + where, row.status, None, None, look)
    return _Row(row.observation + where, "", found.delta_pct, found.ci95, look)


def _forest_row(ax: Axes, place: int, row: _Row, theme: Theme) -> None:
    colour = {"zero": theme.zero, "observation": theme.after, "pooled": theme.ink, "next": theme.muted}[row.look]
    if row.interval:
        ax.plot([row.interval.low_pct, row.interval.high_pct], [place, place], color=colour,
                linewidth=3.2 if row.look == "pooled" else 1.8, solid_capstyle="butt", zorder=2)  # fmt: skip
    text = row.note
    if row.estimate is not None:
        marker = {"pooled": "D", "next": "|"}.get(row.look, "o")
        dots(ax, [row.estimate], [place], group=row.name, says=[f"{row.name}: {signed(row.estimate, 3)} %"],
              color=colour, marker=marker, s=60 if row.look == "pooled" else 34, linewidth=1.6 if marker == "|" else 0,
              zorder=3)  # fmt: skip
        text = f"{signed(row.estimate)} %" + (f"   {row.note}" if row.note else "")
        if row.interval:
            text += f"   [{signed(row.interval.low_pct)}, {signed(row.interval.high_pct)}]"
    ax.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5,
                color=theme.ink if row.estimate is not None else theme.muted)  # fmt: skip


# --- pairs in run order ---------------------------------------------------------------------------------------------

#: More observations than this are not drawn one by one; the caption says how many are left out.
MAX_PANELS = 12
#: A panel shows at least this many percentage points: a drift smaller than that decides nothing.
_LEAST_SPAN_PP = 0.2


def _order(record: Comparison, theme: Theme) -> Canvas:
    names = series.order_panels(record)[:MAX_PANELS]
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    made, axes = canvas(1.5 + 1.35 * lines, lines, columns)
    found = [p for p in series.pairs(record) if p.concurrency == record.primary_level]
    panels = [[p for p in found if p.observation == name] for name in names]
    span = max([_LEAST_SPAN_PP, *(_span_pp(panel) for panel in panels)])
    for ax, name, panel in zip(axes, names, panels, strict=False):
        _order_panel(ax, name, panel, theme)
        _scale(ax, panel, span)
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    for ax in axes[::columns]:
        ax.set_ylabel("change [%]")
    axes[(lines - 1) * columns].set_xlabel("pair, in run order")
    return made


def _span_pp(panel: list[series.PairPoint]) -> float:
    return max((p.delta_pct for p in panel), default=0.0) - min((p.delta_pct for p in panel), default=0.0)


def _scale(ax: Axes, panel: list[series.PairPoint], span: float) -> None:
    """Every panel shows the same span around its own middle, so that a drift looks as large as it is beside others."""
    values = [p.delta_pct for p in panel] or [0.0]
    middle = (max(values) + min(values)) / 2
    ax.set_ylim(middle - 0.65 * span, middle + 0.65 * span)


def _order_panel(ax: Axes, name: str, found: list[series.PairPoint], theme: Theme) -> None:
    colour = theme.zero if found and found[0].zero_change else theme.after
    ax.axhline(0, color=theme.ink, linewidth=0.9, zorder=1)  # seen where zero lies inside the panel
    ax.plot([p.index for p in found], [p.delta_pct for p in found], color=colour, linewidth=0.8, alpha=0.5, zorder=2)
    for first, marker in ((True, "o"), (False, "D")):
        some = [p for p in found if p.before_first is first]
        dots(ax, [p.index for p in some], [p.delta_pct for p in some], group=f"{name}/{marker}",
              says=[f"{name}, pair {p.index}: {signed(p.delta_pct, 3)} %" for p in some],
              color=colour if first else theme.paper, edgecolor=colour, marker=marker, s=22, linewidth=1.2,
              zorder=3)  # fmt: skip
    ax.set_title(name + (" (zero change)" if found and found[0].zero_change else ""), fontsize=9, loc="left")
    ax.locator_params(axis="x", integer=True, nbins=5)
    ax.locator_params(axis="y", nbins=4)
    ax.margins(x=0.12)
    bare(ax, theme)


# --- noise against claim --------------------------------------------------------------------------------------------


def _noise(record: Comparison, theme: Theme) -> Canvas:
    made, (ax,) = canvas(3.4)
    ax.axhline(0, color=theme.ink, linewidth=0.9, zorder=1)
    found = series.pairs(record)
    for i, c in enumerate(series.levels(record)):
        for zero, shift, colour in ((True, -0.17, theme.zero), (False, 0.17, theme.after)):
            some = [p for p in found if p.zero_change is zero and p.concurrency == c]
            spread = series.spreads(len(some), 0.1)
            dots(ax, [i + shift + s for s in spread], [p.delta_pct for p in some], group=f"c={c}/{zero}",
                  says=[f"{p.observation}, pair {p.index}: {signed(p.delta_pct, 3)} %" for p in some],
                  color=colour, s=16, alpha=0.75, linewidth=0, zorder=3)  # fmt: skip
            if some:
                mean = sum(p.delta_pct for p in some) / len(some)
                ax.plot([i + shift - 0.14, i + shift + 0.14], [mean, mean], color=colour, linewidth=2, zorder=4)
    _name_groups(ax, theme)
    ax.set_xticks(range(len(series.levels(record))), [str(c) for c in series.levels(record)])
    ax.set_xlabel("concurrency")
    ax.set_ylabel("change of a pair [%]")
    ax.margins(y=0.16)
    bare(ax, theme)
    return made


def _name_groups(ax: Axes, theme: Theme) -> None:
    """Name both clouds once, left and right as they stand at each level."""
    for x, text, colour in ((0.0, "left: nothing changed", theme.zero), (0.31, "right: before/after", theme.after)):
        ax.annotate(text, (x, 1.02), xycoords="axes fraction", ha="left", va="bottom", fontsize=8.5, color=colour,
                    fontweight="bold")  # fmt: skip


# --- residency ------------------------------------------------------------------------------------------------------


def _residency(record: Comparison, theme: Theme) -> Canvas:
    bars = series.family_bars(record)
    made, (ax,) = canvas(1.35 + 0.36 * len(bars))
    for place, bar in enumerate(reversed(bars)):
        colour = theme.after if bar.arm == "after" else theme.before
        if bar.busy_ms is not None:
            ax.barh(place, bar.busy_ms, color=colour, alpha=0.35, height=0.62, linewidth=0)
        if bar.residency_ms is not None:
            ax.barh(place, bar.residency_ms, color=colour, height=0.62, linewidth=0)
        if bar.bound_ms is not None:
            ax.plot([bar.bound_ms, bar.bound_ms], [place - 0.42, place + 0.42], color=theme.ink, linewidth=1.6)
        reach = max(x for x in (bar.busy_ms, bar.residency_ms, bar.bound_ms, 0.0) if x is not None)
        ax.annotate(bar.says, (reach, place), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5)
    ax.set_yticks(range(len(bars)), [f"{bar.family}, {bar.arm}" for bar in reversed(bars)], color=theme.ink)
    ax.set_xlabel("device time of one decode step [ms]")
    longest = max([b.busy_ms or b.residency_ms or 0.0 for b in bars] + [1e-9])
    bare(ax, theme, grid="x")
    ax.set_xlim(0, 1.9 * longest)
    ax.set_xticks([x for x in ax.get_xticks() if 0 <= x <= 1.05 * longest])
    return made
