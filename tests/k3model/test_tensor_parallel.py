"""Two ranks over gloo against one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from k3model.capture import Decode
from k3model.config import K3Config, preset
from k3model.decode import K3, build
from k3model.equivalence.across import ROWS, Decoded, across_probes, apart
from k3model.equivalence.rig import Rig
from k3model.equivalence.rows import failed, passed
from k3model.equivalence.suite import ask
from k3model.errors import ConfigError
from k3model.policy import policy


def decode(model: K3) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and tokens after a prompt and eight steps."""
    session = Decode(model, policy("after"), 2)
    session.prefill(torch.randint(0, 512, (2, 9), generator=torch.Generator().manual_seed(1)))
    for _ in range(8):
        session.step()
    return session.logits.clone(), session.history.clone()


def sized(form: str, ranks: int) -> K3Config:
    """Nano on so many ranks, in a variant, or with hits known in advance in each of two shares."""
    if form == "seeded":
        options = {"shares": 2, "routing": "seeded", "held_experts": 4 // ranks}
        return replace(preset("nano", tp_size=ranks), **options)
    return preset("nano", tp_size=ranks, variant=form)


FORMS = ("A", "B", "seeded")


def one_rank(rank: int, folder: str) -> None:
    """A process of the group: build its share of every form, decode, leave the results in the folder."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for form in FORMS:
        model = build(sized(form, 2), dtype=torch.float64, max_batch=2, context=64)
        torch.save((*decode(model), model.collectives.kind), f"{folder}/{form}{rank}.pt")
    rig = Rig("nano", {"tp_size": 2, "collectives": "distributed"}, device="cpu", max_batch=ROWS)
    found = [asdict(ask(probe)) for probe in across_probes(rig)]
    together = [rig.any_rank(rank == 1), rig.any_rank(False), rig.together(failed("x") if rank else passed()).status]
    Path(f"{folder}/across{rank}.json").write_text(json.dumps([found, together]))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks decoded."""
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(one_rank, (str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_decode_what_one_decodes(decoded: Path, form: str) -> None:
    """Split heads, experts, MLPs and vocabulary; same logits in float64, same tokens, and both ranks agree."""
    logits, tokens = decode(build(sized(form, 1), dtype=torch.float64, max_batch=2, context=64))
    for rank in range(2):
        theirs, chosen, kind = torch.load(decoded / f"{form}{rank}.pt", weights_only=True)
        torch.testing.assert_close(theirs, logits)
        assert torch.equal(chosen, tokens)
        assert kind == "gloo x2"


def test_two_ranks_agree_with_one_within_the_bound_and_a_missing_sum_is_seen(decoded: Path) -> None:
    """The probes of `k3bench verify` for ranks, on rank 0; rank 1 takes part and has nothing to say."""
    (comparison, control), _ = json.loads((decoded / "across0.json").read_text())
    assert comparison["status"] == "pass"
    assert "bfloat16, reported without a bound" in comparison["reason"]
    assert comparison["measures"]["distinct_tokens"] > 64
    assert control["status"] == "pass"
    assert control["reason"].startswith("caught: logits differ by")


def test_ranks_decide_together(decoded: Path) -> None:
    """What one says counts for all: a rank that went its own way would leave the others waiting."""
    for rank in range(2):
        assert json.loads((decoded / f"across{rank}.json").read_text())[1] == [True, False, "fail"]


def logits(*rows: list[float]) -> Decoded:
    """One row of a batch over some steps."""
    return Decoded(torch.tensor(rows).unsqueeze(1))


def test_tokens_may_part_only_where_the_best_logit_is_hardly_ahead() -> None:
    """And what comes after is not compared: it answers another question."""
    reference = logits([4.0, 1.0], [4.0, 3.9999], [4.0, 1.0])
    assert apart(reference, logits([4.0, 1.0], [3.9999, 4.0], [0.0, 9.0])).excess(1e-4) == ""
    wide = logits([4.0, 1.0], [4.0, 3.996], [4.0, 1.0])
    found = apart(wide, logits([4.0, 1.0], [3.998, 3.9985], [4.0, 1.0]))
    assert (found.first, found.largest) == (1, pytest.approx(6.25e-4, rel=1e-3))
    assert found.excess(1e-4) == "logits differ by 6.3e-04 of the largest, 1e-04 is allowed"
    assert found.excess(9e-4) == "tokens part at step 1 where the best logit is 1.0e-03 ahead"
    assert apart(reference, logits([4.0, 1.0], [4.0, float("nan")], [4.0, 1.0])).excess(1.0) != ""


def one_gpu(rank: int, folder: str) -> None:
    """A process with a GPU of its own: serial eager steps, then captured ones with every fork on."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = build(preset("small", tp_size=2), device=f"cuda:{rank}", max_batch=2, context=128)
    tokens = []
    for name in ("serial", "all"):
        session = Decode(model, policy(name), 2)
        session.clear()
        session.prefill(torch.randint(0, 8192, (2, 70), generator=torch.Generator().manual_seed(1)))
        if name == "all":
            session.capture()
        for _ in range(20):
            session.step()
        tokens.append(session.history.clone())
    torch.save((torch.equal(*tokens), model.collectives.kind), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_collectives_are_captured_with_the_forks(tmp_path: Path) -> None:
    """NCCL inside the graph, on main only: the same tokens as serial eager steps."""
    mp.spawn(one_gpu, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        assert torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) == (True, "nccl x2")


def test_ranks_without_a_process_group_are_refused() -> None:
    """Never a silent partial sum."""
    with pytest.raises(ConfigError, match="no process group of that size is up"):
        build(preset("nano", tp_size=2), max_batch=1, context=64)


def test_absent_peers_are_said_to_be_absent() -> None:
    """What an engine writes into its record."""
    config = preset("nano", tp_size=2, collectives="absent", routing="seeded")
    model = build(config, max_batch=1, context=64)
    assert model.collectives.kind == "absent"
    assert model.caches.logits.shape == (1, 256)
