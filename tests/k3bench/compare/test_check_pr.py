"""A pull request's tables against themselves: what holds, what does not follow, what is missing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3bench.compare.check_pr import Finding, check_pr, describe
from k3bench.errors import K3Error, RecordError

SWEEP = """
## Decode overlap
16 GPUs, ISL 8192, OSL 1024, `stream_interval=10`. The GEMM is 97% hidden in MoE but 94% exposed in KDA.

Before:

| family | device busy (ms/step) | two-stream residency (ms/step) |
|---|---:|---:|
| KDA | 4.667 | 0.0000 |
| MLA | 2.161 | 0.0000 |

After the change:

| family | two-stream residency (ms/step) | share of busy |
|---|---:|---:|
| KDA | 0.7016 | 16.1% |
| MLA | 0.2829 | 14.3% |

### Sweep
Noise band per point from three zero-change runs.

| concurrency | before TPOT (ms) | after TPOT (ms) | Δ | noise band |
|---|---|---|---|---|
| 1 | 13.5070 | 12.6934 | **−6.02%** | 2.63% |
| 2 | 15.9358 | 16.1229 | +1.17% | 5.08% |
| 4 | 17.5480 | 16.8362 | −4.06% | 4.01% |
| 8 | 22.7114 | 21.7538 | −4.22% | 3.63% |

### Observations at c=1

| observation | job | rack | build | before | after | delta |
|---|---|---|---|---|---|---|
| 1 | 2720192 | d157 | 2719879 | — | — | −3.720% |
| 2 | 2720932 | d127 | 2720688 | 13.2106 | 12.6789 | −4.025% |

The two observations agree within 0.316%.

- Fork 1: bitwise identical under CUDA graph capture
- Fork 2: bitwise identical under CUDA graph capture
- Fork 3: argued from source only, no numerical probe
- Greedy tokens of the model: not run
"""


@pytest.fixture(params=["json", "markdown"])
def findings(request: pytest.FixtureRequest, shared_data: Path) -> list[Finding]:
    """The seed's figures as the shared JSON and as Markdown of the shape a description has."""
    text = (shared_data / "pr-17103.json").read_text() if request.param == "json" else SWEEP
    return check_pr(text)


def _one(findings: list[Finding], subject: str, part: str) -> Finding:
    hits = [f for f in findings if f.subject == subject and part in f.text]
    assert hits, f"no finding on {subject!r} says {part!r}:\n{describe(findings)}"
    return hits[0]


def test_the_deltas_reproduce(findings: list[Finding]) -> None:
    """Every delta whose levels are shown, and no other."""
    found = _one(findings, "deltas", "reproduces")
    assert found.status == "holds"
    for shown in ("-6.02 %", "+1.17 %", "-4.06 %", "-4.22 %", "-4.025 %"):
        assert shown in found.text
    assert "-3.72" not in found.text


def test_the_agreement_is_that_of_two_observations_only(findings: list[Finding]) -> None:
    """0.316 % is the ratio gap of observations 1 and 2; all three spread 2.45 %."""
    assert _one(findings, "agreement", "observations 1 and 2: 0.317 %").status == "holds"
    only = _one(findings, "agreement", "observations 1 and 2 only")
    assert only.status == "does_not_follow"
    assert only.values["spread_pct"] == pytest.approx(2.45, abs=5e-3)


def test_the_shares_stand_on_a_busy_time_that_is_not_shown(findings: list[Finding]) -> None:
    """They imply 4.358 and 1.978 ms."""
    for family, implied in (("KDA", 4.358), ("MLA", 1.978)):
        found = _one(findings, "share", f"{family}: ")
        assert found.status == "does_not_follow"
        assert found.values["implied_busy_after_ms"] == pytest.approx(implied, abs=5e-4)


def test_within_the_band_is_inconclusive_and_supports_no_claim_of_no_regression(findings: list[Finding]) -> None:
    """At c=2 a slowdown of 14 % is not excluded."""
    found = _one(findings, "inconclusive", "c=2")
    assert found.values["half_width_log_pct"] == pytest.approx(18.3, abs=0.05)
    assert found.values["worst_case_pct"] == pytest.approx(14.5, abs=0.1)
    assert "c=2" in _one(findings, "regresses nothing", "unsupported").text


