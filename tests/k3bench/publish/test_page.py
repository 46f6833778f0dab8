"""The page: one file, no network, no script but ours, sortable, light and dark; tried in a real browser."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Tab, with_tab
from synthetic import case

from k3bench.publish.stage import render
from k3bench.records.comparison import Comparison

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"
)
#: Where screenshots are kept for people to look at; a temporary folder unless named.
SHOTS = os.environ.get("K3_SCREENSHOTS")


def html(record: Comparison) -> str:
    return render(record).files["index.html"].decode()


class Sources(HTMLParser):
    """Everything in a page that would make a browser ask for something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "data", "action", "srcset") or (name.endswith(":href")):
                self.found.append(f"{tag} {value}")


def test_the_page_asks_for_nothing() -> None:
    """No address leaves the file: images are drawn inline, the icon is empty, references stay inside."""
    text = html(case("improvement"))
    sources = Sources()
    sources.feed(text)
    assert sources.found
    assert not [s for s in sources.found if not re.search(r" (#|data:,$)", s)]
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_every_number_carries_its_exact_value() -> None:
    """Pointing at a number shows the field it was read from and the value before rounding."""
    record = case("improvement")
    text = html(record)
    exact = record.levels[0].delta_pct
    assert f'title="levels[0].delta_pct = {exact}"' in text


def test_foreign_text_is_text(tmp_path: Path) -> None:
    """A title that is markup is shown, not run."""
    text = html(
        case("one-rack").model_copy(update={"title": '<img src=x onerror="alert(1)"><script>alert(2)</script>'})
    )
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in text


def test_ids_are_unique() -> None:
    """Several drawings in one page: each has names of its own."""
    found = re.findall(r'\bid="([^"]+)"', html(case("improvement")))
    assert len(found) == len(set(found))


def browse(record: Comparison, tmp_path: Path, work) -> Tab:  # type: ignore[no-untyped-def]
    page = tmp_path / "index.html"
    page.write_bytes(render(record).files["index.html"])

    async def visit(tab: Tab) -> Tab:
        await tab.open(page.as_uri())
        await work(tab)
        return tab

    tab = with_tab(visit)
    assert isinstance(tab, Tab)
    return tab


async def shoot(tab: Tab, name: str) -> None:
    if SHOTS:
        height = await tab.evaluate("document.documentElement.scrollHeight")
        await tab.command(
            "Emulation.setDeviceMetricsOverride", width=1100, height=height, deviceScaleFactor=1, mobile=False
        )
        await tab.screenshot(Path(SHOTS) / f"{name}.png")


@needs_chromium
@pytest.mark.parametrize("name", ["improvement", "missing", "disagreement"])
def test_a_browser_opens_it_quietly(name: str, tmp_path: Path) -> None:
    """No console error, no request beyond the file itself, in both colour schemes."""

    async def both(tab: Tab) -> None:
        await shoot(tab, f"page-{name}")
        await tab.dark(True)
        await shoot(tab, f"page-{name}.dark")

    tab = browse(case(name), tmp_path, both)
    assert tab.errors == []
    assert {url.rpartition("/")[2] for url in tab.requests} == {"index.html"}


@needs_chromium
def test_tables_sort_by_the_exact_value(tmp_path: Path) -> None:
    """A click sorts by number, a second one turns it round; the column says which."""
    found = {}

    async def click(tab: Tab) -> None:
        column = "document.querySelectorAll('#levels th')[3]"
        cells = "[...document.querySelectorAll('#levels tbody tr')].map(r => r.cells[0].innerText).join()"
        for turn in ("ascending", "descending"):
            await tab.evaluate(f"{column}.firstElementChild.click()")
            found[turn] = await tab.evaluate(cells)
            assert await tab.evaluate(f"{column}.getAttribute('aria-sort')") == turn

    record = case("improvement")
    browse(record, tmp_path, click)
    by_delta = [str(lv.concurrency) for lv in sorted(record.levels, key=lambda lv: lv.delta_pct or 0.0)]
    assert found == {"ascending": ",".join(by_delta), "descending": ",".join(reversed(by_delta))}


@needs_chromium
def test_light_and_dark_follow_the_reader(tmp_path: Path) -> None:
    """The page follows the system's scheme until the button says otherwise; drawings change with it."""
    seen = []

    async def look(tab: Tab) -> None:
        colour = "getComputedStyle(document.body).backgroundColor"
        patch = "getComputedStyle(document.querySelector('#figure-tpot path')).fill"
        for dark in (False, True):
            await tab.dark(dark)
            seen.append((await tab.evaluate(colour), await tab.evaluate(patch)))
        await tab.evaluate("document.getElementById('theme').click()")
        seen.append((await tab.evaluate(colour), await tab.evaluate(patch)))

    browse(case("one-rack"), tmp_path, look)
    light, dark, turned = seen
    assert light == ("rgb(255, 255, 255)", "rgb(255, 255, 255)")
    assert dark == ("rgb(13, 17, 23)", "rgb(13, 17, 23)")
    assert turned == light


@needs_chromium
def test_dots_say_their_value(tmp_path: Path) -> None:
    """Each run in the main figure tells its record and value when pointed at."""
    said: list[str] = []

    async def read(tab: Tab) -> None:
        said.extend(
            await tab.evaluate("[...document.querySelectorAll('#figure-tpot use title')].map(t => t.textContent)")
        )

    record = case("one-rack")
    browse(record, tmp_path, read)
    for run in record.runs:
        assert f"{run.record_id}: {run.value:.4f} ms" in said


@needs_chromium
def test_nothing_is_wider_than_the_page(tmp_path: Path) -> None:
    """On a narrow screen wide tables scroll by themselves and the page does not."""

    async def narrow(tab: Tab) -> None:
        await tab.command(
            "Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False
        )
        assert await tab.evaluate("document.documentElement.scrollWidth") <= 420

    browse(case("improvement"), tmp_path, narrow)
