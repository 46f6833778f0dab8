"""The pull-request section: what it says, what it does not claim, and that it stays whole."""

from __future__ import annotations

import re

import pytest
from published import PR_17103, needs_pr_17103
from synthetic import CASES, Spec, build, case

from k3bench.errors import RecordError
from k3bench.publish.markdown import MAX_CHARS, begin_marker, mlflow_note, pull_request, replaced_in
from k3bench.publish.stage import put_into, render
from k3bench.publish.table import report
from k3bench.records.comparison import Comparison, Floor, Provenance


def section(record: Comparison) -> str:
    return pull_request(report(record))


def part(record: Comparison, heading: str) -> str:
    return section(record).split(f"### {heading}")[1].split("\n### ")[0]


@pytest.mark.parametrize("name", CASES)
def test_simulated_stands_in_every_title(name: str) -> None:
    """A report, its tables and its figures made from simulated numbers say so in their titles."""
    text = section(case(name))
    assert "## Simulated decode performance" in text
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert len(headings) == 8
    assert all("(simulated)" in heading for heading in headings)


def test_the_verdict_names_word_size_interval_and_observations() -> None:
    """The first sentence answers: faster or not, by how much, how sure, on how many observations."""
    first = section(case("improvement")).split("\n")[3]
    assert first.startswith("**Improvement.** TPOT at concurrency 1, the primary level, is ")
    assert re.search(r"is \d\.\d\d % lower after the change \(95 % CI of the change −\d", first)
    assert "3 of 3 planned observations, which agree" in first


def test_a_missing_observation_is_a_row_that_says_so() -> None:
    """What was planned and not measured is shown with its reason, and the verdict counts it."""
    text = section(case("missing"))
    assert "2 of 3 planned observations" in text
    assert re.search(r"\| `obs2` \| missing: .*node failure", text)
    assert "`incomplete`" in text
    assert "requests\\_succeeded" in text or "requests_succeeded" in text


def test_contradicting_observations_get_no_pooled_number() -> None:
    """With a disagreement the main table has no delta, and every observation is named with its own."""
    record = case("disagreement")
    row = next(line for line in part(record, "TPOT by concurrency").split("\n") if line.startswith("| 1 |"))
    assert "| – | – |" in row
    assert "**disagreement** (primary)" in row
    assert re.search(r"`obs1` −\d.*`obs2` −\d.*`obs3` \+\d", section(record).split("\n")[3])


def test_one_rack_is_called_unreplicated() -> None:
    """An improvement on a single observation says so in the verdict."""
    assert "**Improvement on one observation, unreplicated.**" in section(case("one-rack"))


def test_a_cpu_campaign_says_that_it_shows_the_pipeline() -> None:
    """On a CPU the forks run one after the other, and a zero is sometimes called something: the report says both."""
    record = case("zero-change").model_copy(
        update={"simulated": False, "provenance": Provenance(hardware_class="cpu", environment={"device": ("cpu",)})}
    )
    text = section(record)
    assert "shows that the pipeline works, not what the change gains" in text
    assert "about one run of ten" in text


def test_what_was_not_probed_is_not_claimed() -> None:
    """Without trace and probes the report says so where the evidence would stand, and lists it as outstanding."""
    text = section(case("zero-change"))
    assert "nothing is said about why" in text
    assert "equal outputs are not claimed" in text
    assert "- **residency:**" in text
    assert "- **equality:**" in text


@pytest.mark.parametrize("name", CASES)
def test_the_same_record_gives_the_same_bytes(name: str) -> None:
    """Read back from its file, a record gives the same report, byte for byte."""
    record = case(name)
    again = Comparison.from_bytes(record.to_bytes())
    assert section(again) == section(record)


def test_a_report_too_long_loses_details_and_keeps_its_tables() -> None:
    """Within a pull request's limit the details go first; the main table is never cut."""
    record = build(Spec(name="long", racks=tuple(f"r{i}" for i in range(60)), evidence=False))
    whole = pull_request(report(record), limit=10**9)
    assert len(whole) > MAX_CHARS
    cut = section(record)
    assert len(cut) <= MAX_CHARS
    for level in (1, 2, 4, 8):
        row = next(line for line in whole.split("\n") if line.startswith(f"| {level} |"))
        assert row in cut
    assert "see the page" in cut
    assert cut.count("`obs") >= 60


def test_a_limit_that_the_main_table_breaks_is_refused() -> None:
    """Rather than cut the verdict's own table, the report is refused, with the cure named."""
    with pytest.raises(RecordError, match="a pull request takes 500"):
        pull_request(report(case("improvement")), limit=500)


