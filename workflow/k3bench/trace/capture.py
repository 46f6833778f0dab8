"""What the capture said, from a capture record or a Kineto trace of the capture. In: a path. Out: `CaptureRecord`.

Out of scope: matching it with replays (`attribution.py`, `template.py`).
"""

from __future__ import annotations

from pathlib import Path

from k3bench.errors import TraceError
from k3bench.trace.families import CaptureRecord, capture_record
from k3bench.trace.readers import files, json_traces
from k3bench.trace.template import record_of_calls


def read_capture(path: Path) -> CaptureRecord:
    """By content: a record has a `schema`, a trace has `traceEvents`."""
    if not path.is_file():
        raise TraceError(
            "there is no such capture file", where=str(path), fix="give the file the engine wrote at capture"
        )
    content, _, _ = files.plain_bytes(path)
    if b'"k3bench.capture/' in content[:4096] or b'"traceEvents"' not in content:
        return capture_record(content, str(path))
    calls, ranges, held = json_traces.capture_calls(content, str(path))
    return record_of_calls(calls, ranges, held)
