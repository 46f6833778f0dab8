"""The fork helper: its gates, and the order of events when it does fork."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from k3model.collectives import Collectives
from k3model.config import preset
from k3model.equivalence.legs import SwappedForks
from k3model.errors import CollectiveError
from k3model.policy import policy
from k3model.streams import Forks, multi_stream, multi_stream_is_on, side_stream


class FakeStream:
    """A stream that writes down what is asked of it."""

    device = torch.device("cpu")

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.events = name, log, 0

    def record_event(self) -> str:
        """Hand out a numbered event."""
        self.events += 1
        event = f"{self.name}{self.events}"
        self.log.append(f"{self.name} records {event}")
        return event

    def wait_event(self, event: str) -> None:
        """Note the wait."""
        self.log.append(f"{self.name} waits {event}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What two fake streams did, with torch's idea of the current stream replaced."""
    lines: list[str] = []
    current = [FakeStream("main", lines)]

    @contextmanager
    def switch(stream: FakeStream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", switch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    return lines


def forks_on(log: list[str], name: str = "all") -> Forks:
    """Forks whose side stream writes to the log."""
    stream: Any = FakeStream("side", log)
    return Forks(policy(name), stream)


@pytest.mark.parametrize("name", ["all", "serial"])
def test_no_collective_is_issued_from_a_right_leg(log: list[str], name: str) -> None:
    """On two streams or one after the other: what is wrong on a GPU fails on any machine, with one rank."""
    collectives = Collectives(preset("nano"))
    for forks in (forks_on(log, name), Forks(policy(name), None), SwappedForks(policy(name))):
        with multi_stream():
            forks.fork("mla_q_kv", lambda: collectives.all_reduce(torch.ones(2)), lambda: None)
            with pytest.raises(CollectiveError, match="right leg of a fork"):
                forks.fork("mla_q_kv", lambda: None, lambda: collectives.all_reduce(torch.ones(2)))
    collectives.all_reduce(torch.ones(2))


def test_side_waits_for_work_before_the_fork_only(log: list[str]) -> None:
    """The opening event is recorded before the left leg is issued, and main waits for the right leg at the end."""
    with multi_stream():
        result = forks_on(log).fork("mla_q_kv", lambda: log.append("left") or 1, lambda: log.append("right") or 2)
    assert result == (1, 2)
    assert log == [
        "main records main1",
        "left",
        "side waits main1",
        "right",
        "side records side1",
        "main waits side1",
    ]


def test_a_nested_fork_joins_before_the_outer_right_leg_is_issued(log: list[str]) -> None:
    """One side stream is enough, because forks nest and never interleave."""
    forks = forks_on(log)
    with multi_stream():
        forks.fork(
            "kda_staging",
            lambda: forks.fork("kda_qkvg_bfa", lambda: log.append("qkvg"), lambda: log.append("bfa")),
            lambda: log.append("staging"),
        )
    assert log.index("main waits side1") < log.index("staging") < log.index("main waits side2")


def test_results_of_nested_forks_live_until_the_outermost_join(log: list[str]) -> None:
    """The side stream could otherwise hand their memory to the outer right leg while main still reads it."""
    forks = forks_on(log)
    alive: list[bool] = []

    class Result:
        def __del__(self) -> None:
            log.append("freed")

    def left() -> None:
        forks.fork("kda_qkvg_bfa", lambda: None, Result)

    with multi_stream():
        forks.fork("kda_staging", left, lambda: alive.append("freed" not in log))
    assert alive == [True]
    assert log[-1] == "freed"


@pytest.mark.parametrize("name", ["before", "serial"])
def test_a_fork_that_the_policy_leaves_out_runs_one_leg_after_the_other(log: list[str], name: str) -> None:
    """No event is recorded for it."""
    with multi_stream():
        forks_on(log, name).fork("mla_q_kv", lambda: log.append("left"), lambda: log.append("right"))
    assert log == ["left", "right"]


def test_eager_decode_is_serial_by_default(log: list[str]) -> None:
    """Without the thread's flag nothing forks, whatever the policy says."""
    assert not multi_stream_is_on()
    forks_on(log).fork("mla_q_kv", lambda: log.append("left"), lambda: log.append("right"))
    assert log == ["left", "right"]


def test_the_layer_can_close_its_own_gate(log: list[str]) -> None:
    """Fork 3 under an FP8 cache."""
    with multi_stream():
        forks_on(log).fork("mla_absorb_rope", lambda: log.append("left"), lambda: log.append("right"), allowed=False)
    assert log == ["left", "right"]


def test_without_a_stream_the_legs_run_in_order() -> None:
    """A CPU has no streams, so every policy is serial there."""
    assert side_stream(torch.device("cpu")) is None
    order: list[str] = []
    with multi_stream():
        Forks(policy("all"), None).fork("mla_q_kv", lambda: order.append("left"), lambda: order.append("right"))
    assert order == ["left", "right"]


def test_forks_are_serial_while_torch_compile_traces(log: list[str]) -> None:
    """A traced step must not hold events."""
    forks = forks_on(log)

    @torch.compile(backend="eager")
    def traced(x: torch.Tensor) -> torch.Tensor:
        left, right = forks.fork("mla_q_kv", lambda: x + 1, lambda: x * 2)
        return left + right

    with multi_stream():
        assert traced(torch.ones(2)).tolist() == [4.0, 4.0]
    assert log == []


def test_the_flag_is_restored_after_an_error() -> None:
    """A failed capture leaves eager decode serial."""

    def fail() -> None:
        with multi_stream():
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert not multi_stream_is_on()


def test_the_right_leg_may_be_issued_first(log: list[str]) -> None:
    """The same dependencies, the other order of issue: `leg_order: side`."""
    forks = forks_on(log)
    forks.side_first = True
    with multi_stream():
        forks.fork("mla_q_kv", lambda: log.append("left"), lambda: log.append("right"))
    assert log == ["main records main1", "side waits main1", "right", "side records side1", "left", "main waits side1"]
