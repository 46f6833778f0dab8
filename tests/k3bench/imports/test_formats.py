"""Every format: told by content, in our words, with a reason for every null."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from writers import aiperf_records, guidellm, sglang, streams, trtllm, vllm, write

from k3bench.cli import main, parser
from k3bench.errors import RecordError
from k3bench.imports.command import Request, run
from k3bench.imports.dictionary import dictionary, parse_dictionary

#: File -> format, TPOT within 1 %, valid; or None and the words of the refusal.
TABLE: dict[str, tuple[str, float | None, bool] | str] = {
    "aiperf/mock_aiperf-0.13.0_si10_profile_export_aiperf.json": ("aiperf-summary", 10.0, True),
    "aiperf/mock_aiperf-0.13.0_si1_profile_export.jsonl": ("aiperf-records", 10.0, True),
    "failure-modes/aiperf-0.13.0_early_eos.json": ("aiperf-summary", 2.35, False),
    "failure-modes/guidellm-0.8.1_http500.json": ("guidellm", 2.34, False),
    "failure-modes/sglang-0.5.23_truncate.jsonl": "2048 output tokens are claimed, 1576 came",
    "failure-modes/vllm-0.32.0_early_eos.json": ("vllm-bench-serve", 2.26, False),
    "failure-modes/vllm-0.32.0_truncate.json": "8 of 32 streams were cut off",
    "guidellm/mock_guidellm-0.8.1_si10.json": ("guidellm", 10.0, True),
    "inference-perf/kubecon_vllm+eagle_stage_3_lifecycle_metrics.json": ("inference-perf", None, False),
    "inference-perf/kubecon_vllm_stage_3_lifecycle_metrics.json": ("inference-perf", None, False),
    "inferencex/glm5_fp8_vllm_tp8_isl1024_osl128_conc16.json": ("inferencex-aggregate", 33.61, True),
    "inferencex/mock_inferencex-client_si10.json": ("inferencex-client", 10.0, True),
    "sglang-bench-serving/datacrunch_llama_3_3_70b_online_output.jsonl": ("sglang-bench-serving", None, False),
    "sglang-bench-serving/mock_sglang-0.5.23_si10.jsonl": ("sglang-bench-serving", 10.0, True),
    "srt-slurm-sa-bench/mock_results_concurrency_8_gpus_16_si10.json": ("srt-slurm-sa-bench", 10.0, True),
    "trtllm/CONSTRUCTED_benchmark_serving_si10.json": ("trtllm-benchmark-serving", 10.0, True),
    "trtllm/CONSTRUCTED_benchmark_serving_si10_save-detailed.json": ("trtllm-benchmark-serving", 10.0, True),
    "trtllm/CONSTRUCTED_trtllm-bench_report.json": ("trtllm-bench", 10.0, True),
    "vllm-bench-serve/dstack_1p3d_conc128_in128_out2048_20250914_020816.json": ("vllm-bench-serve", 10.74, False),
    "vllm-bench-serve/mock_vllm-0.32.0_si10.json": ("vllm-bench-serve", 10.0, True),
}


def shown(path: Path, **options: Any) -> dict[str, Any]:
    """What `k3bench import FILE --show` prints."""
    (text,) = run(Request(files=(path,), show=True, **options))
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_table_names_every_shared_file(results: Path) -> None:
    """A file that is added to the shared folder must be added here."""
    files = {p.relative_to(results).as_posix() for p in results.glob("*/*") if p.suffix in (".json", ".jsonl")}
    assert files == set(TABLE)


@pytest.mark.parametrize("file", sorted(TABLE))
def test_a_real_file_is_imported_or_refused_with_its_reason(results: Path, file: str) -> None:
    """Known answers within 1 %, nulls with reasons, cut-off streams refused, early ends flagged."""
    wanted = TABLE[file]
    if isinstance(wanted, str):
        with pytest.raises(RecordError, match=wanted) as refused:
            shown(results / file)
        assert Path(file).name in refused.value.where
        return
    found = shown(results / file)
    name, tpot_ms, valid = wanted
    assert (found["format"], found["valid"]) == (name, int(valid))
    assert found["tpot_median_ms"] == (None if tpot_ms is None else pytest.approx(tpot_ms, rel=0.01))
    nulls = {k for k, v in found.items() if v is None}
    assert nulls <= set(found["reasons"])
    assert valid or found["flags"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("failure-modes/vllm-0.32.0_early_eos.json", "output_length_exact: 8 early_end"),
        ("failure-modes/aiperf-0.13.0_early_eos.json", "osl_mismatch_count 8"),
        ("failure-modes/guidellm-0.8.1_http500.json", "24 sound requests of 32"),
        ("inference-perf/kubecon_vllm_stage_3_lifecycle_metrics.json", "give 15.83 ms"),
        ("aiperf/mock_aiperf-0.13.0_si1_profile_export.jsonl", "8 requests of other phases"),
    ],
)
def test_what_is_wrong_with_a_real_file_is_said(results: Path, file: str, words: str) -> None:
    """The flag names the check and the count."""
    assert words in "\n".join(shown(results / file)["flags"])


def test_show_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Looking leaves the folder as it was."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run.json", vllm(streams()))
    assert main(["import", "run.json", "--show"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_median_ms"] == pytest.approx(10.0, rel=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vllm-bench-serve", vllm(streams(12.5))),
        ("vllm-bench-serve", vllm(streams(12.5), detailed=False)),
        ("trtllm-benchmark-serving", trtllm(streams(12.5, interval=10))),
        ("trtllm-benchmark-serving", trtllm(streams(12.5, interval=10), detailed=True)),
        ("sglang-bench-serving", [sglang(streams(12.5))]),
        ("aiperf-records", aiperf_records(streams(12.5))),
        ("guidellm", guidellm(streams(12.5))),
        ("guidellm", guidellm(streams(12.5), old=True)),
    ],
)
def test_a_known_pace_is_read_from_every_format(tmp_path: Path, name: str, value: Any) -> None:
    """12.5 ms in, 12.5 ms out, at concurrency 8, 64 tokens a request."""
    found = shown(write(tmp_path / "x.dat", value))
    assert (found["format"], found["valid"], found["concurrency"], found["osl_tokens"]) == (name, 1, 8, 64)
    assert found["tpot_median_ms"] == pytest.approx(12.5, rel=1e-3)
    assert found["tps_user"] == pytest.approx(80.0, rel=1e-3)
    assert found["ttft_median_ms"] == pytest.approx(50.0, rel=1e-6)


def test_several_runs_in_a_file_show_what_they_share_and_how_to_choose(tmp_path: Path) -> None:
    """sglang appends; a number that differs is null with the way to it."""
    path = write(tmp_path / "s.jsonl", [sglang(streams(10.0, level=c), level=c) for c in (1, 8)])
    both = shown(path)
    assert both["tpot_median_ms"] is None
    assert "--entry" in both["reasons"]["tpot_median_ms"]
    assert both["osl_tokens"] == 64
    assert shown(path, entry=2)["concurrency"] == 8
    with pytest.raises(RecordError, match="no run 3: the file holds 2"):
        shown(path, entry=3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("hello", "not JSON"),
        ('{"date": "x", "completed": 3, "dura', "cut off"),
        ('{"metadata": {"benchmark_phase": "profiling"}, "metrics": {}}\n{"metadata": {"ben', "cut off: line 2"),
        ("[1, 2]", "holds a list"),
        ('{"speed": 12}', "no known format"),
        ('{"avg_latency": 1.0, "latencies": [1.0], "percentiles": {"50": 1.0}}', "no serving result"),
        ('{"elapsed_time": 1.0, "num_requests": 3, "tokens_per_second": 9.0}', "no serving result"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_result_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    """Not JSON, cut off, latency only, unknown: one error each, naming the file."""
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=words) as refused:
        shown(path)
    assert "bad.json" in refused.value.where


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    """Bytes that are no text are no result."""
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(RecordError, match="not text"):
        shown(tmp_path / "x.json")


class TestDictionary:
    """The dictionary is data, and the data cannot claim that pears are apples."""

    TEXT = """
