"""Collectives in traces: never two at once on two lanes, said in nanoseconds; several ranks give mean and worst."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from k3bench.compare.kinds import mechanism
from k3bench.publish.cite import At
from k3bench.publish.document import Bullets, Table
from k3bench.publish.evidence import mechanism_blocks
from k3bench.records.residency import Collected, Residency
from k3bench.store import write_record
from k3bench.trace.command import main
from tests.k3bench.trace.golden import H200
from tests.k3bench.trace.kineto_files import K, kernel, write
from tests.k3bench.trace.nsys_files import FORKED, SERIAL, Node, decode

REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def measured(tmp_path: Path, *kernels: K) -> Residency:
    """The record of a little Kineto trace."""
    write(tmp_path / "t.json", [kernel(k) for k in kernels])
    assert main([str(tmp_path / "t.json"), "--out", str(tmp_path / "r.json")]) == 0
    return Residency.from_bytes((tmp_path / "r.json").read_bytes())


def test_collectives_on_one_lane_are_concurrent_for_0_ns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside other work they may run, and on one lane they may overlap by skew: neither is two at once."""
    found = measured(
        tmp_path, K("1.000", "4.000", name=REDUCE), K("4.500", "2.000", name=GATHER), K("2.000", "2.000", stream=9)
    )
    times = found.traces[0].devices[0].collectives
    assert times is not None
    assert (times.n_kernels, times.n_lanes, times.busy_ns) == (2, 1, 5500)
    assert (times.concurrent_ns, times.hidden_ns) == (0, 2000)
    assert not found.traces[0].warnings
    assert "collectives concurrent on two lanes: 0 ns" in capsys.readouterr().out


def test_two_collectives_at_once_are_a_warning_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two lanes of one device; those of another device are its own."""
    found = measured(
        tmp_path,
        K("1.000", "4.000", name=REDUCE),
        K("3.000", "4.000", stream=9, name="void allreduce_fusion_kernel_oneshot_lamport<8>()"),
        K("1.000", "9.000", device=1, name=REDUCE),
    )
    assert [d.collectives.concurrent_ns for d in found.traces[0].devices if d.collectives] == [2000, 0]
    assert [w.code for w in found.traces[0].warnings] == ["collectives_concurrent"]
    assert "collectives concurrent on two lanes: 2000 ns" in capsys.readouterr().out


def test_a_trace_without_collectives_says_nothing_of_them(tmp_path: Path) -> None:
    """And its record keeps the bytes that it had before there was such a field."""
    found = measured(tmp_path, K("1.000", "4.000", name="reduce_kernel"))
    assert found.traces[0].devices[0].collectives is None
    assert b'"collectives"' not in found.to_bytes()
    assert main([str(H200 / "torch_node_nsys2025.3.sqlite.xz"), "--out", str(tmp_path / "h.json"), "--quiet"]) == 0
    assert b'"collectives"' not in (tmp_path / "h.json").read_bytes()


def of_ranks(folder: Path, *after: list[Node]) -> Residency:
    """A collected folder of several ranks: the same before, and what is given after."""
    for arm, ranks in (("before", [SERIAL] * len(after)), ("after", list(after))):
        for rank, nodes in enumerate(ranks):
            stem = f"{arm}.c4.r{rank}"
            decode(folder / f"{stem}.sqlite", nodes, starts=(100_000 + rank, 200_000, 300_000))
            told = {"arm": arm, "level": 4, "rank": rank, "trace": f"{stem}.sqlite"}
            fixed = {"tool": "nsys", "tool_version": "2025.3.2.0", "n_replays": 3, "forks_on": ()}
            write_record(folder / f"{stem}.collected.json", Collected(**told, **fixed))  # type: ignore[arg-type]
    assert main(["--collected", str(folder), "--families", "--out", str(folder / "r.json"), "--quiet"]) == 0
    return Residency.from_bytes((folder / "r.json").read_bytes())


def test_several_ranks_give_mean_and_worst_rank_in_the_report(tmp_path: Path) -> None:
    """A rank without overlap is not hidden by the mean."""
    reduce = Node(90_000, 95_000, 7, ("L0.KDA",), REDUCE)
    found = mechanism({"obs1": of_ranks(tmp_path, [*FORKED, reduce], [*SERIAL, reduce])}, None)
    assert found is not None
    kda = next(f for f in found.families if (f.arm, f.family) == ("after", "KDA"))
    assert kda.two_stream_residency_ms_per_step == pytest.approx(0.0055 / 2)
    assert kda.worst_rank_residency_ms_per_step == 0
    assert (found.n_collectives, found.collectives_concurrent_ns) == (6, 0)
    table, bullets = mechanism_blocks(At(SimpleNamespace(mechanism=found)))
    assert isinstance(table, Table)
    assert table.columns[-1].title == "worst rank [ms/step]"
    assert isinstance(bullets, Bullets)
    assert "concurrent on two lanes" in str(bullets)


def test_one_rank_has_no_worst_one(tmp_path: Path) -> None:
    """The record of a campaign on one GPU looks as it did."""
    found = mechanism({"obs1": of_ranks(tmp_path, FORKED)}, None)
    assert found is not None
    assert "worst_rank_residency_ms_per_step" not in found.families[0].model_dump()
    assert "n_collectives" not in found.model_dump()
