"""The command line."""

from __future__ import annotations

import pytest

from k3model.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, output, errors."""
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_nano_prints_the_same_tokens_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen of them."""
    before = run(capsys, "nano", "--device", "cpu", "--tokens", "16")
    after = run(capsys, "nano", "--device", "cpu", "--tokens", "16", "--policy", "after")
    assert before == after
    assert len(before[1].split()) == 16


def test_a_batch_prints_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """Row by row."""
    status, out, _ = run(capsys, "nano", "--tokens", "3", "--batch", "4", "--set", "variant=A")
    assert status == 0
    assert [len(line.split()) for line in out.splitlines()] == [3, 3, 3, 3]


def test_bytes_per_step_are_printed_per_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """The four figures of rank-93."""
    _, out, _ = run(capsys, "rank-93", "--bytes", "--context", "8192")
    assert [line.split(":")[1].split()[0] for line in out.splitlines()] == ["19.6", "21.3", "24.2", "28.4"]


def test_count_ends_with_one_line_of_totals(capsys: pytest.CaptureFixture[str]) -> None:
    """Total and active."""
    _, out, _ = run(capsys, "nano", "--count")
    assert out.splitlines()[-1].startswith("total parameters ")
    assert "active per token" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["huge"], "unknown preset"),
        (["nano", "--policy", "later"], "unknown policy"),
        (["nano", "--set", "tp_size=3"], "does not divide"),
        (["nano", "--set", "colour=red"], "unknown option"),
        (["nano", "--device", "tpu9"], "unknown device"),
        (["nano", "--context", "8", "--tokens", "100"], "past the cache"),
    ],
)
def test_every_refusal_is_one_clear_error(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Exit status 2, what is wrong, how to fix it, no traceback, no output."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert "fix:" in err
    assert "Traceback" not in err
