"""Lane pictures of a campaign as figures. In: a comparison, the folder with its residency records. Out: `Figure`s.

Out of scope: drawing a lane (`lanes.py`), choosing the layer (the trace stage).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from k3bench.publish import lanes
from k3bench.publish.figures import LIGHT, THEMES, Figure, style
from k3bench.records.comparison import Comparison
from k3bench.records.residency import LanePicture, Residency
from k3bench.store import CampaignFolder, read_record


def lane_figures(record: Comparison, records: Path) -> Iterator[Figure]:
    """One figure for the first observation whose traces hold pictures; none where there is no trace."""
    for row in record.observations:
        path = CampaignFolder(records).residency(row.observation)
        if not path.exists():
            continue
        found = read_record(path, Residency)
        before, after = _pictures(found, "before"), _pictures(found, "after")
        if before or after:
            yield _figure(record, row.observation, before, after)
            return


def _pictures(found: Residency, arm: str) -> list[LanePicture]:
    """Of the first trace of an arm that holds any."""
    return next((list(t.pictures) for t in found.traces if t.arm == arm and t.pictures), [])


def _figure(record: Comparison, observation: str, before: list[LanePicture], after: list[LanePicture]) -> Figure:
    title = ("Simulated: " if record.simulated else "") + f"One layer of each family on its streams, {observation}"
    caption = (
        "The step whose residency is the median; both arms on one time axis, from profiled runs. Work on two lanes at "
        "the same time is two-stream residency."
    )
    files = {}
    with tempfile.TemporaryDirectory(prefix="k3bench-") as folder:
        for theme in THEMES:
            for kind in ("svg", "png"):
                name = f"lanes{'' if theme is LIGHT else '.dark'}.{kind}"
                with style(theme, salt="lanes"):
                    lanes.draw(before, after, Path(folder, name), title=title)
                files[name] = Path(folder, name).read_bytes()
    return Figure("lanes", title, caption, files, caption_inside=False)