formulas: {tpot: a, tpot_with_ttft: b}
token_sources: {unknown: the file does not say}
ours:
  tpot_median_ms: {unit: ms, formula: tpot, over: requests, statistic: median, percentile: linear}
formats:
  some:
    tool: some
    detect: {has: [x]}
    words:
      - {word: time_per_output_token_ms, unit: ms, FORMULA, is: tpot_median_ms}
"""

    @pytest.mark.parametrize(
        ("definition", "differs"),
        [
            ("formula: tpot_with_ttft, over: requests, statistic: median, percentile: linear", "formula"),
            ("formula: tpot, over: tokens, statistic: median, percentile: linear", "over"),
            ("formula: tpot, over: requests, statistic: mean, percentile: linear", "statistic"),
            ("formula: tpot, over: requests, statistic: median, percentile: upper_middle", "percentile"),
        ],
    )
    def test_a_word_is_ours_only_by_definition(self, definition: str, differs: str) -> None:
        """TTFT inside, weighted by tokens, a mean for a median, another percentile rule: refused when read."""
        with pytest.raises(RecordError, match=f"is no tpot_median_ms: {differs} differ"):
            parse_dictionary(self.TEXT.replace("FORMULA", definition), where="test")

    def test_the_right_definition_is_taken(self) -> None:
        """The same word with our definition is ours."""
        right = "formula: tpot, over: requests, statistic: median, percentile: linear"
        assert parse_dictionary(self.TEXT.replace("FORMULA", right), where="test").formats["some"].words[0].is_

    def test_every_headline_is_exact_or_says_how_it_differs(self) -> None:
        """Only trtllm-bench's median is near, and it says so."""
        words = [(n, w) for n, f in dictionary().formats.items() for w in f.all_words if w.is_ == "tpot_median_ms"]
        assert {n for n, w in words if w.near} == {"trtllm-bench"}
        assert {n for n, _ in words} >= {"vllm-bench-serve", "aiperf-summary", "guidellm", "inferencex-aggregate"}