def test_restatements_follow_from_the_stream_interval(findings: list[Finding]) -> None:
    """ITL, tps/user, and throughput at c=1."""
    found = _one(findings, "restated metrics", "ITL = 10 x TPOT")
    assert "tps/user" in found.text
    assert "c=1" in found.text
    assert found.values["stream_interval"] == 10


def test_exposure_needs_a_definition_that_is_not_given(findings: list[Finding]) -> None:
    """Six percent hidden beside a residency of zero."""
    found = _one(findings, "exposure", "94 % exposed in KDA")
    assert found.values["hidden_pct"] == pytest.approx(6.0)
    assert "definition" in found.text


def test_two_rows_of_sameness_are_missing(findings: list[Finding]) -> None:
    """Fork 3 and the greedy tokens; forks 1 and 2 are there as claimed."""
    open_rows = [f.text for f in findings if f.subject == "sameness" and f.status == "missing"]
    assert len(open_rows) == 2
    assert open_rows[0].startswith("fork 3")
    assert open_rows[1].startswith("greedy tokens")


def test_the_range_of_three_is_no_evidence(findings: list[Finding]) -> None:
    """31 % a level, 77 % over four; the p of every claim beyond it."""
    found = _one(findings, "noise band", "is no evidence")
    assert found.values["false_positive_rate"] == pytest.approx(0.31, abs=5e-3)
    assert found.values["any_of_levels"] == pytest.approx(0.77, abs=5e-3)
    assert _one(findings, "noise band", "c=4: -4.06 % exceeds 4.01 % by 0.05 points").status == "does_not_follow"


def test_the_third_observation_gained_on_a_slow_before(findings: list[Finding]) -> None:
    """Before +2.24 %, after +0.11 %, and more saved than the trace explains."""
    found = _one(findings, "which side moved", "observation 3")
    assert found.values["before_moved_pct"] == pytest.approx(2.24, abs=5e-3)
    assert found.values["after_moved_pct"] == pytest.approx(0.11, abs=5e-3)
    assert _one(findings, "gain", "observation 3 saved 0.814 ms").status == "does_not_follow"
    assert _one(findings, "gain", "observation 2 saved 0.532 ms").status == "holds"


def test_what_a_verdict_needs_is_listed(findings: list[Finding]) -> None:
    """Runs, levels of the first observation, rack and build of the third, zero-change runs, environments."""
    missing = " ".join(f.text for f in findings if f.status == "missing")
    for part in ("pairs", "observation 1 at c=1", "rack and build of observation 3", "zero-change", "declared change"):
        assert part in missing


def test_wrong_numbers_are_caught() -> None:
    """A delta one digit off, a gap of nobody, a share of nothing."""
    wrong = SWEEP.replace("−4.06%", "−4.16%").replace("within 0.316%", "within 0.216%")
    found = check_pr(wrong)
    assert _one(found, "deltas", "-4.16 is printed").status == "does_not_follow"
    assert _one(found, "agreement", "of no two observations").status == "does_not_follow"


def test_a_gain_printed_with_the_other_sign_is_named_for_what_it_is() -> None:
    """(before - after)/before is no delta relative to before."""
    text = "| c | main | this PR | gain |\n|---|---|---|---|\n| 1 | 13.5 | 12.7 | 5.93% |\n"
    assert "(before - after)/before" in _one(check_pr(text), "deltas", "is printed").text


def test_a_gain_written_as_a_factor_is_held_against_both_ratios() -> None:
    """`1.05x` is before/after, not +1.05 %; a factor that neither ratio gives is caught."""
    head = "| c | before TPOT (ms) | after TPOT (ms) | Speedup |\n|---|---|---|---|\n"
    right = check_pr(head + "| 1 | 10.0 | 9.5 | 1.05x |\n| 8 | 20.0 | 19.6 | 1.02× |\n")
    assert [f.text for f in right if f.status == "holds" and f.subject == "deltas"] == [
        "before/after or after/before reproduces 1.05x (c=1, -5.00 %), 1.02x (c=8, -2.00 %)"
    ]
    wrong = check_pr(head + "| 1 | 10.0 | 9.5 | 1.20x |\n")
    assert any("1.2x is printed, 10 -> 9.5 gives 1.053x" in f.text for f in wrong if f.status == "does_not_follow")


def _said(header: str, *rows: str) -> list[str]:
    """All that is said of one table, as `status: text`."""
    rule = "|---" * header.count("|") + "|"
    return [f"{f.status}: {f.text}" for f in check_pr("\n".join([f"{header}|", rule, *rows])) if f.status != "missing"]


