"""A progress bar for work that takes more than five seconds. In: amounts done. Out: a line on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

_SILENT_S = 5.0


class Progress:
    """Silent for five seconds, then a bar; silent always where nobody looks."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._bar, self._task = title, total, None, None
        self._show_at = time.monotonic() + _SILENT_S

    _bar: Any
    _task: Any

    def advance_to(self, done: int) -> None:
        """So much is done."""
        if self._bar is None and (time.monotonic() < self._show_at or not sys.stderr.isatty()):
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        self._bar.update(self._task, completed=done)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