def test_a_rerun_replaces_the_section_and_nothing_else(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Put into a description twice, the section stands there once, and the text around it is untouched."""
    file = tmp_path / "body.md"
    file.write_text("Intro by hand.\n\nOutro stays.\n")
    assert put_into(file, case("missing"))
    file.write_text(file.read_text() + "\nWritten below.\n")
    changed = case("missing").model_copy(update={"title": "A new title"})
    assert put_into(file, changed)
    text = file.read_text()
    assert text.startswith("Intro by hand.\n\nOutro stays.\n")
    assert text.endswith("Written below.\n")
    assert text.count(begin_marker("missing")) == 1
    assert "A new title" in text
    assert not put_into(file, changed)


def test_two_campaigns_stand_side_by_side_in_one_description() -> None:
    """Markers carry the campaign's name, so that one report never replaces another."""
    text = replaced_in("", section(case("missing")), "missing")
    text = replaced_in(text, section(case("one-rack")), "one-rack")
    assert text.index(begin_marker("missing")) < text.index(begin_marker("one-rack"))
    with pytest.raises(RecordError, match="more than once"):
        replaced_in(text + text, section(case("missing")), "missing")


HOSTILE = "<script>alert(1)</script> | `x` **b** [l](http://e) @someone #12 \ue000v\ue001x\ue0019\ue002 </details>"


def test_foreign_text_cannot_break_out_of_the_section() -> None:
    """Markup, HTML, table bars, mentions, issue links and our own marks in a record's text render as themselves."""
    text = section(case("missing").model_copy(update={"title": HOSTILE}))
    title = text.split("\n")[1]
    assert "<script>" not in text
    assert "&lt;script>" in title
    assert "\\| \\`x\\` \\*\\*b\\*\\* \\[l\\]" in title
    assert "&#64;someone" in title
    assert "&#35;12" in title
    assert "\ue000" not in text


def test_the_mlflow_note_is_short_and_has_no_folds() -> None:
    """MLflow drops folds and cuts long notes without a word: the note has none and ends at a part's end."""
    note = mlflow_note(report(case("improvement")), limit=7800)
    assert len(note) <= 7800
    assert "<details>" not in note
    assert "**improvement** (primary)" in note


def test_every_file_of_a_report_is_the_same_twice() -> None:
    """Tables, page and figures in every form come out byte-identical."""
    record = case("one-rack")
    assert render(record).files == render(record).files


def test_the_terminal_shows_the_same_verdict_and_table() -> None:
    """`k3bench show` prints the words and numbers of the section, aligned and unmarked."""
    from k3bench.publish.terminal import summary
    from k3bench.store import CampaignFolder

    text = summary(case("missing"), CampaignFolder(__import__("pathlib").Path("nowhere")))
    assert "Simulated decode performance" in text
    assert "improvement (primary)" in text
    assert "*" not in text


@pytest.mark.parametrize("zero_change", [0, 2])
def test_a_campaign_in_which_nothing_was_measured_still_has_its_report(zero_change: int) -> None:
    """Every planned observation missing: no verdict, each of them a row, and the two main figures, empty."""
    lost = ("obs1", "obs2", "obs3")
    record = build(Spec(name="lost", missing=lost, zero_change=zero_change, evidence=False))
    done = render(record)
    assert "**No verdict: insufficient replication.**" in done.pull_request
    assert all(f"| `{name}` | missing" in done.pull_request for name in lost)
    assert {"tpot.svg", "forest.svg"} <= set(done.files)


def test_the_least_floor_is_not_said_to_come_from_zero_change_observations() -> None:
    """Where they showed less, the floor is the least one, with what they showed beside it; else it is theirs."""
    record = case("improvement")
    assert record.zero_change is not None

    def said(showed: float, source: str) -> str:
        floor = Floor(tau0_log=max(0.003, showed), assumed=False, n_zero_change_observations=3, source=source)
        zero = record.zero_change.model_copy(update={"tau_log": showed})  # type: ignore[union-attr]
        return section(record.model_copy(update={"floor": floor, "zero_change": zero}))

    least = "- floor: at least 0.30 % (the least that is assumed); 3 zero-change observations showed"
    assert f"{least} 0.28 %\n" in said(0.0028, record.campaign)
    assert f"{least} no more\n" in said(0.0028, "earlier")
    assert "- floor: 0.45 %, from 3 zero-change observations\n" in said(0.0045, record.campaign)
    assert "not what rebuilding does" in said(0.0045, record.campaign)


@needs_pr_17103
def test_reported_runs_are_not_called_measured() -> None:
    """A claim's runs were reported to us; only our own were measured."""
    health = case("improvement").health
    text = section(PR_17103().model_copy(update={"health": health}))
    assert f"{health.n_runs_measured} reported, " in text
    assert f"{health.n_runs_measured} measured, " not in text
