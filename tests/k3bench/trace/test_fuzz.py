"""Broken trace files: a value or one clear error, never a traceback, a hang or half a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3bench.records.residency import Residency
from k3bench.trace.command import main
from tests.k3bench.trace.golden import H200
from tests.k3bench.trace.mutate import mutated

SOURCES = [
    "twostream_node_nsys2025.3.sqlite.xz",
    "twostream_node_nsys2023.4.sqlite.xz",
    "torch211_kineto_replay.json.gz",
    "torch211_cupti_python.json.gz",
    "torch_node_nsys2025.3.sqlite.xz",
]
PER_SOURCE = 100


@pytest.mark.parametrize("source", SOURCES)
def test_a_broken_file_gives_a_value_or_one_clear_error(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred broken copies of each recorded trace; each ends with a valid record or a refusal with where and fix."""
    for seed in range(PER_SOURCE):
        folder = tmp_path / str(seed)
        folder.mkdir()
        broken = mutated(H200 / source, folder, seed)
        before = sorted(p.name for p in folder.iterdir())
        out = folder / "residency.json"
        code = main([str(broken), "--out", str(out), "--quiet"])
        said = capsys.readouterr().err
        if code == 0:
            Residency.from_bytes(out.read_bytes())
            assert said == ""
        else:
            assert code == 2, f"seed {seed}"
            assert "where:" in said, f"seed {seed}: {said}"
            assert "fix:" in said, f"seed {seed}: {said}"
            assert len(said) < 1500, f"seed {seed}"
            assert sorted(p.name for p in folder.iterdir()) == before, f"seed {seed}: something was left behind"
