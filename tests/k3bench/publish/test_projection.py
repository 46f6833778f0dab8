"""What MLflow will hold: every number of the records, exact, under names it takes."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from published import PR_17103, RECORDED, needs_pr_17103
from residency_of import residency
from synthetic import CASES, Spec, make, write

from k3bench.publish.gather import gather
from k3bench.publish.projected import Campaign, Point, Projected, safe_key
from k3bench.publish.projection import project
from k3bench.records.comparison import Comparison
from k3bench.store import CampaignFolder, read_record, write_record

SPEC = Spec(name="small", racks=("r1", "r2"), blocks=2, effects_pct={1: -4.0, 4: -3.0}, superseded=3)


def projected(spec: Spec, root: Path, *, note: str = "") -> list[Projected]:
    record = read_record(write(spec, root), Comparison)
    return project(gather(record, root, files={}, note=note))


def points(runs: list[Projected]) -> dict[tuple[str, str, int], list[float]]:
    found: dict[tuple[str, str, int], list[float]] = {}
    for run in runs:
        for p in run.points:
            found.setdefault((run.name, p.key, p.step), []).append(p.value)
    return found


def test_every_metric_of_every_point_is_there_exact(tmp_path: Path) -> None:
    """Each single run of each level keeps every metric, at its position in the observation; fragments stand apart."""
    there, made = points(projected(SPEC, tmp_path)), make(SPEC)
    for p in made.points:
        for metric, value in p.metrics.items():
            key = (f"{p.observation}.{p.name.arm}", f"runs_c{p.name.level}/{metric}", 4 * p.name.block + p.name.run + 1)
            assert there[key] == [value]
    for p in made.fragments:
        assert [p.metrics["tpot_median_ms"]] in [
            v for (name, key, _), v in there.items() if key == f"superseded_c{p.name.level}/tpot_median_ms"
        ]


def test_curves_are_the_medians_that_the_comparison_holds(tmp_path: Path) -> None:
    """Step is the concurrency; the curve and the flat column are the record's own before and after medians."""
    there, record = points(projected(SPEC, tmp_path)), make(SPEC).comparison
    for row in record.observations:
        for level in row.levels:
            for arm, median in (("before", level.before_median), ("after", level.after_median)):
                name = f"{row.observation}.{arm}"
                assert there[name, "latency/tpot_median_ms", level.concurrency] == [median]
                assert there[name, f"c{level.concurrency}_tpot_ms", 0] == [median]


@pytest.mark.parametrize("name", CASES)
def test_every_number_of_the_comparison_is_in_the_verdict_run(name: str, tmp_path: Path) -> None:
    """Walk the record's JSON: each number outside the single runs stands in the verdict run, exact."""
    runs = projected(CASES[name], tmp_path)
    verdict = next(run for run in runs if run.role == "verdict")
    values = {p.value for p in verdict.points}
    record = json.loads(verdict.artifacts["comparison.json"])
    for path, value in _numbers({k: v for k, v in record.items() if k not in ("runs", "inputs")}):
        assert value in values, path


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield path, float(value)
    else:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):  # type: ignore[attr-defined]
            yield from _numbers(item, f"{path}.{key}")


def test_words_and_equality_rows_are_tags(tmp_path: Path) -> None:
    """The word of each level and each probe's outcome can be searched for."""
    verdict = projected(CASES["improvement"], tmp_path)[-1]
    assert verdict.tags["verdict"] == "improvement"
    assert verdict.tags["c2_word"] == "within_noise"
    assert verdict.tags["equality.01"] == "pass: KDA projection staging"


def test_hundreds_of_probes_are_counted_in_tags_and_all_in_the_table(tmp_path: Path) -> None:
    """Too many for tags: they are counted by kind there, and each is a row of the table artifact."""
    record = read_record(write(SPEC, tmp_path), Comparison)
    assert record.equality
    probes = tuple(
        r.model_copy(update={"batch": i, "what": f"probe {i % 3}"}) for i, r in enumerate(record.equality * 60)
    )
    many = record.model_copy(update={"equality": probes})
    verdict = project(gather(many, tmp_path, files={}, note=""))[-1]
    assert len(verdict.tags) < 60
    assert any(re.fullmatch(r"fork, probe 0: .*\d+ pass.*", value) for value in verdict.tags.values())
    rows = list(csv.DictReader(io.StringIO(verdict.artifacts["tables/equality.csv"].decode())))
    assert [(row["kind"], row["status"], row["batch"]) for row in rows] == [
        (p.kind, p.status, str(p.batch)) for p in probes
    ]


