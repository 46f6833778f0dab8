"""Titles and captions of the figures: what is shown, how many, and what each band is. In: the record. Out: text."""

from __future__ import annotations

from k3bench.publish import series
from k3bench.publish.words import label
from k3bench.records.comparison import Comparison


def title(record: Comparison, stem: str) -> str:
    """The figure's title; simulated numbers say so here."""
    name, c = label(record.metric), record.primary_level
    what = {
        "tpot": f"{name} against concurrency, and its change",
        "forest": f"Change of {name} at c={c}, observation by observation",
        "order": f"Paired changes at c={c} in run order (a drift is a slope)",
        "noise": f"Noise of zero-change pairs beside the change of {name}",
        "residency": "Busy time and two-stream residency, a decode step",
    }[stem]
    kind = "Simulated: " if record.simulated else "Published figures: " if record.kind == "reported" else ""
    return kind + what


def caption(record: Comparison, stem: str) -> str:
    """What the reader must know to read the figure alone."""
    if record.kind == "reported" and not series.has_pairs(record) and stem in ("tpot", "forest"):
        return _claim_caption(record, stem)
    return {"tpot": _tpot, "forest": _forest, "order": _order, "noise": _noise, "residency": _residency}[stem](record)


def _n(record: Comparison) -> str:
    level = series.primary_level(record)
    return f"{_count(level.n_observations, 'observation')}, {_count(level.n_pairs, 'pair')} at c={level.concurrency}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _tpot(record: Comparison) -> str:
    bands = [level.delta_band for level in record.levels if level.delta_band]
    band = (
        "Shade: where a zero change of the same design stays with 95 %, "
        f"from {bands[0].n_pairs} zero-change pairs and the floor."
        if bands
        else "No band: there are no zero-change observations."
    )
    return (
        f"Top: every valid run is a dot (the run's median {label(record.metric)}), lines join medians. Below: change "
        f"with its 95 % interval, paired, each observation once; n = {_n(record)}. {band}"
    )


def _forest(record: Comparison) -> str:
    level = series.primary_level(record)
    text = f"Dot and line: an observation's mean paired change and its 95 % interval; n = {_n(record)}."
    if record.headline.word == "disagreement":
        return text + " The observations disagree, so no pooled estimate is drawn."
    if level.next_rack:
        text += " Next rack: where a single further rack is expected (95 % prediction interval, informative)."
    if any(row.zero_change for row in record.observations):
        text += " Zero-change observations stand below and enter nothing."
    return text


def _order(record: Comparison) -> str:
    shown = series.order_panels(record)
    text = "Each mark is one pair of neighbouring runs; filled circle: before ran first, open diamond: after ran first."
    text += " Every panel spans the same, around its own middle."
    if len(shown) > 12:
        text += f" The first 12 of {len(shown)} observations are drawn."
    return text + f" n = {_n(record)}."


def _noise(record: Comparison) -> str:
    zero = series.n_pairs(record, zero_change=True)
    return (
        f"Each dot is one pair, each bar the mean of its cloud. Left: nothing was changed (n = {zero} pairs at "
        f"c={record.primary_level}); right: before/after pairs (n = {series.n_pairs(record, zero_change=False)})."
    )


def _residency(record: Comparison) -> str:
    text = "Pale bar: device busy time of the family; strong bar: the part of it in which two streams run at once."
    if any(bar.bound_ms is not None for bar in series.family_bars(record)):
        text += " Tick: the most that the forks could hide, from the before trace."
    return text + " From profiled runs of their own, which are never timed."


def _claim_caption(record: Comparison, stem: str) -> str:
    runs = {f.band_runs for f in record.reported.figures if f.band_runs} if record.reported else set()
    if stem == "forest":
        return "Dots are published changes. One value an arm is shown, so no interval can be formed and none is drawn."
    band = f"the published band, the range of {min(runs)} zero-change runs" if runs else "the published band"
    return f"Dots are published levels and changes, one value an arm, so there is no interval. Shade: {band}."
