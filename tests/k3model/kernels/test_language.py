"""What every launch is told, without a GPU or Triton."""

from __future__ import annotations

from k3model.kernels import language
from k3model.kernels.language import launch


def test_the_next_kernel_is_called_late_but_for_one_row() -> None:
    """A kernel that fills the GPU says how many rows it serves; the others keep the default."""
    assert launch(False) == launch(False, 8) == {"PDL": 0}
    assert launch(True) == launch(True, 1) == {"PDL": 2, "launch_pdl": True}
    assert launch(True, 2) == launch(True, 8) == {"PDL": 1, "launch_pdl": True}


def test_kernels_and_launches_mean_the_same_by_a_number() -> None:
    """The kernels compare with constants of Triton's own kind, where it is installed."""
    if language.found:
        assert (language.LATE.value, language.EARLY.value) == (1, 2)
    else:
        assert language.LATE is language.EARLY is None