def test_residency_busy_share_and_hidden_time_are_in_the_arms_run(tmp_path: Path) -> None:
    """Each arm carries its own trace's numbers, down to what each kernel hid; the curve's step is the trace's level."""
    write(SPEC, tmp_path)
    found = residency(level=4)
    write_record(CampaignFolder(tmp_path).residency("obs1"), found)
    record = read_record(tmp_path / "comparison.json", Comparison)
    runs = {run.name: run for run in project(gather(record, tmp_path, files={}, note=""))}
    for arm in ("before", "after"):
        run = runs[f"obs1.{arm}"]
        values = {p.value for p in run.points}
        for trace in (t for t in found.traces if t.arm == arm):
            for path, value in _numbers(json.loads(trace.model_dump_json(exclude={"pictures"}))):
                assert value in values, path
        for summary in (s for s in found.summaries if s.arm == arm):
            key = f"overlap/{summary.family.lower()}_residency_ms"
            assert Point(key, summary.two_stream_residency_ms_per_step, 4, run.end_ms) in run.points
    assert not [p for p in runs["obs2.after"].points if p.key.startswith("overlap/")]


def test_the_same_records_give_the_same_digests(tmp_path: Path) -> None:
    """A digest depends on content alone; one changed value changes one arm's digest."""
    one = {run.key: run.digest for run in projected(SPEC, tmp_path / "a")}
    two = {run.key: run.digest for run in projected(SPEC, tmp_path / "b")}
    assert one == two
    noted = {run.key: run.digest for run in projected(SPEC, tmp_path / "a", note="other")}
    assert [key for key in one if one[key] != noted[key]] == ["small/verdict"]


def test_no_run_has_a_parent_and_every_run_has_an_arm(tmp_path: Path) -> None:
    """Nested runs fold away in the UI, and a run without the tag it is grouped by is drawn as a stray line."""
    for run in projected(SPEC, tmp_path):
        assert "mlflow.parentRunId" not in run.tags
        if run.role == "measurement":
            assert run.tags["arm"] in ("before", "after", "zero-change")
            assert run.tags["mlflow.runColor"]


def test_names_are_such_as_mlflow_takes(tmp_path: Path) -> None:
    """Kernel names hold anything: what MLflow refuses is replaced, and a digest keeps two of them apart."""
    ugly = "void gemm<float, 4>(T*) [clone .kd]/" * 12
    assert re.fullmatch(r"[A-Za-z0-9_\-.:/ ]{1,250}", safe_key(ugly))
    assert safe_key(ugly + "a") != safe_key(ugly + "b")
    assert safe_key("latency/tpot_median_ms") == "latency/tpot_median_ms"
    for run in projected(SPEC, tmp_path):
        for p in run.points:
            assert re.fullmatch(r"[A-Za-z0-9_\-.:/ ]{1,250}", p.key)
            assert "//" not in p.key
        assert all(len(v) <= 5000 for v in run.tags.values())


@needs_pr_17103
def test_published_figures_are_projected_as_published() -> None:
    """Every level that the claim shows is a point of its arm; nulls are not there, least of all as zeros."""
    from k3bench.records.reported import Reported

    reported = read_record(RECORDED / "reported.json", Reported)
    runs = project(Campaign(PR_17103(), reported))
    assert {run.name for run in runs} == {
        "obs2.before", "obs2.after", "obs3.before", "obs3.after", "verdict pr-17103",
    }  # fmt: skip
    there = points(runs)
    for delta in reported.deltas:
        for arm, value in (("before", delta.before_tpot_ms), ("after", delta.after_tpot_ms)):
            key = (f"{delta.observation}.{arm}", "latency/tpot_median_ms", delta.level)
            assert there.get(key) == (None if value is None else [value])
