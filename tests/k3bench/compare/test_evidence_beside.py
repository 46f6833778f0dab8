"""Builds, traces and probes beside the times: what they say, and what is outstanding without them."""

from __future__ import annotations

from campaigns import DIGEST, STAMP, noisy, plan, points

from k3bench.compare.campaign import campaign
from k3bench.publish.markdown import pull_request
from k3bench.publish.table import report
from k3bench.records.equivalence import Equivalence, EquivalenceRow
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build
from k3bench.records.residency import FamilySummary, ForkHeadroom, Headroom, Residency


def _build(arm: Arm, source: str) -> Build:
    return Build(
        pair="p1",
        arm=arm,
        kind="installed",
        engine="simulated",
        preset="nano",
        policy=arm,
        environment={},
        source_digest=source * 64,
        git_commit=None,
        git_dirty=None,
        versions={"torch": "2.13"},
    )


def _family(arm: Arm, name: str, busy: float, residency: float, same_lane: float = 0.0) -> FamilySummary:
    return FamilySummary(
        arm=arm,
        family=name,
        n_traces=1,
        segments_per_step=69,
        busy_ms_per_step=busy,
        two_stream_residency_ms_per_step=residency,
        share_of_busy_pct=100 * residency / busy,
        kernels_only_busy_ms_per_step=busy,
        kernels_only_residency_ms_per_step=residency,
        same_lane_only_ms_per_step=same_lane,
        worst_residency_ms_per_step=residency,
        worst_file="t.sqlite",
    )


def _residency(ideal: float) -> Residency:
    rows = (
        _family("before", "KDA", 4.6, 0.0),
        _family("after", "KDA", 4.3, 0.7),
        _family("before", "MLA", 2.1, 0.0),
        _family("after", "MLA", 1.9, 0.3),
    )
    forks = (ForkHeadroom(fork="f1", family="KDA", ideal_ms_per_step=ideal, ideal_kernels_only_ms_per_step=ideal / 2),)
    return Residency(
        warm_up_steps=0, traces=(), summaries=rows, headroom=Headroom(forks=forks, ideal_ms_per_step=ideal)
    )


def test_the_trace_explains_the_gain_or_is_said_not_to() -> None:
    """Busy time saved, all overlap, and the bound on what hiding can gain."""
    of = plan()
    rows = points(of, noisy(-0.04, 0.003))
    for ideal, beyond in ((0.9, False), (0.1, True)):
        how = campaign(of, rows, residency={"obs1": _residency(ideal)}).mechanism
        assert how is not None
        assert round(how.explained_ms_per_step or 0, 6) == 0.5
        assert round(how.ceiling_ms_per_step or 0, 6) == 1.0
        assert how.beyond_ceiling is beyond
        assert {(f.arm, f.family) for f in how.families} == {
            (a, f) for a in ("before", "after") for f in ("KDA", "MLA")
        }


def test_waiting_kernels_of_one_stream_are_said_to_count_as_busy() -> None:
    """Programmatic dependent launch puts kernels of one lane on top of each other; timestamps skew by less."""
    of = plan()
    rows = points(of, noisy(-0.04, 0.003))
    for same_lane, said in ((1.0, True), (0.001, False)):
        trace = _residency(0.9)
        before = (_family("before", "KDA", 4.6, 0.0, same_lane), _family("before", "MLA", 2.1, 0.0, same_lane))
        trace = trace.model_copy(update={"summaries": (*before, *trace.summaries[1::2])})
        seen = campaign(of, rows, residency={"obs1": trace, "obs2": trace})
        assert seen.mechanism is not None
        assert seen.mechanism.same_lane_ms_per_step == (2 * same_lane if said else None)
        text = pull_request(report(seen))
        assert ("2.000 ms a step: kernels of one stream on top of each other" in text) is said
        assert ("so these times are upper bounds" in text) is said


def test_kinds_of_evidence_that_are_not_there_are_outstanding() -> None:
    """Time alone is one of three."""
    of = plan()
    seen = campaign(of, points(of, noisy(-0.04)))
    assert seen.mechanism is None
    assert seen.equality is None
    assert {"residency", "equality", "zero_change"} <= {o.kind for o in seen.outstanding}


def test_probes_that_did_not_run_or_failed_stay_outstanding() -> None:
    """A caught control passes; what could not run says why."""
    rows = (
        EquivalenceRow(kind="fork", status="pass", what="fork 1", preset="nano", policy="after"),
        EquivalenceRow(kind="greedy", status="not_run", what="greedy", preset="nano", policy="after", reason="no CUDA"),
        EquivalenceRow(kind="fork", status="fail", what="fork 3", preset="nano", policy="after"),
        EquivalenceRow(kind="control", status="pass", what="wait removed", preset="nano", policy="broken"),
    )
    record = Equivalence(
        campaign="made-up",
        observation="obs1",
        builds={"before": DIGEST, "after": DIGEST},
        device="cpu",
        versions={},
        settings={},
        measured=STAMP,
        rows=rows,
    )
    of = plan(observations=1)
    seen = campaign(of, points(of, noisy()), equivalence=[record])
    assert seen.equality is not None
    assert len(seen.equality) == 4
    open_rows = {(o.what, o.fix) for o in seen.outstanding if o.kind == "equality"}
    assert open_rows == {("greedy: not run", "no CUDA"), ("fork 3: failed", "")}


def test_rows_say_what_their_builds_were_made_from() -> None:
    """Commits of built arms stand in the row and in the report; a zero change names the one it runs twice."""
    of = plan()
    made = {"kind": "git", "rebuild": True, "name": "main"}
    builds = [
        _build("before", "a").model_copy(update=made | {"git_commit": "1" * 40, "history": "after is 1 commit ahead"}),
        _build("after", "b").model_copy(update=made | {"git_commit": "2" * 40, "patch_digest": "c" * 64}),
    ]
    seen = campaign(of, points(of, noisy()), builds=builds)
    rows = {row.observation: row for row in seen.observations if row.build_pair == "p1"}
    assert rows["obs1"].made_from == {"before": "1" * 12, "after": f"{'2' * 12}+patch {'c' * 12}"}
    assert all(row.made_from == {"before": "1" * 12} for row in rows.values() if row.zero_change)
    text = pull_request(report(seen))
    assert f"p1 (rebuilt): before {'1' * 12}, after {'2' * 12}+patch {'c' * 12}" in text
    assert "builds: after is 1 commit ahead" in text


def test_pairs_that_were_made_from_different_sources_are_flagged() -> None:
    """A branch moved between two builds of one arm: the observations do not measure the same change."""
    of = plan()
    moved = [_build("before", "a"), _build("before", "b").model_copy(update={"pair": "p2"})]
    found = campaign(of, points(of, noisy()), builds=moved).outstanding
    assert any("different sources in different build pairs" in o.what for o in found)


def test_arms_that_differ_in_more_than_what_was_declared_are_flagged() -> None:
    """The same build name with other sources is a difference nobody declared."""
    of = plan()
    rows = points(of, noisy())
    same = campaign(of, rows, builds=[_build("before", "a"), _build("after", "a")])
    other = campaign(of, rows, builds=[_build("before", "a"), _build("after", "b")])
    assert not any("sources" in o.what for o in same.outstanding)
    assert "environment_differs" in other.headline.flags
    assert any(o.kind == "environment" and "sources" in o.what for o in other.outstanding)
    assert {i.kind for i in other.inputs} == {"plan", "build"}
    assert all(i.digest != DIGEST for i in other.inputs)
