"""Records that were deleted, or are another campaign's: whoever reads the verdict is told."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from k3bench.compare.campaign import campaign
from k3bench.errors import RecordError, StoreError
from k3bench.evidence import Evidence, read_evidence
from k3bench.publish.markdown import pull_request
from k3bench.publish.table import report
from k3bench.records.base import Record
from k3bench.records.comparison import Comparison
from k3bench.records.equivalence import Equivalence
from k3bench.records.measurement import Allocation, Block, Check, PointRef
from k3bench.records.plan import Build, Plan
from k3bench.records.residency import Residency
from k3bench.store import CampaignFolder, read_record, write_record

RECORDED = Path(__file__).parents[3] / "results" / "recorded" / "h200-first"


TOO = "those that lie in the folder of obs1 too"


@pytest.fixture
def folder(tmp_path: Path) -> CampaignFolder:
    """A copy of a whole campaign: two observations, both profiled and probed, and two zero-change ones."""
    return CampaignFolder(Path(shutil.copytree(RECORDED, tmp_path / "results" / "whole")))


def compared(folder: CampaignFolder) -> Comparison:
    found = read_evidence(folder.root)
    assert isinstance(found, Evidence)
    return campaign(found.plan, found.points, **found.others())


#: The campaign had no time for some probes on its first boot, and on its second for the quick preset only.
NO_TIME = re.compile(r"not run \(13 of|^obs2: lacks probes that another observation has \((\d+) of \1 on block-12\)$")


def outstanding(seen: Comparison) -> list[tuple[str, str]]:
    """What is outstanding beyond the probes that the campaign itself had no time for."""
    return [(o.kind, o.what) for o in seen.outstanding if not NO_TIME.search(o.what)]


def valid_runs(seen: Comparison) -> dict[str, int]:
    return {row.observation: row.n_runs_valid for row in seen.observations}


def changed(path: Path, kind: type[Record], **fields: object) -> None:
    """Other content under the same name, as if it had come from elsewhere."""
    write_record(path, read_record(path, kind).model_copy(update=fields))


def test_a_whole_campaign_has_nothing_outstanding_of_these_kinds(folder: CampaignFolder) -> None:
    """What follows is said of broken folders only."""
    seen = compared(folder)
    assert outstanding(seen) == []
    assert not {"environment_differs", "environment_unverified", "incomplete"} & set(seen.headline.flags)


def test_points_without_their_blocks_closing_record_do_not_count(folder: CampaignFolder) -> None:
    """The block is lost, whether the record is gone or names other content; the observation says so."""
    folder.block("obs1", "b001-a1").unlink()
    block = read_record(folder.block("obs2", "b002-a1"), Block)
    others = tuple(PointRef(point=ref.point, digest="0" * 64) for ref in block.points)
    changed(folder.block("obs2", "b002-a1"), Block, points=others)
    seen = compared(folder)
    why = "a block's closing record is missing, so its points do not count"
    assert outstanding(seen) == [
        ("observation", f"obs1 is incomplete: {why} (b001 of 4 blocks)"),
        ("observation", f"obs2 is incomplete: {why} (b002 of 4 blocks)"),
    ]
    assert "incomplete" in seen.headline.flags
    assert valid_runs(seen) == {"obs1": 12, "obs2": 12, "zero1": 16, "zero2": 16}


def test_runs_of_an_invalid_block_do_not_come_back_when_its_record_is_deleted(folder: CampaignFolder) -> None:
    """Taking the reason away makes nothing valid."""
    path = folder.block("obs1", "b001-a1")
    changed(path, Block, checks=(Check(name="machine_unchanged", ok=False, detail="clocks"),))
    assert valid_runs(compared(folder))["obs1"] == 12
    path.unlink()
    assert valid_runs(compared(folder))["obs1"] == 12


def test_a_deleted_point_is_named_with_the_allocation_that_lists_it(folder: CampaignFolder) -> None:
    """Restore it, or measure the block again."""
    name = read_record(folder.allocation("obs1", "alloc1"), Allocation).accepted[0].point
    folder.point("obs1", name).unlink()
    with pytest.raises(StoreError, match=r"alloc1\.json of obs1 lists as measured") as refused:
        read_evidence(folder.root)
    assert "measure its block again: k3bench measure PLAN obs1/alloc1" in refused.value.fix


def test_points_of_another_build_than_the_recorded_one_are_named(folder: CampaignFolder) -> None:
    """Observation and arm; a zero-change observation runs the arm `before` on both sides. A flag says it truly."""
    changed(folder.build("p1", "before"), Build, source_digest="0" * 64)
    changed(folder.build("p1", "after"), Build, source_digest="0" * 64)
    seen = compared(folder)
    told = [what for kind, what in outstanding(seen) if kind == "environment" and "timed another build" in what]
    assert "obs1 timed another build of arm before than builds/p1/before.json describes" in told
    assert "obs1 timed another build of arm after than builds/p1/after.json describes" in told
    assert not any(what.startswith("obs2") for what in told)
    assert "environment_differs" in seen.headline.flags
    assert "environment_unverified" not in seen.headline.flags
    assert "not what was declared, or not what was timed (see Outstanding)" in pull_request(report(seen))


def test_a_build_that_nobody_recorded_is_outstanding(folder: CampaignFolder) -> None:
    """Points cite a build that no record describes."""
    folder.build("p2", "after").unlink()
    seen = compared(folder)
    assert ("environment", "builds/p2/after.json is missing: what was timed as that arm is not known") in outstanding(
        seen
    )
    assert "environment_unverified" in seen.headline.flags


def test_missing_fingerprints_leave_the_machine_unknown(folder: CampaignFolder) -> None:
    """Points and blocks cite them by digest."""
    shutil.rmtree(folder.observation("obs2") / "fingerprints")
    seen = compared(folder)
    assert outstanding(seen) == [
        ("environment", "fingerprints that obs2 cite are missing: the machine is not known"),
    ]
    assert "environment_unverified" in seen.headline.flags


def test_raw_step_times_that_are_gone_or_changed_are_counted(folder: CampaignFolder) -> None:
    """One line an observation; what a point cites by digest must be those bytes."""
    names = [ref.point for ref in read_record(folder.allocation("obs1", "alloc1"), Allocation).accepted]
    for name in names[:3]:
        folder.raw("obs1", name).unlink()
    shutil.copy(folder.raw("obs1", names[4]), folder.raw("obs1", names[5]))
    shutil.rmtree(folder.observation("zero2") / "raw")
    seen = compared(folder)
    assert sorted(outstanding(seen)) == [
        ("time", "raw step times of obs1: of 64 files that its points cite, 3 missing, 1 with other bytes"),
        ("time", "raw step times of zero2: of 64 files that its points cite, 64 missing"),
    ]


def test_probes_of_other_builds_show_nothing_about_the_timed_ones(folder: CampaignFolder) -> None:
    """The headline does not say that every probe is equal, and the observation is named."""
    before = read_record(folder.equivalence("obs1"), Equivalence).builds["before"]
    changed(folder.equivalence("obs1"), Equivalence, builds={"before": before, "after": "0" * 64})
    seen = compared(folder)
    assert outstanding(seen) == [("equality", "the probes of obs1 are not of the builds that it timed (after)")]
    text = pull_request(report(seen))
    assert "every probe that ran is equal" not in text
    assert "**Same results:** not shown, 295 probes ran on other builds than were timed" in text
    assert "**Other builds than were timed** ran 295 probes: they say nothing about these." in text


def test_probes_in_another_observations_folder_are_refused(folder: CampaignFolder) -> None:
    """They would count for the observation that they name, and nobody would look for those of this one."""
    shutil.copy(folder.equivalence("obs1"), folder.equivalence("obs2"))
    with pytest.raises(RecordError, match="the equivalence record of another observation"):
        read_evidence(folder.root)


def test_observations_that_were_probed_less_than_others_are_named(folder: CampaignFolder) -> None:
    """Of two that were timed alike: one without a record, then one whose record was cut short."""
    fewer = "obs2: lacks probes that another observation has (141 of 141 on block-12)"
    assert ("equality", fewer) in [(o.kind, o.what) for o in compared(folder).outstanding]
    first = folder.equivalence("obs1")
    kept = read_record(first, Equivalence)
    first.unlink()
    seen = compared(folder)
    assert outstanding(seen) == [("equality", "obs1: outputs of its builds were not probed, those of others were")]
    assert [o.fix for o in seen.outstanding] == ["k3bench verify PLAN obs1"]
    write_record(first, kept.model_copy(update={"rows": kept.rows[:5]}))
    assert outstanding(compared(folder))[0] == (
        "equality",
        "obs1: lacks probes that another observation has (149 of 154 on small)",
    )
    small = [row for row in kept.rows if row.preset == "small"]
    write_record(first, kept.model_copy(update={"rows": (*kept.rows[len(small) :], *small[:5] * 31)}))
    assert any(what.startswith("obs1: lacks probes") for _, what in outstanding(compared(folder)))
    folder.equivalence("obs2").unlink()
    assert ("equality", "obs2: outputs of its builds were not probed, those of others were") in outstanding(
        compared(folder)
    )


@pytest.mark.parametrize(
    ("kind", "what"), [("control", "no control was probed"), ("greedy", "no greedy tokens were compared")]
)
def test_sameness_without_controls_or_tokens_says_what_was_not_looked_at(
    folder: CampaignFolder, kind: str, what: str
) -> None:
    """Equal bits alone are half of the claim."""
    for observation in ("obs1", "obs2"):
        path = folder.equivalence(observation)
        rows = tuple(row for row in read_record(path, Equivalence).rows if row.kind != kind)
        changed(path, Equivalence, rows=rows)
    assert outstanding(compared(folder)) == [("equality", what)]


def test_planned_profiled_runs_without_a_trace_are_one_line(folder: CampaignFolder) -> None:
    """The mechanism says what it is made of, and what of the plan it is not made of."""
    assert "traces: obs1 at c=1, 1 before, 1 after; obs2 at c=1, 1 before, 1 after" in pull_request(
        report(compared(folder))
    )
    folder.residency("obs1").unlink()
    seen = compared(folder)
    assert outstanding(seen) == [("residency", "profiled runs of obs1 are missing")]
    assert "- traces: obs2 at c=1, 1 before, 1 after\n" in pull_request(report(seen))
    traces = read_record(folder.residency("obs2"), Residency).traces
    changed(folder.residency("obs2"), Residency, traces=tuple(t for t in traces if t.arm == "after"))
    assert outstanding(compared(folder)) == [("residency", "profiled runs of obs1, obs2 are missing")]


def test_traces_that_two_observations_show_count_once(folder: CampaignFolder) -> None:
    """A copy in the place of an observation's own traces is no second look, and the mechanism is made without it."""
    shutil.copy(folder.residency("obs1"), folder.residency("obs2"))
    seen = compared(folder)
    assert outstanding(seen) == [("residency", f"the traces of obs2 do not count: they are {TOO}")]
    assert seen.mechanism is not None
    assert {traces.observation for traces in seen.mechanism.traces} == {"obs1"}


