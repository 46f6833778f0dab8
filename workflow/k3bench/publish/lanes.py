"""One layer of each family as lanes, before above after. In: lane pictures of a residency record. Out: an SVG or PNG.

Out of scope: choosing the layer (`trace/pictures.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3bench.records.residency import LaneBar, LanePicture

#: lightness differs, so the legs are told apart without colour too
_COLOURS = {"main": "#1f5a8a", "side": "#e39b34", None: "#9aa4ad"}
_US_PER_NS = 1e-3
_ROW_HEIGHT = 0.8
#: inches for title and legend, and for one family
_HEAD_IN, _PANEL_IN = 0.35, 1.45
#: letters of a name that fit into a bar as wide as the panel
_NAME_LETTERS = 60


def draw(before: Sequence[LanePicture], after: Sequence[LanePicture], path: Path, *, title: str = "") -> None:
    """One row of panels a family; both arms on the same time axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    families = sorted({p.family for p in (*before, *after)})
    if not families:
        raise ValueError("no lane picture to draw")
    with pyplot.rc_context({"svg.hashsalt": "k3bench", "svg.fonttype": "path", "font.size": 8}):
        height = _HEAD_IN + _PANEL_IN * len(families)
        figure, axes = pyplot.subplots(len(families), 2, figsize=(9, height), squeeze=False)
        for row, family in zip(axes, families, strict=True):
            _family(row, family, [_of(before, family), _of(after, family)])
        _legend(figure, title)
        figure.tight_layout(rect=(0, 0, 1, 1 - _HEAD_IN / height))
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=150)
        pyplot.close(figure)


def _of(pictures: Sequence[LanePicture], family: str) -> LanePicture | None:
    return next((p for p in pictures if p.family == family), None)


def _family(row: Any, family: str, pictures: list[LanePicture | None]) -> None:
    span = max((b.end_ns for p in pictures if p for b in p.bars), default=1)
    lanes = max((b.row + 1 for p in pictures if p for b in p.bars), default=1)
    for axis, picture, arm in zip(row, pictures, ("before", "after"), strict=True):
        axis.set_title(f"{family} {arm}" + (f" ({picture.segment})" if picture else ""), loc="left", fontsize=8)
        axis.set_xlim(0, span * _US_PER_NS * 1.02)
        axis.set_ylim(lanes - 0.4, -0.6)
        axis.set_yticks(range(lanes))
        axis.set_yticklabels([f"lane {i + 1}" for i in range(lanes)])
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("µs", fontsize=7)
        axis.tick_params(labelsize=7)
        if picture is None:
            axis.text(0.5, 0.5, "no trace", transform=axis.transAxes, ha="center", va="center")
        for bar, seen_until in uncovered(picture.bars if picture else ()):
            _bar(axis, bar, span, seen_until)


def uncovered(bars: Sequence[LaneBar]) -> list[tuple[LaneBar, int]]:
    """Every bar by start, and until when nothing lies on it: with programmatic dependent launch the next one may."""
    ordered = sorted(bars, key=lambda bar: bar.start_ns)
    following: dict[int, int] = {}
    found = []
    for bar in reversed(ordered):
        found.append((bar, min(bar.end_ns, following.get(bar.row, bar.end_ns))))
        following[bar.row] = bar.start_ns
    return found[::-1]


def _bar(axis: Any, bar: LaneBar, span: int, seen_until: int) -> None:
    width = (bar.end_ns - bar.start_ns) * _US_PER_NS
    left = bar.start_ns * _US_PER_NS
    hatch = None if bar.kind == "kernel" else "////"
    axis.barh(
        bar.row,
        width,
        left=left,
        height=_ROW_HEIGHT,
        color=_colour(bar),
        edgecolor="white",
        lw=0.4,
        hatch=hatch,
        alpha=0.85,
    )
    seen_ns = seen_until - bar.start_ns
    if len(bar.name) * span <= _NAME_LETTERS * seen_ns:  # a cut name names nothing
        middle = left + seen_ns * _US_PER_NS / 2
        axis.text(middle, bar.row, bar.name, ha="center", va="center", color="white", fontsize=5.5, clip_on=True)


def _colour(bar: LaneBar) -> str:
    return _COLOURS.get(bar.leg, _COLOURS[None])


def _legend(figure: Any, title: str) -> None:
    from matplotlib.patches import Patch

    names = {"main": "main leg", "side": "side leg", None: "outside forks"}
    handles = [Patch(color=colour, label=names[leg]) for leg, colour in _COLOURS.items()]
    figure.legend(handles=handles, loc="upper right", ncol=3, frameon=False, fontsize=7)
    if title:
        figure.text(0.01, 0.99, title, ha="left", va="top", fontsize=9)
