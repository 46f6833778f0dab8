"""One writer at a time, on one machine: a file lock that a dead process cannot keep. In: a path. Out: the lock held."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k3bench.errors import TrackingError

WAIT_S = 300.0


@contextmanager
def single_writer(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock; wait for another writer at most `wait_s`. Raises `TrackingError` naming the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise TrackingError(
            f"cannot write beside the MLflow database: {error.strerror}",
            where=str(path.parent),
            fix="make the folder writable, or name another database with MLFLOW_TRACKING_URI",
        ) from None
    try:
        _wait(handle, path, wait_s)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, path: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise TrackingError(
                    f"another process has been writing to MLflow for more than {wait_s:.0f} s",
                    where=str(path),
                    fix="wait for it, or end it; then run the same command again",
                ) from None
            time.sleep(0.1)
