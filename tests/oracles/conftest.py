"""Oracles are implementations of K3's parts that we did not write. They need environments of their own: `./k3 oracles`.

Every comparison prints its largest absolute difference beside its limit, so that a green run shows how green it is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from k3model.capture import Decode
from k3model.decode import K3
from k3model.kda import KDA
from k3model.policy import policy
from k3model.streams import Forks

FIGURES = pytest.StashKey[list[str]]()
Agree = Callable[[str, torch.Tensor, torch.Tensor, float], None]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def agree(request: pytest.FixtureRequest) -> Agree:
    """Assert that the largest absolute difference is within a limit, and print both."""

    def check(what: str, ours: torch.Tensor, theirs: torch.Tensor, limit: float) -> None:
        assert ours.shape == theirs.shape
        difference = float((ours.double() - theirs.double()).abs().max())
        size = float(theirs.abs().max())
        line = f"{what}: max abs difference {difference:.1e}, limit {limit:.1e}, values up to {size:.2f}"
        request.config.stash.setdefault(FIGURES, []).append(line)
        assert size > 0
        assert difference <= limit, line

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The figures, after the tests."""
    for line in config.stash.get(FIGURES, []):
        terminalreporter.write_line(f"oracle: {line}")


@pytest.fixture
def stepped() -> Callable[[K3, torch.Tensor], torch.Tensor]:
    """Logits [B, T, vocab] of a decode that is fed tokens [B, T], one a step."""

    def run(model: K3, tokens: torch.Tensor) -> torch.Tensor:
        session = Decode(model, policy("serial"), len(tokens))
        session.clear()
        logits = []
        for column in tokens.T:
            session.tokens.copy_(column)
            session.step()
            logits.append(session.logits.clone())
        return torch.stack(logits, dim=1)

    return run


@pytest.fixture
def kda_stepped() -> Callable[[K3, KDA, torch.Tensor], torch.Tensor]:
    """One KDA layer alone, fed rows [B, T, hidden] one token a step."""

    def run(model: K3, layer: KDA, x: torch.Tensor) -> torch.Tensor:
        caches, forks = model.caches, Forks(policy("serial"), None)
        caches.clear(len(x))
        rows = caches.rows(len(x)).stepping()
        with torch.no_grad():
            return torch.stack([layer.step(x[:, t], caches, rows, forks) for t in range(x.shape[1])], dim=1)

    return run