def test_a_trace_explains_the_gain_of_its_own_level(folder: CampaignFolder) -> None:
    """Profiled at concurrency 2, it is held against what was gained there, not at the primary level."""
    for observation in ("obs1", "obs2"):
        traces = read_record(folder.residency(observation), Residency).traces
        changed(
            folder.residency(observation), Residency, traces=tuple(t.model_copy(update={"level": 2}) for t in traces)
        )
    seen = compared(folder)
    level = next(row for row in seen.levels if row.concurrency == 2)
    assert seen.mechanism is not None
    assert level.before_median is not None
    assert level.delta_pct is not None
    assert seen.mechanism.gain_ms_per_step == pytest.approx(-level.before_median * level.delta_pct / 100)


def test_points_of_one_level_that_are_gone_are_named(folder: CampaignFolder) -> None:
    """The observation is incomplete, not missing: its other levels count."""
    record = read_record(folder.allocation("obs1", "alloc1"), Allocation)
    kept = tuple(ref for ref in record.accepted if not ref.point.endswith("-c8"))
    changed(folder.allocation("obs1", "alloc1"), Allocation, accepted=kept)
    for path in (folder.observation("obs1") / "points").glob("*-c8.json"):
        path.unlink()
    for path in (folder.observation("obs1") / "blocks").glob("*.json"):
        block = read_record(path, Block)
        changed(path, Block, points=tuple(ref for ref in block.points if not ref.point.endswith("-c8")))
    row = next(row for row in compared(folder).observations if row.observation == "obs1")
    assert row.status == "incomplete"
    assert row.reason is not None
    assert row.reason.startswith("points are missing at concurrency 8 (b000, ")


