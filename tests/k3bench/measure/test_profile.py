"""Profiled runs: what is refused and with which cure, what is kept, and on a GPU the whole way to a residency."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from k3bench.build import build_arm
from k3bench.cli import main
from k3bench.errors import MeasureError, RecipeError
from k3bench.measure.profile import profile, profile_spec
from k3bench.measure.profilers import PROFILERS
from k3bench.plan import make_plan, profiled
from k3bench.recipe import parse_recipe
from k3bench.records.residency import Collected, Residency
from k3bench.store import CampaignFolder, write_record

RECIPES = Path(__file__).parents[3] / "recipes"
TRACED = "\ntrace: {tool: kineto, level: 2}\n"


def has_gpu() -> bool:
    """Whether a CUDA driver with a device is here."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return False
    return not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)) and count.value > 0


def campaign(root: Path, extra: str = TRACED, recipe: str = "laptop") -> CampaignFolder:
    """A planned and built campaign of the laptop recipe, with a profiled run."""
    text = (RECIPES / f"{recipe}.yaml").read_text() + extra
    folder = CampaignFolder(root / "results" / recipe)
    plan = make_plan(parse_recipe(text, where=f"{recipe}.yaml", name=recipe))
    write_record(folder.plan, plan)
    for pair in sorted({o.pair for o in plan.observations}):
        for arm in ("before", "after"):
            write_record(folder.build(pair, arm), build_arm(plan, pair, arm))  # type: ignore[arg-type]
    return folder


def sidecar(folder: CampaignFolder, out: Path, tool: str, *, build: str | None = None) -> Collected:
    """A collector's record as if the run had been made."""
    spec = profile_spec(folder.root, "obs1", "after", tool=None, level=None, out=out)
    record = Collected(
        trace=f"{spec.stem}.json.gz",
        arm="after",
        level=2,
        tool=tool,  # type: ignore[arg-type]
        tool_version="x",
        n_replays=11,
        build=build or spec.build,
    )
    write_record(spec.sidecar, record)
    return record


def test_the_recipe_decides_which_observations_are_profiled(tmp_path: Path) -> None:
    """Both arms of every claimed observation, at the level of the recipe; nothing without a tool."""
    text = (RECIPES / "laptop.yaml").read_text()
    plan = make_plan(parse_recipe(text + TRACED, where="", name="laptop"))
    assert profiled(plan) == [o.id for o in plan.observations if not o.zero_change]
    assert {(p.arm, p.level, p.tool) for p in plan.profiles} == {("before", 2, "kineto"), ("after", 2, "kineto")}
    assert profiled(make_plan(parse_recipe(text, where="", name="laptop"))) == []


