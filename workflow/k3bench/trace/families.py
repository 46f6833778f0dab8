"""Which family, layer, fork and leg an operation belongs to: the grammar of ranges, patterns, and the capture record.

In: range names, kernel names. Out: labels. Out of scope: finding the range of an operation (`attribution.py`).

Ranges open while the engine captures (NVTX and record_function alike):
  L<layer>.<family>          L12.KDA, L12.MLA, L12.MoE: one segment
  fork.<name>.<leg>          inside it, leg `main` or `side`; opened in both arms, serial or forked
The capture record is JSON that the engine writes beside the trace (schema `k3bench.capture/1`):
  {"schema": "k3bench.capture/1", "engine": ..., "graphs": [{
     "level": batch size, "graph_id": int or null, "exec_graph_id": int or null, "n_nodes": int,
     "ranges": [{"name": ..., "first_node": i, "end_node": j}, ...],
     "nodes": [{"kind": "kernel" | "memcpy" | "memset" | other, "name": str or null}, ...] or null}]}
Node numbers count the graph's nodes in creation order from 0; a range holds the nodes created while it was open
(half-open); ranges nest as they were opened. Without `nodes` every node counts as a device operation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from k3bench.errors import TraceError

_FAMILY = re.compile(r"^L(?P<layer>\d+)\.(?P<family>[A-Za-z]\w*)$")
_LEG = re.compile(r"^fork\.(?P<fork>[\w-]+)\.(?P<leg>main|side)$")
_STEP = re.compile(r"^(?:ProfilerStep#\d+|(?:decode[ _])?step[ _#]?\d+.*)$")
_MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_NODES = 1_000_000


@dataclass(frozen=True, order=True)
class Label:
    """Where an operation belongs. A segment is one layer's range of one family; forks may be nested."""

    family: str
    segment: str
    #: (fork, leg) outermost first; the leg is empty where it cannot be told
    legs: tuple[tuple[str, str], ...] = ()

    @property
    def fork(self) -> str | None:
        """The outermost fork: what is joined before anything after it."""
        return self.legs[0][0] if self.legs else None


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table in a recipe: a range or a kernel name (regular expression) means a family.

    A group named `layer` in a range pattern names the segment. An `anchor` kernel opens a new segment of its family,
    and kernels that no row names belong to the segment of the anchor before them.
    """

    family: str
    range: str | None = None
    kernel: str | None = None
    anchor: bool = False


@dataclass(frozen=True)
class Grammar:
    """The project's own range names, then the patterns of a recipe."""

    patterns: tuple[Pattern, ...] = ()

    def label(self, path: tuple[str, ...]) -> Label | None:
        """The label of a range path, outermost first: the innermost family range, and the legs inside it."""
        for depth in range(len(path) - 1, -1, -1):
            found = self._family(path[depth])
            if found:
                family, segment = found
                legs = [m for m in map(_LEG.match, path[depth + 1 :]) if m]
                return Label(family, segment, tuple((m["fork"], m["leg"]) for m in legs))
        return None

    def _family(self, text: str) -> tuple[str, str] | None:
        own = _FAMILY.match(text)
        if own:
            return own["family"], text
        for pattern in self.patterns:
            found = re.search(pattern.range, text) if pattern.range else None
            if found:
                layer = found.groupdict().get("layer")
                return pattern.family, f"L{layer}.{pattern.family}" if layer else text
        return None

    def knows(self, text: str) -> bool:
        """The range says something about family or leg."""
        return bool(_LEG.match(text)) or self._family(text) is not None

    def kernel(self, name: str) -> Pattern | None:
        """The first row that matches a kernel name."""
        return next((p for p in self.patterns if p.kernel and re.search(p.kernel, name)), None)


def is_step(text: str) -> bool:
    """A range around one eager decode step."""
    return bool(_STEP.match(text))


def read_patterns(path: Path) -> tuple[Pattern, ...]:
    """The table of a plan, of a recipe (`trace.families`), or a file of its own, YAML or JSON."""
    import yaml

    try:
        patterns = msgspec.convert(_table(yaml.safe_load(_bounded(path))), tuple[Pattern, ...])
        for row in patterns:
            if not row.range and not row.kernel:
                raise ValueError(f"the row of family {row.family!r} has neither `range` nor `kernel`")
            re.compile(row.range or ""), re.compile(row.kernel or "")
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, re.error, RecursionError) as error:
        raise TraceError(
            f"no table of family patterns: {error}",
            where=str(path),
            fix="write rows such as `- {range: 'layers\\.(?P<layer>\\d+)\\.kda', family: KDA}` under `families:`",
        ) from None
    return patterns


def _table(content: Any) -> Any:
    """Rows, or a mapping that holds them under `families`, `trace` or `recipe`; no table is an empty one."""
    for key in ("recipe", "trace", "families"):
        if isinstance(content, dict):
            content = content.get(key, content if key != "families" else ())
    return content


class CapturedRange(msgspec.Struct, frozen=True):
    """One range and the nodes created while it was open."""

    name: str
    first_node: int
    end_node: int


class CapturedNode(msgspec.Struct, frozen=True):
    """One graph node; the name may be mangled, or unknown."""

    kind: str
    name: str | None = None


class CapturedGraph(msgspec.Struct, frozen=True):
    """One captured graph."""

    n_nodes: int
    ranges: tuple[CapturedRange, ...]
    level: int | None = None
    graph_id: int | None = None
    exec_graph_id: int | None = None
    nodes: tuple[CapturedNode, ...] | None = None

    def paths(self) -> list[tuple[str, ...]]:
        """The range path of every node, outermost first."""
        found: list[list[str]] = [[] for _ in range(self.n_nodes)]
        for span in sorted(self.ranges, key=lambda r: (r.first_node, -r.end_node)):
            for node in range(max(span.first_node, 0), min(span.end_node, self.n_nodes)):
                found[node].append(span.name)
        return [tuple(path) for path in found]

    def device_nodes(self) -> list[int]:
        """Nodes that run on the device and therefore appear in a trace."""
        if self.nodes is None:
            return list(range(self.n_nodes))
        return [i for i, node in enumerate(self.nodes) if node.kind in ("kernel", "memcpy", "memset")]


class CaptureRecord(msgspec.Struct, frozen=True):
    """What the engine wrote while it captured."""

    schema: str
    graphs: tuple[CapturedGraph, ...]
    engine: str | None = None


def capture_record(content: bytes | bytearray, where: str) -> CaptureRecord:
    """Validate a capture record."""
    try:
        record = msgspec.json.decode(content, type=CaptureRecord)
        if record.schema != "k3bench.capture/1":
            raise ValueError(f"schema {record.schema!r} instead of 'k3bench.capture/1'")
        for graph in record.graphs:
            if not 0 <= graph.n_nodes <= _MAX_NODES or (graph.nodes is not None and len(graph.nodes) != graph.n_nodes):
                raise ValueError("n_nodes does not fit")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(
            f"no capture record: {error}", where=where, fix="give the file the engine wrote at capture, or leave it out"
        ) from None
    return record


def _bounded(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TraceError("too large for a table of patterns", where=str(path), fix="give the recipe itself")
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read: {error.strerror}", where=str(path), fix="name an existing file") from None
