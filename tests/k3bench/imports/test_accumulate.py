"""Where imported runs go: one record, like with like, nothing twice, nothing overwritten."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from writers import aiperf_records, guidellm, sglang, streams, trtllm, vllm, write

from k3bench.cli import main
from k3bench.errors import K3Error, RecordError, StoreError
from k3bench.imports.command import Request, run
from k3bench.records.reported import Reported
from k3bench.store import read_record


def add(folder: Path, place: str, *files: Path, **options: Any) -> Reported:
    """`k3bench import FILES --as PLACE --into FOLDER`."""
    list(run(Request(files=files, place=place, into=folder, **options)))
    return read_record(folder / "reported.json", Reported)


def test_files_without_a_run_number_are_counted_in_their_order(tmp_path: Path) -> None:
    """Four files of one arm are runs 1 to 4; a sweep is one run at four levels."""
    four = [write(tmp_path / f"b{i}.json", vllm(streams(10 + i / 10))) for i in range(4)]
    found = add(tmp_path / "a", "r1.before", *four)
    assert [(r.imported.run, r.imported.file) for r in found.runs if r.imported] == [
        (i + 1, f"b{i}.json") for i in range(4)
    ]
    sweep = [write(tmp_path / f"c{c}.json", vllm(streams(10 + c / 10, level=c), level=c)) for c in (1, 2, 4, 8)]
    found = add(tmp_path / "b", "r1.before.2", *sweep)
    assert [(r.level, r.pair) for r in found.runs] == [(1, 1), (2, 1), (4, 1), (8, 1)]


def test_importing_again_changes_no_byte(tmp_path: Path) -> None:
    """The same file in the same place is done already."""
    one = write(tmp_path / "b.json", vllm(streams()))
    add(tmp_path / "o", "r1.before.1", one)
    first = (tmp_path / "o/reported.json").read_bytes()
    add(tmp_path / "o", "r1.before", one)
    assert (tmp_path / "o/reported.json").read_bytes() == first
    assert [p.name for p in (tmp_path / "o").iterdir()] == ["reported.json"]


def test_the_order_of_imports_does_not_matter(tmp_path: Path) -> None:
    """Any order of the same six imports gives the same bytes."""
    places = [(f"r1.{arm}.{n}", arm, n) for arm in ("before", "after") for n in (1, 2, 3)]
    files = {p: write(tmp_path / f"{p}.json", vllm(streams(10 + n + (arm == "after") / 7))) for p, arm, n in places}
    seen = set()
    for i, order in enumerate(itertools.islice(itertools.permutations(places), 0, 720, 71)):
        for place, _, _ in order:
            add(tmp_path / str(i) / "x", place, files[place])
        seen.add((tmp_path / str(i) / "x/reported.json").read_bytes())
    assert len(seen) == 1


def test_the_clocks_of_the_files_give_the_order_inside_a_pair(tmp_path: Path) -> None:
    """ABBA: pair 1 began with before, pair 2 with after; without clocks before is taken first and that is said."""
    abba = [("before", 1), ("after", 1), ("after", 2), ("before", 2)]
    for at, (arm, n) in enumerate(abba):
        path = write(tmp_path / f"{at}.json", vllm(streams(10 + at / 10), at_s=100 * at))
        found = add(tmp_path / "x", f"r1.{arm}.{n}", path)
    assert {(r.arm, r.pair): r.position for r in found.runs} == {
        ("before", 0): 1,
        ("after", 0): 2,
        ("after", 1): 3,
        ("before", 1): 4,
    }
    assert "before is taken as first" not in found.source.note
    for arm, pace in (("before", 10.0), ("after", 9.0)):
        path = write(tmp_path / f"{arm}.jsonl", [sglang(streams(pace))])
        found = add(tmp_path / "y", f"r1.{arm}.1", path)
    assert "before is taken as first" in found.source.note


def test_runs_numbered_through_are_pairs_of_neighbours_in_the_declared_order(tmp_path: Path) -> None:
    """1 before, 2 after, 3 after, 4 before: the numbers are the order, and (1, 2), (3, 4) are the pairs."""
    for n, arm in enumerate(["before", "after", "after", "before"], 1):
        path = write(tmp_path / f"{n}.json", [sglang(streams(10 + n / 10))])
        found = add(tmp_path / "x", f"r1.{arm}.{n}", path)
    assert [(r.arm, r.pair, r.position) for r in found.runs] == [
        ("before", 0, 1),
        ("after", 0, 2),
        ("after", 1, 3),
        ("before", 1, 4),
    ]
    assert "partner" not in found.source.note
    assert "taken as first" not in found.source.note


def test_clocks_that_contradict_the_declared_order_are_named(tmp_path: Path) -> None:
    """Numbered as if before had run first; the files say otherwise."""
    for n, arm, at_s in ((1, "before", 500), (2, "after", 100)):
        found = add(tmp_path / "x", f"r1.{arm}.{n}", write(tmp_path / f"{n}.json", vllm(streams(10.0 + n), at_s=at_s)))
    assert "clocks contradict the declared order: r1.before.1 c=8" in found.source.note


def test_pairs_that_were_not_side_by_side_are_named(tmp_path: Path) -> None:
    """Four before and then four after: drift is in the difference."""
    for at, (arm, n) in enumerate([("before", 1), ("before", 2), ("after", 1), ("after", 2)]):
        path = write(tmp_path / f"{at}.json", vllm(streams(10 + at / 10), at_s=100 * at))
        found = add(tmp_path / "x", f"r1.{arm}.{n}", path)
    assert "drift is not cancelled: r1.before.1 c=8, r1.before.2 c=8" in found.source.note


def _unlike() -> dict[str, tuple[Any, Any]]:
    base = vllm(streams())
    return {
        "model": (base, vllm(streams(9.0), model_id="other")),
        "isl_tokens": (base, vllm(streams(9.0, prompt=256))),
        "osl_tokens": (base, vllm(streams(9.0, tokens=32))),
        "tool": (base, trtllm(streams(9.0))),
        "rack": (vllm(streams(), rack="d157"), vllm(streams(9.0), rack="d127")),
        "token_source": (guidellm(streams()), _own_count(guidellm(streams(9.0)))),
    }


def _own_count(report: Any) -> Any:
    report["benchmarks"][0]["config"]["prefer_response_metrics"] = False
    return report


@pytest.mark.parametrize("field", sorted(_unlike()))
def test_unlike_arms_are_refused_naming_file_and_field(tmp_path: Path, field: str) -> None:
    """Model, lengths, tool, rack, who counted: before and after are the same in all of them."""
    before, after = _unlike()[field]
    add(tmp_path / "x", "r1.before", write(tmp_path / "b.json", before))
    kept = (tmp_path / "x/reported.json").read_bytes()
    with pytest.raises(RecordError, match=f"{field} is") as refused:
        add(tmp_path / "x", "r1.after", write(tmp_path / "a.json", after))
    assert refused.value.where == f"a.json: {field}"
    assert "b.json" in refused.value.what
    assert (tmp_path / "x/reported.json").read_bytes() == kept


def test_another_tool_may_measure_another_observation(tmp_path: Path) -> None:
    """Ratios inside an observation are of one tool; the record says that tools differ."""
    add(tmp_path / "x", "r1.before", write(tmp_path / "b.json", vllm(streams())))
    found = add(tmp_path / "x", "r2.before", write(tmp_path / "b.jsonl", aiperf_records(streams(10.5))))
    assert "measured by different tools: aiperf (usage), vllm (usage_or_retokenised)" in found.source.note


def test_swapped_arms_are_refused_where_the_file_says_so(tmp_path: Path) -> None:
    """A label in the file refuses; a file name only warns."""
    path = write(tmp_path / "run.json", vllm(streams(), arm="after"))
    with pytest.raises(RecordError, match="arms swapped: the file says that it is 'after'") as refused:
        add(tmp_path / "x", "r1.before", path)
    assert refused.value.where == "run.json: arm"
    found = add(tmp_path / "x", "r1.before", write(tmp_path / "c8-after.json", vllm(streams())))
    assert found.runs[0].imported is not None
    assert "are the arms swapped?" in found.runs[0].imported.flags[-1]


def test_one_file_cannot_be_both_arms(tmp_path: Path) -> None:
    """Neither the file itself nor a copy with another label."""
    path = write(tmp_path / "b.json", vllm(streams()))
    add(tmp_path / "x", "r1.before", path)
    with pytest.raises(RecordError, match=r"the same file is r1\.before\.1 c=8 already"):
        add(tmp_path / "x", "r1.after", path)
    copy = write(tmp_path / "copy.json", vllm(streams(), label="fresh"))
    with pytest.raises(RecordError, match=r"numbers are those of b\.json"):
        add(tmp_path / "x", "r1.after", copy)


def test_a_taken_place_is_not_overwritten(tmp_path: Path) -> None:
    """Results are never overwritten, and of several files none is taken when one is refused."""
    add(tmp_path / "x", "r1.before.1", write(tmp_path / "b.json", vllm(streams())))
    kept = (tmp_path / "x/reported.json").read_bytes()
    others = [write(tmp_path / f"{c}.json", vllm(streams(11 + c, level=c), level=c)) for c in (4, 8)]
    with pytest.raises(StoreError, match=r"r1\.before\.1 c=8 is taken by b\.json"):
        add(tmp_path / "x", "r1.before.1", *others)
    assert (tmp_path / "x/reported.json").read_bytes() == kept


def test_a_measured_campaign_and_published_figures_are_left_alone(tmp_path: Path) -> None:
    """Imported runs never slip into a folder that holds something else."""
    path = write(tmp_path / "b.json", vllm(streams()))
    (tmp_path / "m").mkdir()
    (tmp_path / "m/plan.json").write_text("{}")
    with pytest.raises(StoreError, match="holds a measured campaign"):
        add(tmp_path / "m", "r1.before", path)
    recorded = Path(__file__).parents[3] / "results/recorded/pr-17103/reported.json"
    (tmp_path / "p").mkdir()
    (tmp_path / "p/reported.json").write_bytes(recorded.read_bytes())
    with pytest.raises(StoreError, match="holds published figures"):
        add(tmp_path / "p", "r1.before", path)


def test_imports_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Eight imports into one record wait for one another."""
    files = [write(tmp_path / f"{n}.json", vllm(streams(10 + n / 10))) for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add(tmp_path / "x", f"r1.before.{n}", files[n - 1]), range(1, 9)))
    assert len(read_record(tmp_path / "x/reported.json", Reported).runs) == 8


