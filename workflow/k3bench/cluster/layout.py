"""How the loopback cluster looks, as Slurm's own configuration files.

In: racks, sizes, timings, ports. Out: the text of slurm.conf and its companions. Out of scope: starting anything.
Each rack is a node feature (`-C d157`) and a leaf switch (`--switches=1`). A node claims the size of a GB300 tray,
which `config_overrides` allows on any machine; its GPUs are device files that lead nowhere.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from k3bench.errors import K3Error
from k3bench.records.base import NAME_PATTERN

PARTITION = "gb300"
DATABASE = "k3_slurm_acct"


def default_folder() -> Path:
    """One cluster a user."""
    return Path(tempfile.gettempdir()) / f"k3-cluster-{os.getuid()}"


@dataclass(frozen=True)
class Layout:
    """Sizes, and the timings that make faults show within seconds instead of minutes."""

    racks: tuple[str, ...] = ("d157", "d127")
    nodes_per_rack: int = 4
    gpus_per_node: int = 4
    accounting: bool = False
    first_job_id: int | None = None
    #: how long the controller remembers an ended job
    min_job_age_s: int = 300
    #: how long a silent node counts as alive
    node_timeout_s: int = 20
    #: how long a node believes the controller's word: nodes with another clock need longer, a requeued job waits for it
    credential_s: int = 5

    def __post_init__(self) -> None:
        names = [rack for rack in self.racks if not re.fullmatch(NAME_PATTERN.strip("^$"), rack)]
        if names or not self.racks or len(set(self.racks)) != len(self.racks):
            raise K3Error(
                f"racks {', '.join(self.racks)!r} are not distinct names", fix="for example --racks d157,d127"
            )
        if not 1 <= self.nodes_per_rack <= 64 or not 0 <= self.gpus_per_node <= 16:
            raise K3Error("sizes out of range", fix="1 to 64 nodes a rack, 0 to 16 GPUs a node")

    @property
    def nodes(self) -> tuple[str, ...]:
        """All node names, rack by rack."""
        return tuple(f"{rack}-n{n}" for rack in self.racks for n in range(1, self.nodes_per_rack + 1))

    @property
    def ports_needed(self) -> int:
        """Controller, database daemon, database, then one for each node."""
        return 3 + len(self.nodes)


def slurm_conf(layout: Layout, folder: Path, host: str, ports: list[int], first_job_id: int) -> str:
    """The cluster's main file."""
    controller, dbd, _, *node_ports = ports
    node = "CPUs=144 Sockets=2 CoresPerSocket=72 ThreadsPerCore=1 RealMemory=20000"
    gres = f" Gres=gpu:gb300:{layout.gpus_per_node}" if layout.gpus_per_node else ""
    lines = [
        "ClusterName=k3",
        f"FirstJobId={first_job_id}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={controller}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folder}/run/munge.sock,cred_expire={layout.credential_s}",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        f"TmpFS={folder}/tmp/%n",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=sched_interval=2,bf_interval=5,sched_min_interval=0",
        "TopologyPlugin=topology/tree",
        "TreeWidth=65533",
        f"MinJobAge={layout.min_job_age_s}",
        "KillWait=5",
        "InactiveLimit=0",
        f"SlurmdTimeout={layout.node_timeout_s}",
        "SlurmctldTimeout=20",
        "BatchStartTimeout=10",
        "MessageTimeout=10",
        *(["GresTypes=gpu"] if gres else []),
        *_accounting(layout, folder, dbd),
    ]
    for rack in layout.racks:
        for name in (n for n in layout.nodes if n.rpartition("-n")[0] == rack):
            where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports.pop(0)}"
            lines.append(f"NodeName={name} {where} {node}{gres} Feature={rack},{PARTITION}")
    limits = "MaxTime=24:00:00 DefaultTime=01:00:00 DefMemPerCPU=10"
    lines.append(f"PartitionName={PARTITION} Nodes=ALL Default=YES {limits} State=UP OverSubscribe=NO")
    return "\n".join(lines) + "\n"


def _accounting(layout: Layout, folder: Path, dbd_port: int) -> list[str]:
    if not layout.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={dbd_port}",
        f"AccountingStoragePass={folder}/run/munge.sock",
        *(["AccountingStorageTRES=gres/gpu"] if layout.gpus_per_node else []),
    ]


def slurmdbd_conf(folder: Path, ports: list[int]) -> str:
    """The accounting daemon's file."""
    _, dbd, database, *_ = ports
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/run/munge.sock,cred_expire=5",
        "DbdHost=localhost",
        "DbdAddr=127.0.0.1",
        f"DbdPort={dbd}",
        "SlurmUser=root",
        f"PidFile={folder}/run/slurmdbd.pid",
        f"LogFile={folder}/log/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        "StorageHost=127.0.0.1",
        f"StoragePort={database}",
        "StorageUser=slurm",
        "StoragePass=slurm",
        f"StorageLoc={DATABASE}",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(layout: Layout, folder: Path) -> str:
    """GPUs as device files, so that CUDA_VISIBLE_DEVICES is set in steps."""
    if not layout.gpus_per_node:
        return ""
    files = f"File={folder}/dev/gpu[0-{layout.gpus_per_node - 1}]"
    return "".join(
        f"NodeName={rack}-n[1-{layout.nodes_per_rack}] Name=gpu Type=gb300 {files}\n" for rack in layout.racks
    )


def topology_conf(layout: Layout) -> str:
    """One leaf switch a rack under one spine."""
    leaves = "".join(f"SwitchName={rack} Nodes={rack}-n[1-{layout.nodes_per_rack}]\n" for rack in layout.racks)
    return f"{leaves}SwitchName=spine Switches={','.join(layout.racks)}\n"
