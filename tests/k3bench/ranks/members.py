"""Members without a model: they do as they are told, also where that is to die, to hang or to fail."""

from __future__ import annotations

import os
import time
from typing import Any

from k3bench.errors import MeasureError
from k3bench.records.fingerprint import RankPlace


class Told:
    """Answers with its place; `on` picks the rank that misbehaves."""

    def __init__(self, place: RankPlace, of: int, leader: str, limit_s: float, arguments: dict[str, Any]) -> None:
        self.place, self.arguments = place, arguments

    def do_host(self) -> dict[str, Any]:
        """Nobody meets here."""
        return {"port": 1}

    def do_join(self, port: int) -> dict[str, Any]:
        """Every rank has a device of its own, unless told otherwise."""
        gpu = self.arguments.get("gpu")
        return {"device": "cuda:0" if gpu else "cpu", "gpu": gpu, "gpu_uuid": gpu}

    def do_where(self) -> dict[str, Any]:
        """Who and where."""
        return {"rank": self.place.index, "pid": os.getpid(), "told": os.environ.get("TOLD"), "home": os.getcwd()}

    def do_die(self, on: int) -> dict[str, Any]:
        """As when memory runs out; the others wait for a peer that never comes."""
        if self.place.index == on:
            os.kill(os.getpid(), 9)
        time.sleep(600)
        return {}

    def do_echo(self, on: int) -> dict[str, Any]:
        """One dies; the others complain that their peer is gone."""
        if self.place.index == on:
            os.kill(os.getpid(), 9)
        time.sleep(0.5)
        raise ConnectionError("Connection closed by peer")

    def do_fail(self, on: int) -> dict[str, Any]:
        """An error with its cure."""
        if self.place.index == on:
            raise MeasureError("the GPU has too little memory", fix="choose a smaller preset")
        time.sleep(600)
        return {}

    def do_hang(self, on: int) -> dict[str, Any]:
        """A rank that never answers."""
        if self.place.index == on:
            time.sleep(600)
        return {}

    def leave(self) -> None:
        """Nothing to leave."""


class Absent(Told):
    """Cannot even be made."""

    def __init__(self, *arguments: Any) -> None:
        raise MeasureError("no such preset", fix="valid presets: nano")
