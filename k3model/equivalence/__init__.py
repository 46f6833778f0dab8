"""Evidence that overlapping changes no bit: a preset and a device in, one row per probe out.

`suite.py` lists and runs the probes; `bits.py` compares; `legs.py` makes legs late, swaps them or breaks a fork;
`forks.py`, `greedy.py` and `controls.py` are the three kinds of probe. Out of scope: records and files.
"""

from k3model.equivalence.rows import Row
from k3model.equivalence.suite import Subject, probe_rows

__all__ = ["Row", "Subject", "probe_rows"]