def test_an_engine_that_runs_no_graph_of_ours_is_refused_with_the_recipe(tmp_path: Path) -> None:
    """Before anything is measured."""
    text = (RECIPES / "simulated.yaml").read_text() + "\ntrace: {tool: nsys}\n"
    with pytest.raises(RecipeError, match="needs engine k3model"):
        parse_recipe(text, where="", name="simulated")


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
@pytest.mark.parametrize("tool", list(PROFILERS))
def test_a_machine_without_cuda_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    """One clear error, exit code 2, no file."""
    monkeypatch.chdir(tmp_path)
    folder = campaign(tmp_path)
    words = ["profile", str(folder.plan), "obs1/after", "--tool", tool, "--executor", "here", "--out", "traces"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "needs a CUDA device" in said
    assert "Traceback" not in said
    assert not Path("traces").exists()


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_profiled_runs_follow_the_timed_ones_and_cost_them_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Snakemake one command does both; where no trace can be made, what was measured stays."""
    monkeypatch.chdir(tmp_path)
    text = (RECIPES / "laptop.yaml").read_text()
    smaller = {"levels": "[2]", "primary_level": 2, "blocks": 1, "blocks_per_allocation": 1, "zero_change": 0}
    smaller |= {"isl_tokens": 8, "osl_tokens": 5}
    for key, value in smaller.items():
        text, n = re.subn(rf"(?m)^(\s*{key}:) .*$", rf"\1 {value}", text)
        assert n == 1, key
    plan = make_plan(parse_recipe(text + TRACED, where="laptop.yaml", name="laptop"))
    folder = CampaignFolder(tmp_path / "results/laptop")
    write_record(folder.plan, plan)
    assert main(["measure", str(folder.plan), "--here"]) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
    for observation in plan.observations:
        assert len(list(folder.observation(observation.id).glob("points/*.json"))) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm": "middle"}, "neither before nor after"),
        ({"level": 3}, "not in the recipe"),
        ({"observation": "obs9"}, "not in the plan"),
    ],
)
def test_what_is_not_planned_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    """Names are checked before any process starts."""
    asked: dict[str, object] = {"observation": "obs1", "arm": "after", "tool": None, "level": None} | change
    with pytest.raises(MeasureError, match=message):
        profile_spec(campaign(tmp_path).root, out=tmp_path, **asked)  # type: ignore[arg-type]


def test_a_recipe_without_a_tool_says_how_to_name_one(tmp_path: Path) -> None:
    """`--tool` or the recipe."""
    with pytest.raises(MeasureError, match="asks for no trace") as refused:
        profile_spec(campaign(tmp_path, "").root, "obs1", "after", tool=None, level=None, out=tmp_path)
    assert "--tool" in refused.value.fix


def test_a_trace_of_this_build_is_kept(tmp_path: Path) -> None:
    """Nothing runs twice: no job is begun, on any machine."""
    folder = campaign(tmp_path)
    record = sidecar(folder, tmp_path / "traces", "kineto")
    assert profile(folder.plan, "obs1", "after", out=tmp_path / "traces", executor="here") == record


@pytest.mark.parametrize(("tool", "build"), [("nsys", None), ("kineto", "0" * 64)])
def test_a_trace_of_another_build_or_tool_is_not_replaced(tmp_path: Path, tool: str, build: str | None) -> None:
    """Results are never overwritten."""
    folder = campaign(tmp_path)
    sidecar(folder, tmp_path / "traces", tool, build=build)
    with pytest.raises(MeasureError, match="another build or tool"):
        profile(folder.plan, "obs1", "after", out=tmp_path / "traces", executor="here")


def test_a_missing_nsys_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other tools."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MeasureError) as refused:
        PROFILERS["nsys"].check()
    assert "nsight-systems-cli" in refused.value.fix
    assert "kineto" in refused.value.fix


def test_nsys_without_its_importer_names_the_library(tmp_path: Path) -> None:
    """A .qdstrm alone is no report."""
    (tmp_path / "after.c1.r0.qdstrm").touch()
    with pytest.raises(MeasureError, match=r"only a \.qdstrm") as refused:
        PROFILERS["nsys"].trace(tmp_path / "after.c1.r0")
    assert "libdw1" in refused.value.fix


def test_nsys_traces_nodes_and_only_the_profiled_window(tmp_path: Path) -> None:
    """A graph-mode trace would hold no kernel of a graph; words are an argument list, the program comes last."""
    command = PROFILERS["nsys"].command(["python", "-m", "x", "a b"], tmp_path / "after.c1.r0")
    assert command[-4:] == ["python", "-m", "x", "a b"]
    assert {"--cuda-graph-trace=node", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(command)


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="no CUDA device")
def test_kineto_on_a_gpu_gives_a_residency_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arms, from the plan to the record: every op has a family, the fork's overlap is seen after the change."""
    monkeypatch.chdir(tmp_path)
    folder, out = campaign(tmp_path), tmp_path / "traces"
    for arm in ("before", "after"):
        words = [str(folder.plan), f"obs1/{arm}", "--executor", "here", "--out", str(out)]
        assert main(["profile", *words]) == 0
    assert main(["trace", "--collected", str(out), "--families", "--out", str(tmp_path / "r.json"), "--quiet"]) == 0
    record = Residency.from_bytes((tmp_path / "r.json").read_bytes())
    assert {s.arm for s in record.summaries} == {"before", "after"}
    assert {"KDA", "MLA", "MoE", "other"} <= {s.family for s in record.summaries}
    assert all(t.profiled.profiled_over_unprofiled for t in record.traces)