def test_a_level_that_no_file_states_is_asked_for(tmp_path: Path) -> None:
    """And one that contradicts the file is refused."""
    path = write(tmp_path / "b.json", vllm(streams(), max_concurrency=None))
    with pytest.raises(RecordError, match="states no concurrency") as refused:
        add(tmp_path / "x", "r1.before", path)
    assert refused.value.where == "b.json: level"
    assert add(tmp_path / "x", "r1.before", path, level=8).runs[0].level == 8
    with pytest.raises(RecordError, match="--level 4, but the file says 8"):
        add(tmp_path / "y", "r1.before", write(tmp_path / "c.json", vllm(streams())), level=4)


def test_an_invalid_run_is_kept_without_numbers(tmp_path: Path) -> None:
    """Its place shows why; its pair will be dropped."""
    bad = [s if i else type(s)(tokens=5, prompt=128) for i, s in enumerate(streams())]
    (run_,) = add(tmp_path / "x", "r1.before", write(tmp_path / "b.json", vllm(bad))).runs
    assert run_.metrics == {}
    assert "early_end" in run_.missing["tpot_median_ms"]
    assert run_.imported is not None
    assert not run_.imported.valid


@pytest.mark.parametrize(
    "place", ["", "before", "r1", "r1.middle", "r1.before.0", "r1.before.x", "../x.before", ".r.after"]
)
def test_a_place_that_is_none_is_refused(tmp_path: Path, place: str) -> None:
    """The message shows the shape, and a name never becomes a path."""
    with pytest.raises(RecordError, match="is no place for a run") as refused:
        add(tmp_path / "x", place, write(tmp_path / "b.json", vllm(streams())))
    assert "rack1.before.2" in refused.value.fix


