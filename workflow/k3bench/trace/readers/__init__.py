"""One reader a trace format; `read` picks by content. In: a path. Out: `Trace`. Out of scope: what it shows."""

from __future__ import annotations

from pathlib import Path

from k3bench.errors import TraceError
from k3bench.trace.ops import Trace
from k3bench.trace.readers import files


def read(path: Path, *, accept_lanes: bool = False) -> Trace:
    """Read one trace file of whatever format."""
    if not path.is_file():
        raise TraceError(
            "there is no such trace file", where=str(path), fix="name an existing .sqlite, .nsys-rep or .json"
        )
    kind = files.kind_of(path)
    if kind == "sqlite":
        from k3bench.trace.readers import nsys

        return nsys.read(path)
    if kind == "json":
        from k3bench.trace.readers import json_traces

        return json_traces.read(path, accept_lanes=accept_lanes)
    if kind == "nsys_rep":
        from k3bench.trace.readers import nsys_rep

        return nsys_rep.read(path)
    raise TraceError(
        "no trace: neither an Nsight Systems sqlite export, an .nsys-rep, nor PyTorch/Kineto or CUPTI JSON",
        where=str(path),
        fix=_IMPORT if kind == "qdstrm" else "give a .sqlite, .nsys-rep, .json, or one of them with .gz or .xz",
    )


_IMPORT = "import it with the QdstrmImporter of the `nsys` that collected, then export: `nsys export --type sqlite`"