def test_a_decimal_comma_is_read_and_a_group_of_three_is_none() -> None:
    """`13,2` is 13.2; `1,024` is 1024."""
    said = _said("| c | before TPOT (ms) | after TPOT (ms) | delta ", "| 1 | 13,2 | 12,7 | -3,8% |")
    assert said[0] == "holds: 100 (after/before - 1) reproduces -3.8 % (c=1)"
    said = _said("| c | before TPOT (us) | after TPOT (us) | delta ", "| 1 | 1,024 | 960 | -6.25% |")
    assert said[0] == "holds: 100 (after/before - 1) reproduces -6.25 % (c=1)"
    said = _said("| c | before | after | speedup ", "| 1 | 10,0 | 9,5 | 1,05x |")
    assert said[0].startswith("holds: before/after or after/before reproduces 1.05x")


def test_the_delta_of_a_metric_is_held_against_the_columns_of_that_metric() -> None:
    """TTFT stands first; the improvement is TPOT's."""
    header = "| c | TTFT before | TTFT after | TPOT before | TPOT after | TPOT delta "
    assert "-3.8 % (c=1)" in _said(header, "| 1 | 900 | 450 | 13.2 | 12.7 | -3.8% |")[0]
    only_ttft = header.replace("TPOT delta", "TTFT delta")
    assert (
        "no delta is printed; the levels give -3.79 %" in _said(only_ttft, "| 1 | 900 | 450 | 13.2 | 12.7 | -5% |")[0]
    )


def test_a_wrong_factor_is_held_against_the_nearer_ratio() -> None:
    """Of a throughput, after/before is the gain."""
    said = _said("| c | Baseline throughput | PR throughput | Speedup ", "| 1 | 75 | 80 | 1.2x |")
    assert "1.2x is printed, 75 -> 80 gives 1.067x (after/before), a delta of +6.67 %" in said[0]


@pytest.mark.parametrize("cell", ["↓5.0%", "↓ 5.0%", "5.0% ↓", "↓ -5.0%", "-5.0 %"])
def test_an_arrow_down_in_a_delta_is_a_minus(cell: str) -> None:
    """Beside a level it says nothing; an arrow up is no minus."""
    header = "| c | before | after | delta "
    assert "reproduces -5 % (c=1)" in _said(header, f"| 1 | 10.00 | 9.50 ↓ | {cell} |")[0]
    assert "reproduces +5 % (c=1)" in _said(header, "| 1 | 10.00 | 10.50 | ↑5.0% |")[0]


def test_two_units_are_said_and_taken_as_one() -> None:
    """0.0132 s beside 12.7 ms is -3.79 %, not +96112 %."""
    said = _said("| c | before [s] | after [ms] | delta ", "| 1 | 0.0132 | 12.7 | -3.8% |")
    assert said[:2] == [
        "does_not_follow: the headers give before in s and after in ms; read here in s: print one unit",
        "holds: 100 (after/before - 1) reproduces -3.8 % (c=1)",
    ]
    for header in (
        "| c | before [ms] | after [MS] ",
        "| c | before [µs] | after [μs] ",
        "| c | before [ms] | after [ſ] ",
    ):
        assert not any("headers" in x for x in _said(header, "| 1 | 13 | 12 |"))


def test_less_throughput_is_no_improvement() -> None:
    """(before - after)/before is the gain of a time only."""
    said = _said("| c | throughput before | throughput after | improvement (%) ", "| 1 | 1024.5 | 980.1 | 4.3 |")
    assert said[0].startswith("does_not_follow: ")
    assert "gives -4.334 %; the printed number is (before - after)/before: throughput fell" in said[0]
    slower = _said("| c | main | PR | gain ", "| 1 | 13.5 | 12.7 | 5.93% |")
    assert "loss" not in slower[0]


