"""Makes `writers.py` importable by the tests of this folder; finds the shared result files."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

RESULTS = HERE.parents[3] / "shared" / "data" / "results"


@pytest.fixture(scope="session")
def results() -> Path:
    """Result files of the real tools beside the checkout; tests that need them are skipped in a plain clone."""
    if not RESULTS.is_dir():
        pytest.skip(f"needs the result files beside the checkout ({RESULTS} is absent)")
    return RESULTS
