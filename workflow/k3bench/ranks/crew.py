"""The leader's side: start the ranks, see that all are there and where they should be, ask them, end them together.

In: how many on how many nodes, which member they are. Out: answers by rank, or a `RankError` that names the rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from k3bench.errors import RankError
from k3bench.ranks.launch import Started, addresses, in_slurm_job, launch
from k3bench.ranks.link import Door, Message, hear, say
from k3bench.records.fingerprint import RankPlace

#: How often processes are looked at while answers are awaited.
LOOK_S = 0.2
#: How long the others may take to say their part when one has failed.
LAST_WORDS_S = 2.0


@dataclass(frozen=True)
class Limits:
    """The longest that anything may take. A rank that dies is noticed within a second, whatever these are."""

    #: from the start until every rank has reported
    start_s: float = 300.0
    #: building the model and capturing its steps
    open_s: float = 900.0
    #: any other answer; also what a collective waits for a peer
    answer_s: float = 300.0


@dataclass(frozen=True)
class Wanted:
    """How many ranks on how many nodes; `member` is the function that makes one, `module:name`."""

    ranks: int
    nodes: int
    member: str
    arguments: dict[str, Any]
    logs: Path
    #: where the ranks start: the folder of the build they run
    home: Path | None = None
    #: a program each rank runs under, with {rank} in its words: a profiler
    under: tuple[str, ...] = ()


class Crew:
    """All ranks, at work. A context: leaving it ends every one of them."""

    def __init__(self, wanted: Wanted, limits: Limits | None = None) -> None:
        self.wanted, self.limits = wanted, limits or Limits()
        self.places: tuple[RankPlace, ...] = ()
        self._lines: dict[int, Connection] = {}
        token = secrets.token_hex(16)
        self._door = Door(token)
        self._started = launch(
            self._arguments(),
            ranks=wanted.ranks,
            nodes=wanted.nodes,
            token=token,
            logs=wanted.logs,
            home=wanted.home,
        )
        try:
            self.places = self._muster()
            port = self.ask_one(0, "host", limit_s=self.limits.start_s)["port"]
            told = self.ask("join", port=port, limit_s=self.limits.start_s)
            self.places = tuple(
                place.model_copy(update={key: answer[key] for key in ("device", "gpu", "gpu_uuid")})
                for place, answer in zip(self.places, told, strict=True)
            )
            self._check_devices()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def started(self) -> Started:
        """The processes."""
        return self._started

    def _arguments(self) -> list[str]:
        said = [*("--meet", ",".join(addresses()), "--port", str(self._door.port), "--of", str(self.wanted.ranks))]
        said += ["--member", self.wanted.member, "--arguments", json.dumps(self.wanted.arguments)]
        said += ["--limit", str(self.limits.answer_s)]
        return [*said, *(["--under", json.dumps(self.wanted.under)] if self.wanted.under else [])]

    # --- counting
    def _muster(self) -> tuple[RankPlace, ...]:
        """Wait until every rank has said where it is; then check that this is where it should be."""
        end = time.monotonic() + self.limits.start_s
        found: dict[int, RankPlace] = {}
        while len(found) < self.wanted.ranks:
            connection = self._door.next(LOOK_S)
            place = _place_of(connection) if connection is not None else None
            if connection is not None and place is not None:
                if place.index in found or not 0 <= place.index < self.wanted.ranks:
                    raise RankError(f"rank {place.index} of {self.wanted.ranks} reported out of place or twice")
                found[place.index], self._lines[place.index] = place, connection
            ended = self._started.ended()
            if ended:  # srun does not say which of its tasks
                self._fail("starting", set(range(self.wanted.ranks)) - set(found) if self._started.by_srun else set())
            if time.monotonic() > end:
                missing = sorted(set(range(self.wanted.ranks)) - set(found))
                raise RankError(
                    f"ranks {missing} of {self.wanted.ranks} did not report within {self.limits.start_s:g} s",
                    where=self._started.tail_of(missing[0]),
                    fix=f"see {self._started.logs}",
                )
        self._door.close()
        places = tuple(found[rank] for rank in range(self.wanted.ranks))
        check_places(places, self.wanted.nodes, by_slurm=in_slurm_job())
        return places

    def _check_devices(self) -> None:
        """Two ranks on one GPU would measure each other."""
        used = [place.gpu_uuid or f"{place.host} {place.device}" for place in self.places if place.device != "cpu"]
        if len(set(used)) != len(used):
            raise RankError(f"two ranks share a GPU: {', '.join(used)}", fix="as many GPUs a node as ranks a node")

    def present(self) -> tuple[bool, str]:
        """Whether every rank is still there, and where they are: asked at every point."""
        ended = self._started.ended()
        return not ended and len(self._lines) == self.wanted.ranks, in_words(self.places)

    # --- asking
    def ask(self, command: str, *, limit_s: float | None = None, **arguments: Any) -> list[Message]:
        """All ranks do it; their answers in order of rank. Raises `RankError`, after which nobody is left."""
        return self._answers(list(range(self.wanted.ranks)), command, arguments, limit_s or self.limits.answer_s)

    def ask_one(self, rank: int, command: str, *, limit_s: float | None = None, **arguments: Any) -> Message:
        """One rank does it."""
        return self._answers([rank], command, arguments, limit_s or self.limits.answer_s)[0]

    def _answers(self, ranks: Sequence[int], command: str, arguments: dict[str, Any], limit_s: float) -> list[Message]:
        pending: dict[int, Connection] = {}
        answers: dict[int, Message] = {}
        for rank in ranks:
            with contextlib.suppress(OSError):  # a rank that is gone is found below
                say(self._lines[rank], {"do": command, **arguments})
            pending[rank] = self._lines[rank]
        end = time.monotonic() + limit_s
        while pending:
            for rank, told in self._heard(pending):
                if told is None:
                    self._fail(command, {rank})
                elif "error" in told:
                    self._fail(command, set(), {rank: told})
                else:
                    answers[rank] = told
                    del pending[rank]
            if self._started.ended() and pending:
                self._fail(command, set())
            if pending and time.monotonic() > end:
                silent = sorted(pending)
                self.close()
                raise RankError(
                    f"ranks {silent} of {self.wanted.ranks} gave no answer to {command!r} within {limit_s:g} s; "
                    "all ranks were ended",
                    where=self._started.tail_of(silent[0]),
                    fix=f"see {self._started.logs}",
                )
        return [answers[rank] for rank in ranks]

    def _heard(self, pending: dict[int, Connection]) -> list[tuple[int, Message | None]]:
        """What has arrived since; None for a rank whose line is cut."""
        ready = wait(list(pending.values()), timeout=LOOK_S)
        heard: list[tuple[int, Message | None]] = []
        for rank in [rank for rank, line in pending.items() if line in ready]:
            try:
                heard.append((rank, hear(pending[rank])))
            except EOFError:
                heard.append((rank, None))
        return heard

    # --- ending
    def _fail(self, command: str, gone: set[int], said: dict[int, Message] | None = None) -> NoReturn:
        """One rank has failed: hear what the others have to say, end all, and say which one began it."""
        said, end = dict(said or {}), time.monotonic() + LAST_WORDS_S
        while time.monotonic() < end and len(gone) + len(said) < self.wanted.ranks:
            rest = {r: line for r, line in self._lines.items() if r not in gone and r not in said}
            for rank, told in self._heard(rest) if rest else ():
                if told is None:
                    gone.add(rank)
                elif "error" in told:
                    said[rank] = told
        ended = {rank: status for rank, status in self._started.ended().items() if status}
        mute = sorted((gone | (set(ended) - {-1})) - set(said))
        self.close()
        raise _verdict(self.wanted.ranks, command, mute, said, ended, self._started)

    def dismiss(self, limit_s: float) -> None:
        """Let every rank end by itself, its profiler included, which may have much to write; then see that all did."""
        self._say_leave()
        end = time.monotonic() + limit_s
        while time.monotonic() < end and any(process.poll() is None for process in self._started.processes):
            time.sleep(LOOK_S)
        bad = {rank: status for rank, status in self._started.ended().items() if status}
        self.close()
        if bad:
            rank = min(bad)
            raise RankError(
                f"rank {rank} of {self.wanted.ranks} ended {_how(bad[rank])} after its last answer",
                where=self._started.tail_of(max(rank, 0)),
                fix=f"see {self._started.logs}",
            )

    def _say_leave(self) -> None:
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                say(line, {"do": "leave"})

    def close(self) -> None:
        """End every rank. Lines are cut first: a rank whose leader is gone ends by itself."""
        self._door.close()
        self._say_leave()
        end = time.monotonic() + 3.0
        while time.monotonic() < end and any(p.poll() is None for p in self._started.processes):
            time.sleep(0.02)
            if self._started.ended():
                end = min(end, time.monotonic() + 1.0)
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._started.end()


def _place_of(connection: Connection) -> RankPlace | None:
    """What a rank says first; None if it dies or keeps silent instead, which is then seen by its process."""
    try:
        said = hear(connection) if connection.poll(LAST_WORDS_S) else None
    except (EOFError, OSError):
        return None
    return RankPlace.model_validate_json(json.dumps(said), strict=True) if said else None


def _verdict(
    ranks: int, command: str, mute: list[int], said: dict[int, Message], ended: dict[int, int], started: Started
) -> RankError:
    """Who died without a word comes first: what the others say is then only its echo."""
    if mute:
        rank, status = mute[0], ended.get(mute[0], ended.get(-1))
        what = f"rank {rank} of {ranks} ended {_how(status)} during {command!r}; all ranks were ended"
        return RankError(what, where=started.tail_of(rank), fix=f"see {started.log_of(rank)}")
    rank = min(said, default=0)
    error = said.get(rank, {}).get("error", {"what": "ended"})
    where = error.get("where") or started.tail_of(rank)
    what = f"rank {rank} of {ranks} failed during {command!r}: {error['what']}; all ranks were ended"
    return RankError(what, where=where, fix=error.get("fix") or f"see {started.log_of(rank)}")


def _how(status: int | None) -> str:
    if status is None:
        return "without a word"
    if status < 0:
        return f"by {signal.Signals(-status).name}"
    return f"with exit code {status}"


def check_places(places: Sequence[RankPlace], nodes: int, *, by_slurm: bool) -> None:
    """As many nodes as asked for, equally many ranks on each, rank 0 beside the leader."""
    on: dict[str, list[int]] = {}
    for place in places:
        on.setdefault(place.host, []).append(place.index)
    if len(on) != nodes:
        raise RankError(
            f"{len(places)} ranks stand on {len(on)} nodes ({', '.join(on)}), planned are {nodes}",
            fix="let resources.nodes be what the allocation has",
        )
    if len({len(ranks) for ranks in on.values()}) > 1:
        raise RankError(f"ranks are spread unevenly: {in_words(places)}")
    here = os.environ.get("SLURMD_NODENAME", "") if by_slurm else socket.gethostname()
    if here and places[0].host != here:
        raise RankError(f"rank 0 runs on {places[0].host}, its leader on {here}: the others could not meet it")


def in_words(places: Sequence[RankPlace]) -> str:
    """`2 ranks on 2 nodes: 0 d157-n1 (spine.d157.d157-n1) cpu, 1 ...`."""
    nodes = len({place.host for place in places})
    each = []
    for place in places:
        address = place.slurm.get("SLURM_TOPOLOGY_ADDR")
        proof = f" ({address})" if address else ""
        each.append(f"{place.index} {place.host}{proof} {place.device}")
    return f"{len(places)} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}: {', '.join(each)}"