def test_deltas_said_to_be_paired_need_not_be_the_ratio_of_the_medians_beside_them() -> None:
    """A page that says so may differ by a hair, not by more; its zero-change rows are no observations."""
    text = (
        "Delta is the mean of paired after/before ratios.\n\n| observation | before [ms] | after [ms] | delta [%] |\n"
        "|---|---|---|---|\n| obs1 | 10.000 | 9.700 | -3.02 |\n| zero1 (zero change) | 10.000 | 10.500 | +5.00 |\n"
    )
    assert not [f for f in check_pr(text) if f.status == "does_not_follow"]
    counted = [f.values for f in check_pr(text) if f.subject == "deltas"]
    assert counted == [{"observation 1 delta_pct": pytest.approx(-3)}]
    assert [f for f in check_pr(text.replace("-3.02", "-3.52")) if f.status == "does_not_follow"]
    assert [f for f in check_pr(text.replace("paired ", "")) if f.status == "does_not_follow"]


def test_a_band_that_is_no_width_is_no_band() -> None:
    """Zero and negative bands are not divided by."""
    for band in ("0", "-1.5"):
        found = check_pr(f"| c | before | after | noise band |\n|---|---|---|---|\n| 1 | 10 | 10 | {band} |\n")
        assert not [f for f in found if f.subject == "noise band"]


def test_a_generated_section_is_sent_back_to_its_records() -> None:
    """Only records can say whether a generated section is right; what stands beside it is still read."""
    section = "<!-- k3bench:begin x -->\n| c | before | after | delta |\n|---|---|---|---|\n| 1 | 10 | 9 | -20 % |\n"
    section += "<!-- k3bench:end x -->\n"
    with pytest.raises(RecordError, match="generated by k3bench"):
        check_pr(section)
    beside = check_pr(section + "\n| c | before | after | delta |\n|---|---|---|---|\n| 8 | 10 | 9 | -10 % |\n")
    assert [f.values for f in beside if f.subject == "deltas"] == [{"c=8 delta_pct": pytest.approx(-10.0)}]


def test_metric_rows_of_other_projects_are_read() -> None:
    """One row a metric, arms as columns: identities show in the numbers."""
    text = (
        "| Metric | main | PR | Change |\n|---|---|---|---|\n| Mean TPOT (ms) | 13.21 | 12.68 | -4.0% |\n"
        "| Mean ITL (ms) | 132.1 | 126.8 | -4.0% |\n| Output throughput (tok/s) | 75.7 | 78.9 | +4.2% |\n"
    )
    found = check_pr(text)
    assert _one(found, "deltas", "reproduces").values["throughput delta_pct"] == pytest.approx(4.227, abs=1e-3)
    assert _one(found, "restated metrics", "itl = 10 x TPOT")
    assert _one(found, "restated metrics", "throughput")


def test_client_outputs_under_before_and_after_are_read() -> None:
    """Two pasted outputs of a benchmark client: the median counts."""
    block = "### {arm}\n```\nMean TPOT (ms):      {mean}\nMedian TPOT (ms):    {median}\nP99 TPOT (ms):   15.0\n```\n"
    text = block.format(arm="Before", mean=13.21, median=13.1) + block.format(arm="After", mean=12.7, median=12.61)
    assert "-3.74 %" in _one(check_pr(text), "deltas", "no delta is printed").text


def test_levels_as_columns_are_turned() -> None:
    """A table that runs to the right is the same table."""
    text = (
        "| | c=1 | c=2 |\n|---|---|---|\n| before (ms) | 13.5 | 15.9 |\n"
        "| after (ms) | 12.7 | 16.1 |\n| delta | -5.93% | +1.26% |\n"
    )
    found = _one(check_pr(text), "deltas", "reproduces")
    assert set(found.values) == {"c=1 delta_pct", "c=2 delta_pct"}


@pytest.mark.parametrize(
    "text", ["", "no table here", "{}", '{"a": NaN}', "{broken", "| a | b |\n|---|---|\n| 1 | 2 |"]
)
def test_text_without_figures_is_refused_in_one_sentence(text: str) -> None:
    """The cure says what a table needs."""
    with pytest.raises(RecordError) as caught:
        check_pr(text, where="pr.md")
    assert caught.value.where == "pr.md"
    assert caught.value.fix


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="|-:%0123456789. \ncbefortadl=,*[]{}\"'→−x", max_size=300))
def test_any_text_gives_findings_or_one_named_error(noise: str) -> None:
    """Hostile or broken text never ends in a traceback."""
    in_a_cell = SWEEP.replace("13.5070", noise.replace("\n", " ")[:40])
    for text in (noise, in_a_cell, "| before | after |\n|---|---|\n" + noise):
        with contextlib.suppress(K3Error):
            describe(check_pr(text))
