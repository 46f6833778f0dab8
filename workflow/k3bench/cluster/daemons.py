"""Starts and stops the daemons of the loopback cluster, each known by pid and start time.

In: a folder and a layout. Out: a cluster that answers, or one error with the end of the log. Out of scope: jobs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from k3bench.cluster.layout import DATABASE, Layout, gres_conf, slurm_conf, slurmdbd_conf, topology_conf
from k3bench.errors import K3Error
from k3bench.records.ledger import Process
from k3bench.submit import process

Say = Callable[[str], None]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb", "mariadb-install-db")
PACKAGES = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
ACCOUNTING_PACKAGES = "slurmdbd mariadb-server-core mariadb-client-core"
#: Debian keeps daemons here, and not every user's PATH has it.
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def missing_packages(*, accounting: bool = False) -> str:
    """Why a loopback cluster cannot run on this machine; empty when it can."""
    if os.geteuid() != 0:
        return "a loopback Slurm needs root (a container will do)"
    wanted = [*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ())]
    lacking = [name for name in wanted if _program(name) is None]
    if not lacking:
        return ""
    packages = PACKAGES + (f" {ACCOUNTING_PACKAGES}" if accounting else "")
    return f"not installed: {', '.join(lacking)} (apt-get install --no-install-recommends {packages})"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


class Cluster:
    """One loopback cluster in one folder."""

    def __init__(self, folder: Path, *, tied: bool = False) -> None:
        """`tied` daemons end with the process that started them, however it ends: a test leaves nothing behind."""
        self.folder, self.tied = folder.absolute(), tied

    @property
    def _register(self) -> Path:
        return self.folder / "processes.json"

    def environment(self) -> dict[str, str]:
        """What Slurm's commands, and daemons restarted by hand, need."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def processes(self) -> dict[str, Process]:
        """Every daemon that was started and still lives, by name."""
        if not self._register.exists():
            return {}
        known = {name: Process(**fields) for name, fields in json.loads(self._register.read_text()).items()}
        return {name: found for name, found in known.items() if process.lives(found)}

    def is_up(self) -> bool:
        """Whether the controller and at least one node live."""
        names = self.processes().keys()
        return "slurmctld" in names and any(name.startswith("slurmd-") for name in names)

    def up(self, layout: Layout, *, say: Say = lambda _: None) -> None:
        """Write the files, start everything, wait until all nodes are idle."""
        if reason := missing_packages(accounting=layout.accounting):
            raise K3Error(f"no loopback cluster here: {reason}")
        if self.is_up():
            raise K3Error(
                "a loopback cluster runs here already",
                where=str(self.folder),
                fix="./k3 cluster down, or --dir for a second",
            )
        self._prepare(layout)
        self.start("munged")
        if layout.accounting:
            say("starting the database and slurmdbd")
            self._start_accounting()
        self.start("slurmctld")
        self._wait(30, "the controller", "scontrol", "ping")
        for node in layout.nodes:
            self.start(f"slurmd-{node}")
        self.wait_idle(len(layout.nodes))
        racks = f"racks {', '.join(layout.racks)}, {layout.nodes_per_rack} nodes each"
        say(f"up: {racks} with {layout.gpus_per_node} pretended GPUs, in {self.folder}")

    def down(self, *, say: Say = lambda _: None) -> None:
        """Cancel the jobs, or their processes would outlive the daemons; then end exactly what `up` started."""
        if "slurmctld" in self.processes() and self.call("scontrol", "ping", check=False)[0] == 0:
            self.call("scancel", "--user", str(os.getuid()), check=False)
            end = time.monotonic() + 15
            while self.call("squeue", "-h", check=False)[1].strip() and time.monotonic() < end:
                time.sleep(0.2)
        running = self.processes()
        for group in ("slurmd-", "slurmctld", "slurmdbd", "mariadbd", "munged"):
            _end([p for name, p in running.items() if name.startswith(group)])
        self._register.unlink(missing_ok=True)
        say(f"down: {len(running)} daemons ended; {self.folder} keeps their logs")

    def start(self, name: str, *prefix: str) -> Process:
        """Start one daemon by its name (`slurmctld`, `slurmd-<node>`, ...), also after it was killed."""
        log = (self.folder / "log" / f"{name}.out").open("ab")
        command = [*prefix, *self._command(name)]
        configuration = "slurmdbd.conf" if name == "slurmdbd" else "slurm.conf"
        environment = {**os.environ, "SLURM_CONF": str(self.folder / configuration)}
        with log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent if self.tied else None,
            )
        _children.append(child)
        found = process.identify(child.pid)
        if found is None:
            raise K3Error(f"{name} ended at once", where=log.name, fix="read the log")
        known = self.processes() | {name: found}
        temporary = self._register.with_suffix(".new")
        temporary.write_text(json.dumps({n: p.model_dump() for n, p in known.items()}, indent=1))
        temporary.replace(self._register)
        return found

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End one of our daemons in a chosen way, for a test's sake."""
        found = self.processes().get(name)
        if found is not None:
            os.kill(found.pid, number)
            _end([found], number=None)

    def wait_idle(self, nodes: int) -> None:
        """Wait until that many nodes are idle."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if len(set(self.call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False)[1].split())) >= nodes:
                return
            time.sleep(0.1)
        raise K3Error(f"{nodes} nodes did not become idle", where=str(self.folder / "log"), fix="read the logs there")

    def call(self, *command: str, check: bool = True) -> tuple[int, str]:
        """Run one of Slurm's commands on this cluster."""
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        if check and done.returncode != 0:
            raise K3Error(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}", where=str(self.folder))
        return done.returncode, done.stdout

    def _command(self, name: str) -> list[str]:
        program, _, node = name.partition("-")
        run, path = self.folder / "run", _program(program) or program
        if program == "munged":
            munge = self.folder / "munge"
            files = {"key-file": munge / "key", "seed-file": munge / "seed", "log-file": self.folder / "log/munged.log"}
            files |= {"socket": run / "munge.sock", "pid-file": run / "munged.pid"}
            return [path, "--foreground", "--force", "--num-threads=2", *(f"--{k}={v}" for k, v in files.items())]
        if program == "mariadbd":
            data = [
                f"--datadir={self.folder}/mysql/data",
                f"--socket={run}/mysql.sock",
                f"--pid-file={run}/mariadb.pid",
            ]
            sizes = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900"]
            net = ["--bind-address=127.0.0.1", f"--port={self._ports()[2]}"]
            return [path, "--no-defaults", "--user=root", *data, *sizes, *net]
        if program == "slurmd":
            return [path, "-D", "-N", node]
        return [path, "-D"]

    def _ports(self) -> list[int]:
        return list(json.loads((self.folder / "ports.json").read_text()))

    def _prepare(self, layout: Layout) -> None:
        self._own_folder()
        for name in ("spool", "state", "log", "run", "dev", "munge", "mysql"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "munge").chmod(0o700)
        for node in layout.nodes:
            (self.folder / "tmp" / node).mkdir(parents=True, exist_ok=True)
        for gpu in range(layout.gpus_per_node):
            _null_device(self.folder / "dev" / f"gpu{gpu}")
        key = self.folder / "munge" / "key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
        ports = _free_ports(layout.ports_needed)
        (self.folder / "ports.json").write_text(json.dumps(ports))
        # a wiped controller counts from one again, and old ledgers know those numbers: begin elsewhere each time
        first = layout.first_job_id or int(time.time()) % 60_000_000 + 1
        self._write("slurm.conf", slurm_conf(layout, self.folder, platform.node().split(".")[0], ports, first))
        self._write("slurmdbd.conf", slurmdbd_conf(self.folder, ports))
        self._write("gres.conf", gres_conf(layout, self.folder))
        self._write("topology.conf", topology_conf(layout))
        self._write("cgroup.conf", "")

    def _own_folder(self) -> None:
        if any(c.isspace() or c in "%,=#\"'" for c in str(self.folder)) or len(str(self.folder)) > 80:
            raise K3Error("Slurm's files cannot hold this path", where=str(self.folder), fix="choose a short --dir")
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():
            raise K3Error("this folder belongs to somebody else", where=str(self.folder), fix="choose another --dir")
        self.folder.chmod(0o755)

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(text)
        file.chmod(0o600 if name == "slurmdbd.conf" else 0o644)

    def _start_accounting(self) -> None:
        client = ["mariadb", "--no-defaults", f"--socket={self.folder}/run/mysql.sock", "-uroot", "-e"]
        if not (self.folder / "mysql" / "data" / "mysql").exists():
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"]
            self.call("mariadb-install-db", "--no-defaults", f"--datadir={self.folder}/mysql/data", *options)
        self.start("mariadbd")
        self._wait(60, "the database", *client, "select 1")
        grants = [
            f"create user if not exists 'slurm'@'{h}' identified by 'slurm';"
            f" grant all on {DATABASE}.* to 'slurm'@'{h}';"
            for h in ("127.0.0.1", "localhost")
        ]
        self.call(*client, f"create database if not exists {DATABASE}; {' '.join(grants)}")
        self.start("slurmdbd")
        self._wait(60, "slurmdbd", "sacctmgr", "-n", "show", "cluster")
        self.call("sacctmgr", "-i", "add", "cluster", "k3", check=False)
        self.call("sacctmgr", "-i", "add", "account", "bench", "Description=bench", "Organization=bench", check=False)
        self.call("sacctmgr", "-i", "add", "user", "root", "Account=bench", check=False)

    def _wait(self, patience_s: float, what: str, *command: str) -> None:
        end = time.monotonic() + patience_s
        while self.call(*command, check=False)[0] != 0:
            if time.monotonic() > end:
                raise K3Error(f"{what} does not answer", where=str(self.folder / "log"), fix="read the logs there")
            time.sleep(0.1)


#: kept so that they are reaped, and so that their end is no warning
_children: list[subprocess.Popen[bytes]] = []


def _end(found: Sequence[Process], number: signal.Signals | None = signal.SIGTERM) -> None:
    """Signal all, then wait for each; what does not listen within ten seconds is killed."""
    for target in found:
        if number is not None and process.lives(target):
            os.kill(target.pid, number)
    end = time.monotonic() + 10
    for target in found:
        while process.lives(target) and time.monotonic() < end:
            time.sleep(0.05)
        if process.lives(target):
            os.kill(target.pid, signal.SIGKILL)
    for child in _children:
        child.poll()


def _end_with_parent() -> None:
    """Ask the kernel (Linux) for a SIGTERM when the parent dies."""
    import ctypes

    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


def _null_device(path: Path) -> None:
    if not path.exists():
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
