"""The ranks of a distributed model as processes: started, counted, told what to do, and ended together.

The process that leads them is no rank, so it never waits inside a collective: a rank that dies or keeps silent ends the
others and the leader's work with one clear error, within the limits of `Limits`.

    crew.py     the leader: start, count, ask all, end all
    launch.py   local processes, or the tasks of one srun step
    link.py     the authenticated line between leader and rank: one JSON object a message
    program.py  what a rank runs: `python -m k3bench.ranks.program`
    member.py   what every member can do: meet the others, join the process group (torch and k3model from here on)

Out of scope: what the ranks compute (their members live in `measure/engines/` and `verify_ranked.py`).
"""

from k3bench.ranks.crew import Crew, Limits, Wanted
from k3bench.ranks.launch import in_slurm_job

__all__ = ["Crew", "Limits", "Wanted", "in_slurm_job"]
