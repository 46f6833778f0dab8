"""What every rank runs: report to the leader, become a member, do what is asked, end when the leader is gone.

    python -m k3bench.ranks.program --meet HOST,... --port P --of N --member module:name --arguments JSON

Rank and local rank come from the options or, in an srun step, from Slurm. Out of scope: what a member does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from k3bench.ranks.launch import TOKEN
from k3bench.ranks.link import Message, hear, reach, say
from k3bench.records.fingerprint import SLURM_IDENTITY, RankPlace

#: The leader is gone: there is nobody to measure for.
ALONE = 75
#: Set where a profiler started this program: it wants to see an orderly end.
UNDER = "K3_RANK_UNDER"
Member = Callable[..., Any]


def main() -> int:
    """The program's door."""
    args = _parse()
    if args.under:
        _become(json.loads(args.under), args.rank)
    line, address = reach(args.meet.split(","), args.port, os.environ.pop(TOKEN, ""), args.limit)
    place = where_am_i(args.rank, args.local_rank)
    say(line, place.model_dump(mode="json"))
    asked = _listen(line)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    module, _, name = args.member.partition(":")
    member: Any = None
    while (message := asked.get()) is not None and message.get("do") != "leave":
        try:
            if member is None:
                make: Member = getattr(importlib.import_module(module), name)
                member = make(place, args.of, address, args.limit, json.loads(args.arguments))
            say(line, _do(member, message))
        except Exception as error:
            traceback.print_exc()
            say(line, {"error": _plain(error)})
            break
    if member is not None:
        member.leave()
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--meet", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    parser.add_argument("--member", required=True)
    parser.add_argument("--arguments", default="{}")
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--under", default="")
    parser.add_argument("--rank", type=int, default=int(os.environ.get("SLURM_PROCID", "0")))
    parser.add_argument("--local-rank", type=int, default=int(os.environ.get("SLURM_LOCALID", "0")))
    return parser.parse_args()


def _become(under: list[str], rank: int) -> None:
    """Run this very command under a profiler instead. Does not return."""
    words = [word.replace("{rank}", str(rank)) for word in under]
    at = sys.argv.index("--under")
    rest = [*sys.argv[1:at], *sys.argv[at + 2 :]]
    os.environ[UNDER] = "1"
    os.execvp(words[0], [*words, sys.executable, "-m", "k3bench.ranks.program", *rest])


def where_am_i(rank: int, local_rank: int) -> RankPlace:
    """This rank's node, as Slurm names it where there is Slurm."""
    slurm = {name: os.environ[name] for name in SLURM_IDENTITY if name in os.environ}
    in_step = "SLURM_PROCID" in os.environ
    host = slurm.get("SLURMD_NODENAME") if in_step else None
    return RankPlace(index=rank, local_rank=local_rank, host=host or socket.gethostname(), slurm=slurm)


def _listen(line: Connection) -> queue.SimpleQueue[Message | None]:
    """What the leader asks, in order. Its death ends this process even inside a collective that never ends."""
    asked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                message = hear(line)
            except EOFError:
                os._exit(ALONE)
            asked.put(message)
            if message.get("do") == "leave":
                return

    threading.Thread(target=listen, daemon=True).start()
    return asked


def _do(member: Any, message: Message) -> Message:
    """The member's own method of that name; its answer is plain data."""
    command = message.pop("do")
    answer: Message = getattr(member, f"do_{command}")(**message) or {}
    return answer


def _plain(error: Exception) -> dict[str, str]:
    words = (str(error).strip().splitlines() or [""])[0]
    what = getattr(error, "what", None) or f"{type(error).__name__}: {words}"
    return {"what": str(what)[:500], "where": getattr(error, "where", ""), "fix": getattr(error, "fix", "")}


if __name__ == "__main__":
    status = main()
    # Not the interpreter's own way out: the listening thread and a broken process group would hold it up.
    sys.stdout.flush()
    sys.stderr.flush()
    if UNDER in os.environ:
        sys.exit(status)
    os._exit(status)
