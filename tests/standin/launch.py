"""trtllm-llmapi-launch, stood in for: joins every rank of a Slurm step; rank 0 then runs the command it was given.

As the real one does, it takes its arguments apart at spaces, hides Slurm and MPI from the command, and ends with it.
Standard library only: it is started once a rank.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOIN_LIMIT_S = 60.0
#: What the real launcher removes from the command's environment.
HIDDEN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "UCX_", "I_MPI_", "HYDRA_", "KMP_", "MPICH_", "MV2_", "CRAY_")


def main() -> int:
    """Exit status of the command on rank 0; 0 on the others when rank 0 let them go, 1 when it vanished."""
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    meeting = Path(tempfile.gettempdir()) / f"k3-standin-{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
    where = f"{os.environ.get('SLURMD_NODENAME')} {os.environ['SLURM_LOCALID']}"
    if rank:
        return follow(meeting, f"{rank} {where}")
    return lead(meeting, world, f"0 {where}", sys.argv[1:])


def follow(meeting: Path, me: str) -> int:
    """Join, then wait for the end."""
    end = time.monotonic() + JOIN_LIMIT_S
    while not meeting.exists():
        if time.monotonic() > end:
            print(f"rank {me}: rank 0 never came", file=sys.stderr)
            return 1
        time.sleep(0.1)
    with socket.create_connection(("127.0.0.1", int(meeting.read_text()))) as leader:
        leader.sendall(f"{me}\n".encode())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return 0 if leader.recv(16).startswith(b"over") else 1


def lead(meeting: Path, world: int, me: str, words: list[str]) -> int:
    """Collect every rank, check that they fill the nodes, run the command."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(JOIN_LIMIT_S)
        temporary = meeting.with_suffix(".new")
        temporary.write_text(str(door.getsockname()[1]))
        temporary.rename(meeting)
        try:
            ranks = [door.accept()[0] for _ in range(world - 1)]
        finally:
            meeting.unlink()
    told = [me, *(rank.makefile().readline().strip() for rank in ranks)]
    check(told, world)
    print(f"ranks joined: {len(told)} on {len({line.split()[1] for line in told})} nodes", flush=True)
    code = run(" ".join(words).split())
    for rank in ranks:
        rank.sendall(b"over")
    return code


def check(told: list[str], world: int) -> None:
    """Every rank once, as many on every node."""
    numbers = sorted(int(line.split()[0]) for line in told)
    nodes = [line.split()[1] for line in told]
    assert numbers == list(range(world)), numbers
    assert len(set(nodes)) == int(os.environ["SLURM_STEP_NUM_NODES"]), nodes
    assert len({nodes.count(node) for node in nodes}) == 1, nodes


def run(words: list[str]) -> int:
    """The command, without Slurm and MPI; a signal to this rank ends it."""
    visible = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    visible["TLLM_SPAWN_PROXY_PROCESS"] = "1"
    child = subprocess.Popen(words, env=visible)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: child.terminate())
    return child.wait()


if __name__ == "__main__":
    raise SystemExit(main())
