"""The figures: what they hold, that nothing is cut, that they can be told apart without colour."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from synthetic import CASES, Spec, build, case

from k3bench.publish.figures import THEMES, signed
from k3bench.publish.lanes import uncovered
from k3bench.publish.plots import figures
from k3bench.records.residency import LaneBar

ROLES = ("before", "after", "zero", "band", "paper", "ink")


def test_a_campaign_with_everything_has_every_figure() -> None:
    """Time against concurrency, forest, run order, noise and residency are drawn, each in four files."""
    found = {figure.stem: figure for figure in figures(case("improvement"))}
    assert list(found) == ["tpot", "forest", "order", "noise", "residency"]
    for stem, figure in found.items():
        assert set(figure.files) == {f"{stem}.svg", f"{stem}.png", f"{stem}.dark.svg", f"{stem}.dark.png"}
        assert figure.title.startswith("Simulated: ")


def test_what_has_no_data_is_not_drawn() -> None:
    """Without zero-change observations and traces there is no noise and no residency figure."""
    assert [f.stem for f in figures(case("one-rack"))] == ["tpot", "forest", "order"]


def test_captions_say_how_many_and_what_the_band_is() -> None:
    """Each caption can stand alone: n, and what the shade means."""
    captions = {f.stem: f.caption for f in figures(case("improvement"))}
    assert "n = 3 observations, 24 pairs at c=1" in captions["tpot"]
    assert "where a zero change of the same design stays with 95 %, from 16 zero-change pairs" in captions["tpot"]
    assert "n = 16 pairs" in captions["noise"]
    assert "before ran first" in captions["order"]


@pytest.mark.parametrize("name", [*CASES, "wide"])
def test_nothing_is_cut_at_an_edge(name: str) -> None:
    """The outermost pixels of every picture are background: no title, label or number runs out of it."""
    record = build(WIDE) if name == "wide" else case(name)
    for figure in figures(record):
        for file, data in figure.files.items():
            if file.endswith(".png"):
                pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
                edge = np.concatenate([pixels[:3].reshape(-1, 3), pixels[-3:].reshape(-1, 3),
                                       pixels[:, :3].reshape(-1, 3), pixels[:, -3:].reshape(-1, 3)])  # fmt: skip
                assert np.abs(edge - pixels[0, 0]).max() < 6, f"{file} of {name} is cut"
                assert len(data) < 250_000


#: Long names, many levels, more observations than panels.
WIDE = Spec(
    name="wide",
    racks=tuple(f"rack-with-a-long-name-{i}" for i in range(14)),
    effects_pct=dict.fromkeys((1, 2, 4, 8, 16, 32, 64, 128), -2.0),
    blocks=2,
)


@pytest.mark.parametrize("theme", THEMES, ids=lambda t: t.name)
def test_roles_differ_in_lightness(theme) -> None:  # type: ignore[no-untyped-def]
    """In grey print, and for every eye, before, after, zero-change and paper stay apart."""
    light = {role: _lightness(getattr(theme, role)) for role in ROLES}
    for one, other, least in (
        ("before", "after", 20), ("before", "paper", 35), ("after", "paper", 35), ("zero", "paper", 30),
        ("after", "zero", 12), ("ink", "paper", 60), ("band", "paper", 3), ("band", "after", 30),
    ):  # fmt: skip
        assert abs(light[one] - light[other]) >= least, (one, other, light)


def _lightness(colour: str) -> float:
    """CIE L* of an sRGB colour, 0 to 100."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def test_another_process_draws_the_same_bytes(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Neither the process, its hash seed nor the clock leaves a trace in a figure."""
    record = case("one-rack")
    (tmp_path / "record.json").write_bytes(record.to_bytes())
    code = (
        "import hashlib,sys,pathlib\n"
        "from k3bench.publish.plots import figures\n"
        "from k3bench.records.comparison import Comparison\n"
        "r=Comparison.from_bytes(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "print(*[hashlib.sha256(d).hexdigest() for f in figures(r) for _, d in sorted(f.files.items())])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "record.json")],
            env={"PATH": "", "PYTHONHASHSEED": seed, "HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1]
    assert len(runs[0].split()) == 12


def test_svg_holds_no_date_and_no_raster() -> None:
    """SVGs are pure drawings without a date: byte-stable, sharp at any size."""
    for figure in figures(case("one-rack")):
        text = figure.files[f"{figure.stem}.svg"].decode()
        assert not re.search(r"<dc:date>|<image ", text)


def test_a_name_has_the_room_until_the_next_bar_of_its_lane() -> None:
    """With programmatic dependent launch bars of one lane overlap; those of other lanes take nothing away."""
    times = ((0, 0, 10), (0, 6, 14), (1, 2, 9), (0, 14, 20))
    bars = [LaneBar(row=row, start_ns=start, end_ns=end, name="k", kind="kernel") for row, start, end in times]
    assert [(bar.row, bar.start_ns, until) for bar, until in uncovered(bars)] == [
        (0, 0, 6),
        (1, 2, 9),
        (0, 6, 14),
        (0, 14, 20),
    ]


def test_a_change_that_rounds_to_zero_has_the_sign_that_tables_give_it() -> None:
    """Half a thousandth below zero is +0.00 in both."""
    assert [signed(x) for x in (-0.0008, 0.0008, -0.03)] == ["+0.00", "+0.00", "\u22120.03"]
