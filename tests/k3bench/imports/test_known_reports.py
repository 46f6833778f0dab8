"""What users of other tools reported about result files, each as a test; the report is named in the docstring."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from writers import Stream, aiperf_records, guidellm, sglang, streams, trtllm, vllm, write

from k3bench.errors import K3Error, RecordError
from k3bench.imports.command import Request, run
from k3bench.metrics import METRICS


def shown(tmp_path: Path, value: Any) -> dict[str, Any]:
    """The flat object of a written file."""
    (text,) = run(Request(files=(write(tmp_path / "run.json", value),), show=True))
    found: dict[str, Any] = json.loads(text)
    return found


def flags(tmp_path: Path, value: Any) -> str:
    """All flags of a file that is not valid, in one text."""
    found = shown(tmp_path, value)
    assert found["valid"] == 0, "the run must not count"
    return "\n".join(found["flags"])


def some(change: dict[str, Any], every: int = 4, **kwargs: Any) -> list[Stream]:
    """A load of which every n-th stream is changed."""
    return [replace(s, **change) if i % every == 3 else s for i, s in enumerate(streams(**kwargs))]


# --- chunks against tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [2, 10, 20, 100])
def test_itl_of_chunks_is_flagged_and_the_interval_found(tmp_path: Path, interval: int) -> None:
    """vllm#27485, vllm#42661: a chunk of ten tokens makes ITL ten times TPOT; the ratio of medians tells."""
    found = shown(tmp_path, vllm(streams(interval=interval, tokens=1024, turns=2)))
    assert (found["valid"], found["stream_interval"]) == (1, interval)
    assert f"chunks of {interval} tokens, not a time per token" in "\n".join(found["flags"])
    assert found["tpot_median_ms"] == pytest.approx(10.0, rel=1e-3)


def test_one_token_a_chunk_is_no_flag(tmp_path: Path) -> None:
    """Where a chunk is a token there is nothing to warn of."""
    assert shown(tmp_path, vllm(streams()))["flags"] == []


def test_a_stream_interval_that_changed_between_arms_is_refused(tmp_path: Path) -> None:
    """vllm#27869: stream_interval is a cost of its own; a change of it is no change of the kernel."""
    before = write(tmp_path / "b.json", vllm(streams(interval=1)))
    after = write(tmp_path / "a.json", vllm(streams(9.0, interval=10)))
    list(run(Request(files=(before,), place="o.before", into=tmp_path / "out")))
    with pytest.raises(RecordError, match=r"stream_interval is 10 here and 1 in b\.json") as refused:
        list(run(Request(files=(after,), place="o.after", into=tmp_path / "out")))
    assert refused.value.where == "a.json: stream_interval"


def test_several_accepted_tokens_a_step_make_itl_unusable(tmp_path: Path) -> None:
    """sglang#12064: under speculative decoding the gap between chunks is no time per token."""
    for value in (sglang(streams(), accept_length=2.7), trtllm(streams(), avg_decoded_tokens_per_iter={"mean": 2.7})):
        found = shown(tmp_path, value)
        assert found["itl_median_ms"] is None
        assert "2.7 tokens are accepted a step" in found["reasons"]["itl_median_ms"]
        assert found["tpot_median_ms"] == pytest.approx(10.0, rel=1e-3)


def test_chunks_of_changing_size_are_a_stream_without_an_interval(tmp_path: Path) -> None:
    """Accepted tokens differ from step to step: no interval is claimed, and no stream is called broken for it."""
    sizes = [2, 3] * 8 + [2, 5, 2, 6, 2, 6]
    assert sum(sizes) == 63
    found = shown(
        tmp_path, vllm(streams(), itls=[[n * s.tpot_s for n in sizes] for s in streams()], median_itl_ms=25.0)
    )
    assert found["flags"] == []
    assert found["valid"] == 1


def test_a_whole_answer_held_back_is_no_stream(tmp_path: Path) -> None:
    """sglang#36272: text that the server buffers comes as one giant chunk, and its pace is nobody's."""
    assert "chunks_even: 16 giant_chunk" in flags(tmp_path, vllm(some({"interval": 64})))
    at_once = {"itls": [[] if i % 4 == 3 else s.gaps_s for i, s in enumerate(streams())]}
    assert "arrived at one instant" in flags(tmp_path, vllm(streams(), **at_once))


def test_an_empty_first_chunk_is_no_first_token(tmp_path: Path) -> None:
    """vllm#15106: a role chunk without text taken for TTFT puts the prefill into TPOT."""
    early = [[0.3, *s.gaps_s[1:]] for s in streams()]
    assert "its first chunk held no token" in flags(tmp_path, vllm(streams(ttft_s=0.002), itls=early))


