"""`k3bench status` and `k3bench cancel`: how far a campaign is, from any shell, and how to end what runs.

In: a campaign folder and the ledgers of its jobs. Out: one row per allocation, in words. Nothing is changed by looking.
Out of scope: results (`k3bench show`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from k3bench.errors import BuildError, StoreError
from k3bench.measure.allocation import AllocationSpec, accepted_block, spec_of
from k3bench.records.ledger import Attempt
from k3bench.records.plan import Plan, PlannedObservation
from k3bench.store import CampaignFolder, read_record
from k3bench.submit import JOBS, cancel, live_jobs, look

WORDS = {"intended": "starting", "submitted": "submitted", "voided": "measured again"}


@dataclass(frozen=True)
class Row:
    """One allocation as a person wants to see it."""

    allocation: str
    rack: str
    builds: str
    blocks: str
    state: str
    job: str
    ends_by: str
    detail: str


def rows(plan_path: Path, *, jobs: Path = JOBS) -> list[Row]:
    """Every planned allocation, in the order of the plan."""
    plan = read_record(plan_path, Plan)
    return [_row(plan_path.parent, plan, o, a.id, jobs) for o in plan.observations for a in o.allocations]


def _row(root: Path, plan: Plan, planned: PlannedObservation, name: str, jobs: Path) -> Row:
    where, rack = f"{planned.id}/{name}", planned.rack
    try:
        spec = spec_of(CampaignFolder(root), plan, planned.id, name)
    except StoreError:
        return Row(where, rack, planned.pair, "-", "waiting", "", "", "its builds are not made yet")
    except BuildError as error:
        return Row(where, rack, planned.pair, "-", "failed", "", "", str(error))
    builds = _builds(spec)
    done = sum(accepted_block(spec, block) is not None for block in spec.blocks)
    blocks = f"{done}/{len(spec.blocks)}"
    attempt, words = look(spec.key, jobs=jobs)
    if done == len(spec.blocks) and (attempt is None or not attempt.live):
        return Row(where, rack, builds, blocks, "done", _job(attempt), "", _points(spec, root))
    if attempt is None:
        return Row(where, rack, builds, blocks, "waiting", "", "", "not submitted")
    state = _state(attempt, words)
    return Row(where, rack, builds, blocks, state, _job(attempt), _ends_by(attempt), words or attempt.reason)


def _builds(spec: AllocationSpec) -> str:
    """The pair, and what its arms were made from."""
    origins = dict.fromkeys(build.origin for build in spec.builds.values())
    rebuilt = " (rebuilt)" if spec.builds["before"].rebuild else ""
    return f"{spec.observation.pair}{rebuilt}: {' | '.join(origins)}"


def _state(attempt: Attempt, words: str) -> str:
    if not attempt.live:
        return WORDS.get(attempt.state, attempt.state)
    upper = words.upper()
    return next((s for s in ("pending", "running") if s.upper() in upper), WORDS[attempt.state])


def _job(attempt: Attempt | None) -> str:
    if attempt is None:
        return ""
    return attempt.job or (f"pid {attempt.process.pid}" if attempt.process else "")


def _ends_by(attempt: Attempt) -> str:
    """The latest end its time limit allows, by this host's clock; for a pending job, counted from its submission."""
    if not attempt.live or attempt.submitted_at is None:
        return ""
    begun = datetime.fromisoformat(attempt.submitted_at)
    return f"{begun + timedelta(minutes=attempt.time_limit_min):%H:%MZ}"


def _points(spec: AllocationSpec, root: Path) -> str:
    summary = CampaignFolder(root).allocation(spec.observation.id, spec.allocation)
    return "" if summary.exists() else "its summary is not written yet"


def table(found: list[Row]) -> str:
    """Rows as aligned text, with a line of sums."""
    head = ("allocation", "rack", "builds", "blocks", "state", "job", "ends by", "detail")
    cells = [head, *((*astuple(row)[:-1], _one_line(row.detail)) for row in found)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    states = [r.state for r in found]
    sums = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", f"{len(found)} allocations: {sums}"])


def _one_line(text: str) -> str:
    return " ".join(text.split())[:100]


def cancel_all(plan_path: Path, *, jobs: Path = JOBS) -> list[str]:
    """End every live job of the campaign; none is submitted again until the campaign is started again."""
    named = _allocations(plan_path)
    running = live_jobs(plan_path.parent, jobs=jobs)
    ended = []
    for key, what in {**running, **{key: name for key, name in named.items() if key in running}}.items():
        if (attempt := cancel(key, jobs=jobs)) is not None:
            ended.append(f"{what} ({_job(attempt)})")
    return ended


def _allocations(plan_path: Path) -> dict[str, str]:
    """Key -> name of every allocation whose builds are made."""
    plan, found = read_record(plan_path, Plan), {}
    for observation in plan.observations:
        for allocation in observation.allocations:
            try:
                spec = spec_of(CampaignFolder(plan_path.parent), plan, observation.id, allocation.id)
            except (StoreError, BuildError):
                continue
            found[spec.key] = f"{observation.id}/{allocation.id}"
    return found


def beside(plan_path: Path, *, jobs: Path = JOBS) -> list[str]:
    """Live jobs of the campaign that are no allocations: builds, probes of sameness, profiled runs."""
    timed = _allocations(plan_path)
    lines = []
    for key, what in live_jobs(plan_path.parent, jobs=jobs).items():
        attempt, words = look(key, jobs=jobs)
        if key not in timed and attempt is not None:
            lines.append(f"beside them: {what}, {_state(attempt, words)}, {_one_line(words)}")
    return lines
