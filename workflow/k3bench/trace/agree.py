"""Do two records of the same program agree? In: two residency records. Out: rows in percent of busy time.

Out of scope: what made them; equality to the nanosecond (`against.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from k3bench.errors import TraceError
from k3bench.records.residency import UNATTRIBUTED, Arm, FamilySummary, Residency

#: Two collectors cannot run at once, so they see two runs; more than this is not run-to-run difference.
WITHIN_PCT_OF_BUSY = 3.0


@dataclass(frozen=True)
class Agreement:
    """One family of one arm in both records."""

    arm: Arm | None
    family: str
    first_ms: float
    second_ms: float
    busy_ms: float

    @property
    def difference_pct_of_busy(self) -> float:
        """Residency of the second minus the first, as a share of the first's busy time."""
        return 100.0 * (self.second_ms - self.first_ms) / self.busy_ms if self.busy_ms else 0.0


def agreement(first: Residency, second: Residency) -> list[Agreement]:
    """Row by row; a family that one record lacks is an error, not a row less."""
    one, two = _rows(first), _rows(second)
    if one.keys() != two.keys() or not one:
        missing = ", ".join(f"{arm or 'trace'} {family}" for arm, family in sorted(one.keys() ^ two.keys(), key=str))
        raise TraceError(
            f"the records do not hold the same families: {missing or 'none at all'}", fix="make both with --families"
        )
    return [
        Agreement(
            arm=key[0],
            family=key[1],
            first_ms=one[key].two_stream_residency_ms_per_step,
            second_ms=two[key].two_stream_residency_ms_per_step,
            busy_ms=one[key].busy_ms_per_step,
        )
        for key in sorted(one, key=str)
    ]


def _rows(record: Residency) -> dict[tuple[Arm | None, str], FamilySummary]:
    return {(row.arm, row.family): row for row in record.summaries if row.family != UNATTRIBUTED}