# --- failures counted as success ------------------------------------------------------------------------------------


def test_a_missing_failed_count_is_planned_minus_completed(tmp_path: Path) -> None:
    """vllm#26478, InferenceX#357: a file without failures may only not mention them."""
    text = flags(tmp_path, trtllm(streams(), num_prompts=72))
    assert "64 of 72 requests completed, 8 failed" in text


def test_an_error_text_beside_a_success_count_is_a_failure(tmp_path: Path) -> None:
    """gpustack#1677: failed requests shown as successful."""
    errors = ["connection reset" if i == 5 else "" for i in range(64)]
    text = flags(tmp_path, vllm(streams(), errors=errors))
    assert "every_request_answered: 1 failed" in text
    assert "connection reset" in text


def test_failed_requests_do_not_enter_the_numbers(tmp_path: Path) -> None:
    """A refusing server looks fast: what it refused is neither timed nor forgotten."""
    found = shown(tmp_path, vllm(some({"error": "503"})))
    assert found["tpot_median_ms"] == pytest.approx(10.0, rel=1e-3)
    assert found["valid"] == 0
    assert "48 sound requests of 64" in "\n".join(found["flags"])


def test_claimed_tokens_that_never_came_are_refused(tmp_path: Path) -> None:
    """sglang#24254: the output length stays at max_tokens, so an early end looks 25 % faster."""
    with pytest.raises(RecordError, match="4096 output tokens are claimed, 3000 came"):
        shown(tmp_path, sglang(streams(), came=3000))


def test_a_recount_that_differs_by_a_few_tokens_is_a_remark(tmp_path: Path) -> None:
    """Text does not always turn into the same tokens again: one in four hundred is no cut-off stream."""
    found = shown(tmp_path, sglang(streams(), came=4086))
    assert found["valid"] == 1
    assert "claimed, not counted" in "\n".join(found["flags"])


def test_streams_that_ended_without_usage_are_refused(tmp_path: Path) -> None:
    """Found with all five clients: a stream that simply stops is counted as success; its prompt count gives it away."""
    cut = some({"tokens": 5, "prompt": 32})
    with pytest.raises(RecordError, match="16 of 64 streams were cut off"):
        shown(tmp_path, vllm(cut))
    lines = aiperf_records(some({"tokens": 5}))
    for line in lines:
        if line["metrics"]["output_sequence_length"]["value"] == 5:
            del line["metrics"]["usage_completion_tokens"]
    with pytest.raises(RecordError, match="16 of 64 streams were cut off"):
        shown(tmp_path, lines)


def test_outputs_of_another_length_than_asked_are_flagged(tmp_path: Path) -> None:
    """TensorRT-LLM#10824: minimum and maximum tokens not honoured."""
    short = some({"tokens": 5})
    assert "16 early_end" in flags(tmp_path, vllm(short))
    assert "49.25 output tokens a request" in flags(tmp_path, vllm(short, detailed=False))
    assert "early_end" in flags(tmp_path, guidellm(short))


# --- zero and negative values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 1])
def test_requests_of_no_or_one_token_divide_nothing(tmp_path: Path, tokens: int) -> None:
    """sglang#26497, srt-slurm#429: zero generated tokens with success are flagged, not divided by."""
    text = flags(tmp_path, vllm(some({"tokens": tokens})))
    assert "output_length_exact" in text
    assert "no_output" in text if tokens == 0 else "1 of 64 tokens" in text


def test_a_ttft_of_zero_is_a_sentinel_not_a_time(tmp_path: Path) -> None:
    """sglang#36047: 0.0 for "no first token" makes TPOT too long."""
    ttfts = [0.0 if i % 4 == 3 else s.ttft_s for i, s in enumerate(streams())]
    assert "ttft_positive: 16 ttft_not_positive" in flags(tmp_path, vllm(streams(), ttfts=ttfts))


def test_a_negative_ttft_is_flagged(tmp_path: Path) -> None:
    """guidellm#216: clocks of two processes."""
    assert "ttft_not_positive" in flags(tmp_path, guidellm(some({"ttft_s": -0.01})))


@pytest.mark.parametrize("value", [0.0, -3.5])
def test_a_tpot_of_zero_or_less_is_null_and_the_run_invalid(tmp_path: Path, value: float) -> None:
    """vllm-omni#6693: zero or negative passes every "not above" gate."""
    found = shown(tmp_path, vllm(streams(), detailed=False, median_tpot_ms=value))
    assert found["tpot_median_ms"] is None
    assert "zero or negative" in found["reasons"]["tpot_median_ms"]
    assert found["valid"] == 0