def _with_builds(folder: CampaignFolder, observation: str) -> None:
    """The residency record as it is written now: each trace names the build that ran."""
    planned = read_record(folder.plan, Plan).observation(observation)
    traces = tuple(
        t.model_copy(update={"build": read_record(folder.build(planned.pair, t.arm), Build).identity})
        for t in read_record(folder.residency(observation), Residency).traces
        if t.arm is not None
    )
    changed(folder.residency(observation), Residency, traces=traces)


def test_traces_of_other_builds_than_were_timed_do_not_count(folder: CampaignFolder) -> None:
    """Records exchanged between observations name each other's builds."""
    for observation in ("obs1", "obs2"):
        _with_builds(folder, observation)
    assert outstanding(compared(folder)) == []
    first, second = (folder.residency(observation) for observation in ("obs1", "obs2"))
    kept = first.read_bytes()
    shutil.copy(second, first)
    why = "not of the builds that it timed (before, after)"
    assert outstanding(compared(folder)) == [("residency", f"the traces of obs1 do not count: they are {why}")]
    second.write_bytes(kept)
    seen = compared(folder)
    assert [what for kind, what in outstanding(seen) if kind == "residency"] == [
        f"the traces of obs1 do not count: they are {why}",
        f"the traces of obs2 do not count: they are {why}",
        "two-stream residency from GPU traces",
    ]
    assert "**Why:** not shown, there is no trace of these builds." in pull_request(report(seen))


def test_the_command_line_says_what_the_word_alone_hides(
    folder: CampaignFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line each for equality and environment; the exit status stays that of a comparison that was made."""
    from k3bench.cli import main

    monkeypatch.chdir(folder.root.parents[1])
    assert main(["compare", str(folder.root)]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    record = json.loads(folder.equivalence("obs1").read_text())
    record["builds"], record["rows"][0]["status"] = {}, "fail"
    write_record(folder.equivalence("obs1"), Equivalence.model_validate_json(json.dumps(record)))
    shutil.rmtree(folder.observation("obs2") / "fingerprints")
    changed(folder.build("p1", "after"), Build, source_digest="0" * 64)
    assert main(["compare", str(folder.root)]) == 0
    first, *doubts = capsys.readouterr().out.splitlines()
    assert first.endswith("improvement; " + str(folder.comparison))
    assert doubts == [
        "  equality: 1 of 462 probes failed",
        "  equality: not shown on the builds that were timed",
        "  environment: not what was declared or timed; see Outstanding",
        "  environment: not verified",
    ]