def test_aiperf_itl_is_our_tpot_and_its_chunk_latency_our_itl(results: Path) -> None:
    """Same word, other quantity: vLLM's ITL of the same mock is ten times aiperf's."""
    aiperf = shown(results / "aiperf/mock_aiperf-0.13.0_si10_profile_export_aiperf.json")
    other = shown(results / "vllm-bench-serve/mock_vllm-0.32.0_si10.json")
    for found in (aiperf, other):
        assert found["tpot_median_ms"] == pytest.approx(10.0, rel=0.01)
        assert found["itl_median_ms"] == pytest.approx(99.8, rel=0.01)
        assert found["stream_interval"] == 10


def test_guidellm_tpot_is_not_taken_because_it_contains_ttft(results: Path) -> None:
    """10.65 stands in the report; the requests give 10.0."""
    path = results / "guidellm/mock_guidellm-0.8.1_si10.json"
    stated = json.loads(path.read_text())["benchmarks"][0]["metrics"]["time_per_output_token_ms"]["successful"]
    assert stated["median"] == pytest.approx(10.65, rel=0.01)
    found = shown(path)
    assert found["tpot_median_ms"] == pytest.approx(10.0, rel=0.01)
    assert found["itl_median_ms"] is None
    assert "not the gap between chunks" in found["reasons"]["itl_median_ms"]


def test_trtllm_bench_p99_is_the_maximum_and_is_not_taken(results: Path) -> None:
    """The report's p99 equals its maximum for 64 requests; p50 is near ours and says how."""
    path = results / "trtllm/CONSTRUCTED_trtllm-bench_report.json"
    stated = json.loads(path.read_text())["streaming_metrics"]["tpot_percentiles"]
    assert stated["p99"] == stated["maximum"]
    found = shown(path)
    assert found["tpot_p99_ms"] is None
    assert "the maximum for n <= 100" in found["reasons"]["tpot_p99_ms"]
    assert "upper of the two middle values" in found["notes"]["tpot_median_ms"]


class TestDocument:
    """`docs/IMPORT.md` says what the code does."""

    TEXT = (Path(__file__).parents[3] / "docs/IMPORT.md").read_text()

    def test_every_format_is_in_the_document_and_no_other(self) -> None:
        """The table and the dictionary name the same formats."""
        rows = re.findall(r"^\| `([a-z-]+)` \|", self.TEXT.partition("## Same word")[0], re.MULTILINE)
        assert set(rows) == {n for n, f in dictionary().formats.items() if not f.refuse}
        assert all(f"`{n}`" in self.TEXT for n in dictionary().formats)

    def test_every_command_in_it_parses(self) -> None:
        """A reader can paste what stands there."""
        commands = re.findall(r"^k3bench .*$|`k3bench ([^`]*)`", self.TEXT, re.MULTILINE)
        lines = re.findall(r"^k3bench (.*)$", self.TEXT, re.MULTILINE) + [c for c in commands if c]
        assert len(lines) >= 6
        for line in lines:
            assert callable(parser().parse_args(line.split()).run)


def test_a_table_is_refused_with_the_cure(tmp_path: Path) -> None:
    """aiperf and TensorRT-LLM's CI also write CSV."""
    (tmp_path / "x.csv").write_text("Metric,avg,min,max\nTTFT,1,2,3\n")
    with pytest.raises(RecordError, match="a table, not JSON"):
        shown(tmp_path / "x.csv")
