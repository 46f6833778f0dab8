"""Every op of a step lies in a named range, in either arm; and what a capture record says about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from k3model.capture import Decode
from k3model.captured import CaptureRecorder, DriverGraph, Node
from k3model.decode import K3
from k3model.policy import PR_FORKS, policy
from k3model.ranges import no_ranges

Builder = Callable[..., K3]
FAMILY = re.compile(r"L\d+\.(KDA|MLA|MoE|other)")
LEG = re.compile(r"fork\.[A-Za-z0-9_-]+\.(main|side)")


class Recording(TorchDispatchMode):
    """Ranges that know which ops ran inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ops: list[tuple[tuple[str, ...], str]] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A range of that name."""
        self.open.append(name)
        yield
        assert self.open.pop() == name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:  # a view runs nothing
            self.ops.append((tuple(self.open), str(func)))
        return func(*args, **(kwargs or {}))


def recorded_step(model: K3, name: str) -> Recording:
    """One eager step under a policy, every op written down."""
    seen = Recording()
    session = Decode(model, policy(name), 2, ranges=seen.range)
    session.clear()
    with seen:
        session.step()
    return seen


@pytest.mark.parametrize("arm", ["before", "after"])
def test_every_op_of_a_step_lies_in_a_family_of_a_layer(nano: Builder, arm: str) -> None:
    """Embedding, mixes, norms, head, choice and index writes too: nothing of a step is without a family."""
    model = nano("nano-res")
    ops = recorded_step(model, arm).ops
    assert len(ops) > 100
    assert [op for path, op in ops if not path or not FAMILY.fullmatch(path[0])] == []
    layers = {path[0] for path, _ in ops}
    assert {layer.attention_range for layer in model.layers} <= layers
    assert {layer.mlp_range for layer in model.layers} <= layers
    assert model.head_range in layers


def test_legs_are_named_inside_their_family_and_alike_in_both_arms(nano: Builder) -> None:
    """The serial arm opens the same ranges in the same order around the same ops as the forked one."""
    model = nano()
    before, after = recorded_step(model, "before"), recorded_step(model, "after")
    assert before.ops == after.ops
    inner = {name for path, _ in after.ops for name in path[1:]}
    assert all(LEG.fullmatch(name) for name in inner)
    assert {f"fork.{name}.{leg}" for name in (*PR_FORKS, "routed_shared") for leg in ("main", "side")} <= inner


def test_nested_forks_nest_their_ranges(nano: Builder) -> None:
    """A fork inside a left leg lies inside that leg's range."""
    paths = {path[1:] for path, _ in recorded_step(nano(), "all").ops}
    assert ("fork.routed_shared.main", "fork.moe_router_latent.side") in paths


def test_nothing_is_opened_by_a_step_that_nobody_watches(nano: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timed path on a CPU opens no NVTX range, and legs are not wrapped."""
    opened: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", opened.append)
    session = Decode(nano(), policy("after"), 1)
    session.clear()
    session.step()
    assert opened == []
    assert session.forks.ranges is no_ranges


def test_prefill_opens_no_leg(nano: Builder, prompt: torch.Tensor) -> None:
    """A trace of a step must not hold a prompt's legs."""
    seen = Recording()
    session = Decode(nano(), policy("after"), 4, ranges=seen.range)
    session.clear()
    with seen:
        session.prefill(prompt[:, :5])
    assert [path for path, _ in seen.ops if any(map(LEG.fullmatch, path))] == []


class FakeGraph:
    """A graph that grows as the test says."""

    def __init__(self) -> None:
        self.held: list[Node] = []

    def count(self) -> int:
        """Nodes so far."""
        return len(self.held)

    def nodes(self, first: int) -> list[Node]:
        """From that number on."""
        return self.held[first:]


def test_a_capture_record_numbers_nodes_in_order_of_creation() -> None:
    """A range holds the nodes created while it was open; ranges are listed as they were opened."""
    graph = FakeGraph()
    recorder = CaptureRecorder(graph, inner=no_ranges)
    with recorder("L0.KDA"):
        graph.held.append(Node("kernel", "a"))
        with recorder("fork.kda_staging.side"):
            assert recorder.open == ["L0.KDA", "fork.kda_staging.side"]
            graph.held += [Node("memset"), Node("other")]
    with recorder("L0.other"):
        graph.held.append(Node("kernel", "b"))
    (captured,) = recorder.as_plain(8)["graphs"]
    assert captured["level"] == 8
    assert captured["n_nodes"] == 4
    assert [(r["name"], r["first_node"], r["end_node"]) for r in captured["ranges"]] == [
        ("L0.KDA", 0, 3),
        ("fork.kda_staging.side", 1, 3),
        ("L0.other", 3, 4),
    ]
    assert captured["nodes"] == [
        {"kind": "kernel", "name": "a"},
        {"kind": "memset", "name": None},
        {"kind": "other", "name": None},
        {"kind": "kernel", "name": "b"},
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("arm", ["before", "after"])
def test_every_node_of_a_captured_graph_lies_in_a_family(arm: str) -> None:
    """Asked of the driver while capturing: no node is outside a range, kernels have names, replays are unchanged."""
    from k3model.config import preset
    from k3model.decode import build

    model = build(preset("nano"), device="cuda", max_batch=2, context=64)
    plain = Decode(model, policy(arm), 2)
    plain.clear()
    start = plain.snapshot()
    recorder = CaptureRecorder(DriverGraph())
    watched = Decode(model, policy(arm), 2, ranges=recorder)
    tokens = []
    for session in (plain, watched):
        session.capture()
        session.restore(start)
        for _ in range(5):
            session.step()
        tokens.append(session.history.clone())
    assert torch.equal(*tokens)
    (captured,) = recorder.as_plain(2)["graphs"]
    families = [r for r in captured["ranges"] if FAMILY.fullmatch(r["name"])]
    held = [n for r in families for n in range(r["first_node"], r["end_node"])]
    assert held == list(range(captured["n_nodes"]))
    kernels = [n for n in captured["nodes"] if n["kind"] == "kernel"]
    assert len(kernels) > 50
    assert all(n["name"] for n in kernels)
