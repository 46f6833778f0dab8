"""What one run in a foreign file says, in our words: facts, metrics, what is null and why, and whether it is valid.

Made by the readers; shown by `show.py`, kept by `accumulate.py`. Out of scope: reading, judging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from k3bench.metrics import HEADLINE
from k3bench.records.measurement import Check


@dataclass(frozen=True)
class Facts:
    """What a file says about its run beside the numbers. None where it does not say."""

    model: str | None = None
    level: int | None = None
    isl_tokens: int | None = None
    osl_tokens: int | None = None
    stream_interval: int | None = None
    token_source: str = "unknown"
    started_s: float | None = None
    rack: str | None = None
    build: str | None = None
    arm: str | None = None
    simulated: bool = False
    planned: int | None = None
    completed: int | None = None
    failed: int | None = None


@dataclass(frozen=True)
class Reading:
    """One run of a foreign file. A metric is in `metrics` or in `missing`, never in both, never in neither."""

    format: str
    tool: str
    where: str
    facts: Facts
    metrics: Mapping[str, float]
    missing: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """True when every check passed and the headline is there."""
        return HEADLINE in self.metrics and all(c.ok for c in self.checks)

    @property
    def flags(self) -> tuple[str, ...]:
        """Failed checks first, then remarks."""
        return (*(f"{c.name}: {c.detail}" for c in self.checks if not c.ok), *self.remarks)

    def with_checks(self, checks: Iterable[Check]) -> Reading:
        """A copy with further checks."""
        return replace(self, checks=(*self.checks, *checks))

    def remarked(self, *remarks: str | None) -> Reading:
        """A copy with further remarks; None is none."""
        return replace(self, remarks=(*self.remarks, *(r for r in remarks if r)))

    def usable(self) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics and missing as a record may hold them: an invalid run has no numbers, only the reason."""
        broken = [c for c in self.checks if not c.ok]
        if not broken:
            return dict(self.metrics), dict(self.missing)
        why = "invalid run: " + "; ".join(f"{c.name}: {c.detail}" for c in broken)[:400]
        return {}, {**self.missing, **dict.fromkeys(self.metrics, why)}


def check(name: str, ok: bool, detail: str) -> Check:
    """One criterion and how it went; the detail only where it failed."""
    return Check(name=name, ok=ok, detail="" if ok else detail)
