"""The store: atomic, durable, never overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from k3bench.errors import RecordError, StoreError
from k3bench.plan import make_plan
from k3bench.recipe import load_recipe
from k3bench.records.plan import Plan
from k3bench.store import gzip_bytes, read_record, write_atomic, write_once, write_record

PLAN = make_plan(load_recipe(Path(__file__).parents[2] / "recipes/simulated.yaml"))


def test_a_record_read_back_is_the_record_and_its_digest_is_the_file_s(tmp_path: Path) -> None:
    """Canonical bytes make the digest of the record the digest of the file."""
    import hashlib

    digest = write_record(tmp_path / "deep/plan.json", PLAN)
    assert read_record(tmp_path / "deep/plan.json", Plan) == PLAN
    assert hashlib.sha256((tmp_path / "deep/plan.json").read_bytes()).hexdigest() == digest


def test_a_failed_write_leaves_the_old_file_and_no_fragment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up between bytes costs nothing that was there."""
    path = tmp_path / "a.json"
    write_atomic(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_result_is_never_overwritten_by_other_content(tmp_path: Path) -> None:
    """The same bytes again are fine; other bytes under the same name are refused."""
    path = tmp_path / "plan.json"
    write_once(path, PLAN)
    write_once(path, PLAN)
    with pytest.raises(StoreError, match="never overwritten"):
        write_once(path, PLAN.model_copy(update={"profiles": (), "observations": ()}))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b'{"schema":"k3bench.plan/2"}', PLAN.to_bytes().replace(b'"seed":1', b'"seed":NaN')],
)
def test_a_file_that_is_not_the_record_is_refused_with_its_path(tmp_path: Path, data: bytes) -> None:
    """Truncated, foreign, or of another version: one clear error."""
    (tmp_path / "plan.json").write_bytes(data)
    with pytest.raises(RecordError, match=r"plan\.json"):
        read_record(tmp_path / "plan.json", Plan)


def test_a_file_that_is_not_there_is_told_so_with_its_path(tmp_path: Path) -> None:
    """Most often a slip in a path somebody typed."""
    with pytest.raises(StoreError, match="no such file") as refused:
        read_record(tmp_path / "plan.json", Plan)
    assert refused.value.where == str(tmp_path / "plan.json")
    assert "check the path" in refused.value.fix
    with pytest.raises(StoreError, match="cannot read: Is a directory"):
        read_record(tmp_path, Plan)


def test_compressed_bytes_do_not_depend_on_the_clock() -> None:
    """Raw files have stable digests."""
    assert gzip_bytes(b"x" * 100) == gzip_bytes(b"x" * 100)
