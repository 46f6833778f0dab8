"""This repository's K3 behind its own server: the engine `openai` with a command that `serving/arms.py` writes."""

from __future__ import annotations

from k3bench.measure.engines.openai import open_engine

__all__ = ["open_engine"]
