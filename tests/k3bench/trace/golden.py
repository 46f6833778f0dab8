"""Where the recorded traces lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
H200 = ROOT / "tests" / "golden" / "trace-h200"
SHARED = ROOT.parent / "shared" / "data" / "traces"
