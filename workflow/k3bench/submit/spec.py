"""How a job is to be run: executor, size, limits, and everything a site wants to hear.

In: plain values. Out: a validated `JobSpec`; nothing in it can end an `#SBATCH` line early. Out of scope: submitting.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from k3bench.errors import RankError
from k3bench.records.base import Model
from k3bench.records.ledger import ExecutorName
from k3bench.records.recipe import Resources

#: One line of printable text. A line break would leave the comment line of a batch script and be run by its shell.
SlurmText = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,1000}$")]
SlurmOption = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f-\x9f\u2028\u2029]*)?$")]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


#: The ledgers of a checkout, beside results/, so that losing one leaves the other.
JOBS = Path(".k3/jobs")


class JobSpec(Model):
    """Where and how wide. `extra` holds whole sbatch options (`--gres=gpu:4`); they win over the fields above."""

    executor: ExecutorName = "local"
    time_limit_min: Count = 60
    attempts: Count = 3
    nodes: Count = 1
    tasks_per_node: Count = 1
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    cpus_per_task: Count | None = None
    account: SlurmText | None = None
    partition: SlurmText | None = None
    qos: SlurmText | None = None
    reservation: SlurmText | None = None
    constraint: SlurmText | None = None
    nodelist: SlurmText | None = None
    switches: Count | None = 1
    exclusive: bool = True
    extra: tuple[SlurmOption, ...] = ()
    #: the time limit is announced to the worker this long before it comes
    warn_before_s: Count = 300
    #: a job that does not start within this is withdrawn (None: wait for as long as it takes)
    queue_limit_min: Annotated[float, Field(gt=0)] | None = None
    #: an ended job without a result counts as lost after this (None: 20 s on Slurm, 1 s elsewhere)
    grace_s: Seconds | None = None
    #: an ended job whose worker still holds the lock is waited for this long (None: its time limit)
    overlap_limit_s: Seconds | None = None
    #: the longest a job's state goes unasked (None: 10 s on Slurm, 0.2 s elsewhere)
    ask_every_s: Annotated[float, Field(gt=0)] | None = None
    python: SlurmText = sys.executable

    @property
    def warn_seconds(self) -> int:
        """At most half the time limit: an announcement longer than the limit would come at once, in every attempt."""
        return min(self.warn_before_s, 30 * self.time_limit_min)

    @property
    def grace_seconds(self) -> float:
        """How long a shared file system may take to show a result."""
        return self.grace_s if self.grace_s is not None else (20.0 if self.executor == "slurm" else 1.0)

    @property
    def overlap_seconds(self) -> float:
        """How long a worker that outlived its job may go on."""
        return self.overlap_limit_s if self.overlap_limit_s is not None else 60.0 * self.time_limit_min

    @property
    def ask_seconds(self) -> float:
        """How often the executor is asked at most."""
        return self.ask_every_s or (10.0 if self.executor == "slurm" else 0.2)

    @property
    def look_seconds(self) -> float:
        """How often the result file is looked for at most."""
        return min(3.0, self.ask_seconds)

    def sbatch_options(self) -> dict[str, str | int | bool]:
        """Options for submitit's `additional_parameters`: a name without dashes and a value, or True for a flag."""
        options: dict[str, str | int | bool | None] = {
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks_per_node,
            "gpus-per-node": self.gpus_per_node or None,
            "cpus-per-task": self.cpus_per_task,
            "account": self.account,
            "partition": self.partition,
            "qos": self.qos,
            "reservation": self.reservation,
            "constraint": self.constraint,
            "nodelist": self.nodelist,
            "switches": self.switches,
            "exclusive": self.exclusive or None,
            "no-requeue": True,
            "signal": f"B:USR2@{self.warn_seconds}",
        }
        given = {name: value for name, value in options.items() if value is not None}
        return given | {name: value or True for name, _, value in (o[2:].partition("=") for o in self.extra)}

    def sbatch_line(self, what: str) -> str:
        """The submission as a command line, for people to read: submitit writes the options into a script."""
        options = [
            f"--{name}" if value is True else f"--{name}={value}" for name, value in self.sbatch_options().items()
        ]
        return shlex.join(["sbatch", f"--time={self.time_limit_min}", *options, f"k3bench-worker:{what}"])


def job_of(resources: Resources, rack: str, executor: ExecutorName, *, ranks: int = 1) -> JobSpec:
    """A recipe's resources as a job: a rack is a constraint, and the job keeps its nodes to itself.

    A segment (one NVLink domain, topology/block) says more than one switch, and stands in its place. A distributed
    model has one task a rank. Raises `RankError` where its nodes cannot be had without Slurm.
    """
    if ranks > 1 and resources.nodes > 1 and executor != "slurm":
        raise RankError(
            f"{ranks} ranks on {resources.nodes} nodes cannot run on this machine alone",
            where="resources.nodes",
            fix="./k3 run --profile slurm, or resources.nodes: 1",
        )
    segment = resources.segment if executor == "slurm" else None
    return JobSpec(
        executor=executor,
        time_limit_min=resources.minutes,
        nodes=resources.nodes,
        tasks_per_node=ranks // resources.nodes if ranks > 1 else 1,
        gpus_per_node=resources.gpus_per_node,
        constraint=rack if executor == "slurm" else None,
        switches=None if segment else 1,
        extra=(f"--segment={segment}",) if segment else (),
        queue_limit_min=resources.queue_minutes,
    )