def test_an_import_without_a_place_says_what_to_add(tmp_path: Path) -> None:
    """Neither --as nor --show: one error with both."""
    with pytest.raises(K3Error, match="where does the run belong"):
        list(run(Request(files=(write(tmp_path / "b.json", vllm(streams())),))))


def test_by_default_runs_go_to_results_under_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`results/imported/`, or `results/<name>/` with --name; the next command is printed."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "b.json", vllm(streams()))
    assert main(["import", "b.json", "--as", "r1.before"]) == 0
    assert main(["import", "b.json", "--as", "r1.before", "--name", "last-night"]) == 0
    assert read_record(tmp_path / "results/imported/reported.json", Reported).name == "imported"
    assert read_record(tmp_path / "results/last-night/reported.json", Reported).name == "last-night"
    assert "next: k3bench compare results/last-night" in capsys.readouterr().out


def test_pull_request_figures_are_known_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same verb, the same record as before."""
    shared = Path(__file__).parents[4] / "shared/data/pr-17103.json"
    if not shared.is_file():
        pytest.skip(f"needs {shared}")
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(shared), "--name", "pr-17103", "--out", "out/reported.json"]) == 0
    recorded = Path(__file__).parents[3] / "results/recorded/pr-17103/reported.json"
    assert (tmp_path / "out/reported.json").read_bytes() == recorded.read_bytes()
