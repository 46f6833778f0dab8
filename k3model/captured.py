"""What a captured graph holds: ranges during a capture in, `k3bench.capture/1` as plain data out.

A node's number is the number of nodes that the capturing graph had when it was created; both streams capture into one
graph. Asked of the driver through ctypes, since torch has no public door to a graph under capture.
Out of scope: replays, traces, files.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from k3model.errors import DeviceError
from k3model.ranges import Ranges, nvtx_range

SCHEMA = "k3bench.capture/1"
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_KINDS = {0: "kernel", 1: "memcpy", 2: "memset"}  # CUgraphNodeType


@dataclass(frozen=True)
class Node:
    """One node of a graph; `name` is a kernel's (mangled) name where the driver tells it."""

    kind: str
    name: str | None = None


class GraphUnderCapture(Protocol):
    """Whoever can look into the graph that the current stream captures into."""

    def count(self) -> int:
        """How many nodes it has now."""

    def nodes(self, first: int) -> list[Node]:
        """Its nodes from that number on, in order of creation."""


@dataclass
class _Opened:
    name: str
    first_node: int
    end_node: int = -1


@dataclass
class CaptureRecorder:
    """Ranges that also write down which nodes they hold. One recorder, one capture."""

    graph: GraphUnderCapture
    inner: Ranges = nvtx_range
    #: names of the ranges open now, outermost first
    open: list[str] = field(default_factory=list)
    _ranges: list[_Opened] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A range of that name."""
        opened = _Opened(name, self.graph.count())
        self._ranges.append(opened)
        self.open.append(name)
        try:
            with self.inner(name):
                yield
        finally:
            self.open.pop()
        opened.end_node = self.graph.count()
        if not self.open:
            self._nodes += self.graph.nodes(len(self._nodes))

    def as_plain(self, level: int) -> dict[str, Any]:
        """The record, for a capture at that batch size."""
        graph = {
            "level": level,
            "graph_id": None,
            "exec_graph_id": None,
            "n_nodes": len(self._nodes),
            "ranges": [vars(r) for r in self._ranges],
            "nodes": [vars(n) for n in self._nodes],
        }
        return {"schema": SCHEMA, "engine": "k3model", "graphs": [graph]}


class _KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2: a kernel comes as a function of a module or as one of a library."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("launch", ctypes.c_uint * 7),  # grid, block, shared memory
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    ]


class DriverGraph:
    """The graph that torch's current stream captures into, through libcuda. Needs CUDA 12.3 or later."""

    def __init__(self) -> None:
        try:
            self._cu = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise DeviceError("there is no CUDA driver to ask about a captured graph") from None
        # Handles are pointers: without declared types ctypes would cut them to 32 bits.
        pointer, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
        self._cu.cuGraphGetNodes.argtypes = [pointer, pointer, size]
        self._cu.cuGraphNodeGetType.argtypes = [pointer, pointer]
        self._cu.cuGraphKernelNodeGetParams_v2.argtypes = [pointer, pointer]
        self._cu.cuFuncGetName.argtypes = self._cu.cuKernelGetName.argtypes = [pointer, pointer]

    def count(self) -> int:
        """See `GraphUnderCapture`."""
        n = ctypes.c_size_t()
        self._must(self._cu.cuGraphGetNodes(self._handle(), None, ctypes.byref(n)), "cuGraphGetNodes")
        return n.value

    def nodes(self, first: int) -> list[Node]:
        """See `GraphUnderCapture`."""
        n = ctypes.c_size_t(self.count())
        handles = (ctypes.c_void_p * n.value)()
        self._must(self._cu.cuGraphGetNodes(self._handle(), handles, ctypes.byref(n)), "cuGraphGetNodes")
        return [self._node(handle or 0) for handle in handles[first : n.value]]

    def _node(self, handle: int) -> Node:
        kind = ctypes.c_int()
        self._must(self._cu.cuGraphNodeGetType(handle, ctypes.byref(kind)), "cuGraphNodeGetType")
        word = _KINDS.get(kind.value, "other")
        return Node(word, self._kernel_name(handle) if word == "kernel" else None)

    def _kernel_name(self, handle: int) -> str | None:
        """None where the driver does not tell: a name helps and is not needed."""
        params, name = _KernelParams(), ctypes.c_char_p()
        if self._cu.cuGraphKernelNodeGetParams_v2(handle, ctypes.byref(params)):
            return None
        for asked, of in ((self._cu.cuFuncGetName, params.func), (self._cu.cuKernelGetName, params.kern)):
            if of and not asked(ctypes.byref(name), of) and name.value:
                return name.value.decode(errors="replace")
        return None

    def _handle(self) -> ctypes.c_void_p:
        status, graph, number = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
        capture, before, edges = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        out = [ctypes.byref(x) for x in (status, capture, graph, before, edges, number)]
        self._must(self._cu.cuStreamGetCaptureInfo_v3(stream, *out), "cuStreamGetCaptureInfo_v3")
        if status.value != _ACTIVE:
            raise DeviceError("the current stream captures nothing", fix="open the ranges inside a capture")
        return graph

    @staticmethod
    def _must(status: int, call: str) -> None:
        if status:
            raise DeviceError(f"{call} failed with CUDA error {status}", fix="a driver of CUDA 12.3 or later is needed")
