"""What every figure shares: themes, style, title and caption, dots that speak, SVG and PNG of stable bytes.

In: a record and a function that draws. Out: a `Figure`. The only file that imports seaborn. Out of scope: what is drawn
(`plots.py`), lane pictures (`lanes.py`).
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from k3bench.publish import captions
from k3bench.publish.cite import MINUS
from k3bench.records.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

#: Inches. Read at 600 pixels, so text of 9 points is 12 pixels high.
WIDTH = 6.0
PNG_DPI = 200


@dataclass(frozen=True)
class Theme:
    """One colour per role. Roles differ in lightness, so they differ in print and for every eye."""

    name: str
    paper: str
    ink: str
    muted: str
    grid: str
    before: str
    after: str
    zero: str
    band: str


LIGHT = Theme("light", "#ffffff", "#1f2328", "#656d76", "#e4e7eb", "#868e98", "#0a4a86", "#b08d3c", "#f4ecd8")
DARK = Theme("dark", "#0d1117", "#e6edf3", "#8d96a0", "#262c36", "#848d97", "#8cc8ff", "#b48b38", "#2b2619")
THEMES = (LIGHT, DARK)


@dataclass(frozen=True)
class Figure:
    """One picture in every form it is shown in. `hover` names each group of dots and what its dots say."""

    stem: str
    title: str
    caption: str
    files: dict[str, bytes] = field(repr=False)
    #: False where the picture itself does not carry its caption
    caption_inside: bool = True


Draw = Callable[[Comparison, Theme], "Canvas"]


def figure(record: Comparison, stem: str, draw: Draw) -> Figure:
    """One picture in every form: drawn once a theme, saved as SVG and PNG."""
    files = {}
    for theme in THEMES:
        suffix = "" if theme is LIGHT else ".dark"
        with style(theme, salt=f"{record.campaign}/{stem}"):
            made = draw(record, theme)
            _title(made, captions.title(record, stem), captions.caption(record, stem), theme)
            files[f"{stem}{suffix}.svg"] = _bytes(made, "svg")
            files[f"{stem}{suffix}.png"] = _bytes(made, "png")
    return Figure(stem, captions.title(record, stem), captions.caption(record, stem), files)


def _bytes(canvas: Canvas, kind: str) -> bytes:
    """Without date and maker: both would differ between machines."""
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    out = io.BytesIO()
    canvas.savefig(out, format=kind, dpi=PNG_DPI, metadata=metadata)
    return _small(out) if kind == "png" else out.getvalue()


def _small(png: io.BytesIO) -> bytes:
    """The same picture in 128 colours: a third of the bytes, for comments that have a limit."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(png).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return out.getvalue()


@contextmanager
def style(theme: Theme, *, salt: str) -> Iterator[None]:
    """Seaborn's white style in the theme's colours, with the font that ships with matplotlib. Closes what was drawn."""
    import matplotlib as mpl
    import seaborn as sns

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rc: Any = {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.labelcolor": theme.muted,
        "axes.edgecolor": theme.muted,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.grid,
        "axes.grid": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "axes.linewidth": 0.8,
        "svg.hashsalt": salt,
        "svg.fonttype": "path",
        "figure.max_open_warning": 0,
    }
    with mpl.rc_context(), sns.axes_style("white", rc=rc), sns.plotting_context("notebook", rc=rc):
        mpl.rcParams.update(rc)
        try:
            yield
        finally:
            plt.close("all")


def canvas(height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Canvas, list[Axes]]:
    """An empty figure of the common width and its plots, row by row."""
    from matplotlib import pyplot as plt

    made, axes = plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False, **grid)
    return made, [ax for line in axes for ax in line]


def _title(canvas: Canvas, title: str, caption: str, theme: Theme) -> None:
    """Title on top, caption below, the plot between them; all inside the page whatever their length."""
    height = canvas.get_size_inches()[1]
    head = textwrap.wrap(title, 68)
    foot = textwrap.wrap(caption, 104)
    canvas.text(0.015, 1 - 0.07 / height, "\n".join(head), va="top", ha="left", fontsize=10, fontweight="bold")
    canvas.text(
        0.015, 0.08 / height, "\n".join(foot), va="bottom", ha="left", fontsize=7.5, color=theme.muted, linespacing=1.35
    )
    top, bottom = 0.16 + 0.17 * len(head), 0.14 + 0.145 * len(foot)
    for _ in range(2):  # the first pass moves the axes, which changes their ticks, which need other room
        canvas.tight_layout(rect=(0, bottom / height, 1, 1 - top / height), pad=0.5, h_pad=1.0, w_pad=0.8)


def bare(ax: Axes, theme: Theme, *, grid: str = "y") -> None:
    """No frame, no ticks, a grid along one axis only."""
    import seaborn as sns

    sns.despine(ax=ax, left=True, bottom=grid == "x")
    ax.grid(True, axis=grid, color=theme.grid, linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
    _real_minus(ax)


def _real_minus(ax: Axes) -> None:
    from matplotlib.ticker import ScalarFormatter

    for axis in (ax.xaxis, ax.yaxis):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, ScalarFormatter):
            formatter.set_useOffset(False)


def dots(ax: Axes, x: list[float], y: list[float], *, group: str, says: list[str], **look: Any) -> None:
    """Dots that say something when the page's reader points at them; `group` is their id in the SVG."""
    import seaborn as sns

    if not x:
        return
    sns.scatterplot(x=x, y=y, ax=ax, legend=False, **look)
    ax.collections[-1].set_gid(_hover_id(group, says))


def _hover_id(group: str, says: list[str]) -> str:
    """Carried in the SVG as the group's id; the page turns it into tooltips."""
    return "|".join(("hover", group, *says))


def signed(x: float, decimals: int = 2) -> str:
    """A change with its sign, always shown; what rounds to zero is +0, as in the tables."""
    return f"{x:+z.{decimals}f}".replace("-", MINUS)