def test_trtllm_bench_requests_of_one_token_enter_as_zero_and_are_flagged(tmp_path: Path) -> None:
    """Its minimum TPOT of 0 shows that n_out <= 1 is inside every percentile."""
    report = {
        "engine": {"model": "k3"},
        "request_info": {"num_requests": 64, "avg_num_concurrent_requests": 7.97, "avg_output_length": 64.0},
        "performance": {"total_latency_ms": 5500.0, "system_output_throughput_tok_s": 740.0},
        "streaming_metrics": {"avg_tpot_ms": 9.0, "tpot_percentiles": {"p50": 10.0, "p99": 10.1, "minimum": 0.0}},
    }
    assert "minimum is 0" in flags(tmp_path, report)


def test_a_run_without_completions_is_refused(tmp_path: Path) -> None:
    """llm-d-benchmark#679, evalscope#1159: a division by zero elsewhere."""
    nothing = vllm(streams(), detailed=False, completed=0, total_output_tokens=0)
    with pytest.raises(RecordError, match="no request completed"):
        shown(tmp_path, nothing)
    with pytest.raises(RecordError, match="none of 64 requests completed"):
        shown(tmp_path, vllm(streams(), errors=["refused"] * 64))


def test_no_request_after_filtering_is_an_error(tmp_path: Path) -> None:
    """nvbench#231: empty after the filter. Here: only warm-up requests in the file."""
    lines = [line for line in aiperf_records(streams()) if line["metadata"]["benchmark_phase"] == "warmup"]
    with pytest.raises(RecordError, match="no request of the profiling phase"):
        shown(tmp_path, lines)


def test_a_null_metric_is_null_with_a_reason_never_zero(tmp_path: Path) -> None:
    """srt-slurm#241: rollup keys that came out as None."""
    found = shown(tmp_path, vllm(streams(), detailed=False, median_tpot_ms=None))
    assert found["tpot_median_ms"] is None
    assert found["reasons"]["tpot_median_ms"] == "the file has no median_tpot_ms"
    assert found["tps_user"] is None
    assert found["valid"] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "12.9", True, [1], {"a": 1}])
def test_what_is_no_finite_number_is_refused_by_field(tmp_path: Path, value: Any) -> None:
    """A metric that is text, a list or not finite names its file and field."""
    with pytest.raises(RecordError) as refused:
        shown(tmp_path, vllm(streams(), detailed=False, median_tpot_ms=value))
    assert refused.value.where.endswith("run.json: median_tpot_ms")


# --- units, warm-up, spread, direction ------------------------------------------------------------------------------


def test_seconds_become_milliseconds(tmp_path: Path) -> None:
    """InferenceX's aggregate stores seconds under the names that others use for milliseconds."""
    found = shown(tmp_path, {"hw": "gb300", "conc": 8, "model": "k3", "median_tpot": 0.0125, "median_ttft": 0.3})
    assert found["tpot_median_ms"] == pytest.approx(12.5)
    assert found["ttft_median_ms"] == pytest.approx(300.0)


def test_what_a_file_does_not_show_is_named(tmp_path: Path) -> None:
    """InferenceX#357: an aggregate without counts may hide what failed; it is imported with that said."""
    found = shown(tmp_path, {"conc": 8, "median_tpot": 0.0125, "median_ttft": 0.3})
    assert "not checked: completed_equals_planned, output_length_exact" in "\n".join(found["flags"])


def test_seconds_under_a_name_in_milliseconds_are_noticed(tmp_path: Path) -> None:
    """The time of all requests must fit into the run."""
    wrong = {k: v / 1e3 for k, v in vllm(streams(), detailed=False).items() if k.endswith("_ms")}
    assert "wrong unit?" in flags(tmp_path, vllm(streams(), detailed=False, **wrong))


def test_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    """aiperf stores the unit beside the value; a unit nobody knows is not guessed."""
    lines = aiperf_records(streams())
    lines[5]["metrics"]["time_to_first_token"]["unit"] = "fortnights"
    with pytest.raises(RecordError, match="unit 'fortnights' is not known"):
        shown(tmp_path, lines)


