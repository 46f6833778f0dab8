"""Makes the made-up campaigns of `campaigns.py` importable by the tests of this folder; finds the shared data."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

SHARED = HERE.parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The facts' data beside the checkout; tests that need it are skipped in a plain clone."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the golden data beside the checkout ({SHARED} is absent)")
    return SHARED