def test_warm_up_requests_are_left_out(tmp_path: Path) -> None:
    """guidellm#1078 and aiperf's own file: warm-up stands in it like any request."""
    lines = aiperf_records(streams())
    for line in lines[:2]:
        line["metrics"]["time_to_first_token"]["value"] = 90_000.0
    found = shown(tmp_path, lines)
    assert found["ttft_p99_ms"] == pytest.approx(50.0, rel=1e-3)
    assert "2 requests of other phases" in "\n".join(found["flags"])


def test_first_tokens_that_spread_widely_are_remarked(tmp_path: Path) -> None:
    """sglang#8285: TTFT between 1.7 and 47 s on the same system."""
    found = shown(tmp_path, vllm(some({"ttft_s": 1.5}, every=16)))
    assert "times the median" in "\n".join(found["flags"])


def test_a_summary_that_is_not_of_its_requests_is_flagged(tmp_path: Path) -> None:
    """An edited number, or lists of another run: the file contradicts itself."""
    text = flags(tmp_path, vllm(streams(), median_tpot_ms=9.0))
    assert "the summary says tpot_median_ms 9, its own requests give 10" in text


def test_a_latency_that_its_parts_do_not_make_is_flagged(tmp_path: Path) -> None:
    """A TPOT whose denominator is not the number of tokens does not add up to the latency."""
    value = vllm(streams(), detailed=False)
    assert "times_add_up" in flags(tmp_path, value | {"median_tpot_ms": value["median_tpot_ms"] / 2})


def test_the_token_source_is_shown(tmp_path: Path) -> None:
    """flexible-inference-bench#66: who counted the tokens changes TPOT."""
    assert shown(tmp_path, sglang(streams()))["token_source"].startswith("usage_or_requested")
    assert shown(tmp_path, guidellm(streams()))["token_source"].startswith("usage:")


def test_an_open_loop_is_remarked(tmp_path: Path) -> None:
    """A request rate holds no concurrency."""
    assert "open loop" in "\n".join(shown(tmp_path, vllm(streams(), request_rate=4.0))["flags"])


def test_less_time_a_token_is_better() -> None:
    """TensorRT-LLM#18741: TPOT in the list of "higher is better" made a loss of 150 % a gain."""
    assert {m.better for m in METRICS.values() if m.unit == "ms"} == {"lower"}
    assert {m.better for m in METRICS.values() if m.unit == "tok/s"} == {"higher"}


def test_every_refusal_is_one_of_ours(tmp_path: Path) -> None:
    """An import ends with a value or with one K3Error."""
    with pytest.raises(K3Error):
        shown(tmp_path, {"completed": "many", "total_output_tokens": 3, "duration": 1})


def test_foreign_text_cannot_steer_a_terminal(tmp_path: Path) -> None:
    """Escape sequences in names and errors are printed as question marks."""
    found = shown(tmp_path, vllm(streams(), model_id="k3\x1b[2J\r", errors=["\x1b]0;x\x07"] + [""] * 63))
    assert found["model"] == "k3?[2J?"
    assert "\x1b" not in "".join(found["flags"])
    with pytest.raises(RecordError, match="no known format") as refused:
        shown(tmp_path, {"\x1b[31mkey": 1})
    assert "\x1b" not in str(refused.value)


# --- numbers that no run has ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"duration": -5.0}, r"no measured duration is zero or negative\n.*run\.json: duration"),
        ({"duration": 0}, r"no measured duration is zero or negative\n.*run\.json: duration"),
        ({"max_concurrency": 10**12}, r"is no concurrency.*\n.*run\.json: max_concurrency"),
    ],
)
def test_a_duration_or_a_level_that_no_run_has_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """An edited summary names its file and field, and leaves no folder behind."""
    path = write(tmp_path / "run.json", vllm(streams(), detailed=False) | change)
    with pytest.raises(RecordError, match=says):
        list(run(Request(files=(path,), place="o.before", into=tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_a_median_far_from_its_mean_does_not_count(tmp_path: Path) -> None:
    """A median of a nanosecond beside a mean of ten milliseconds is no measurement."""
    found = flags(tmp_path, vllm(streams(), detailed=False) | {"median_tpot_ms": 1e-9})
    assert "mean_fits_median: tpot_median_ms is 1e-09" in found


def test_a_run_refused_for_its_place_leaves_no_folder(tmp_path: Path) -> None:
    """A file that is refused only when it is placed creates nothing either; nor is a folder taken for a file."""
    path = write(tmp_path / "after.json", vllm(streams(), label="after"))
    with pytest.raises(RecordError):
        list(run(Request(files=(path,), place="o.before", into=tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    with pytest.raises(K3Error, match="it is a folder"):
        list(run(Request(files=(tmp_path,), show=True)))
