"""PyTorch/Kineto traces, 2021 categories to today: operations, record_function ranges, launch calls.

In: decoded events, piece by piece. Out: `Trace`. Out of scope: decoding (`json_traces.py`), families.
"""

from __future__ import annotations

import re
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from k3bench.errors import TraceError
from k3bench.trace import names
from k3bench.trace.ops import NO_LAUNCHES, NO_NODE, NO_NODES, NO_RANGES, Ints, Launches, Ops, Ranges, Source, Trace
from k3bench.trace.ops import dense_pairs as pairs
from k3bench.trace.readers import checks
from k3bench.trace.readers.json_traces import Args, Event
from k3bench.trace.readers.us_text import to_ns

#: category -> kind; capitals are of 2021
_KIND = {"kernel": 0, "Kernel": 0, "gpu_memcpy": 1, "Memcpy": 1, "gpu_memset": 2, "Memset": 2}
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "runtime"})
_LAUNCH = re.compile(r"^(cuda|cu|hip)(\w*Launch|Mem(cpy|set))")
_STREAM = re.compile(r"^\s*(?:stream\s+)?(-?\d+)\s*$")
#: torch places logical lanes of a lane resolver above any stream id
_LOGICAL_LANE_BASE = 100_000
_NO_CONTEXT = -1
_NO_ARGS = Args()
_BAD = "the profiler wrote a broken event: record again, with another torch version if it repeats"


class Collected:
    """Columns of everything needed, filled piece by piece so that no event object outlives its piece."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.n_events = self.n_sub_ns = 0
        self._name_ids: dict[bytes, int] = {}
        self._ops: list[dict[str, Ints]] = []
        self._calls: list[tuple[int, int, int, bool, bool]] = []
        self._ranges: list[tuple[int, int, int, str]] = []
        self._lane_labels: dict[tuple[Any, Any], str] = {}

    def add(self, events: list[Event]) -> None:
        """Take what is needed of some events."""
        self.n_events += len(events)
        cats = [e.cat for e in events]
        try:
            kinds = [_KIND.get(cat, -1) for cat in cats]
            self._add_ops([e for e, k in zip(events, kinds, strict=True) if k >= 0 and e.ph == "X"])
            others = list(compress(events, [k < 0 for k in kinds]))
            self._add_calls([e for e in others if e.cat in _CALLS])
            self._add_ranges([e for e in others if e.cat == "user_annotation" and e.ph == "X"])
            self._add_labels([e for e in others if e.ph == "M" and bytes(e.name) == b'"thread_name"'])
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise self._broken(f"an event is not as Kineto writes it: {error}") from None

    def _add_ops(self, events: list[Event]) -> None:
        if not events:
            return
        args = [e.args or _NO_ARGS for e in events]
        start, sub = to_ns([e.ts for e in events])
        length, sub_length = to_ns([e.dur for e in events])
        self.n_sub_ns += sub + sub_length
        self._ops.append(
            {
                "start": start,
                "end": start + length,
                "kind": _ints([_KIND[e.cat] for e in events]),
                "name": _ints(self._ids([e.name for e in events])),
                "device": _ints([_first(a.device, e.pid) for a, e in zip(args, events, strict=True)]),
                "context": _ints([_NO_CONTEXT if a.context is None else a.context for a in args]),
                "stream": _ints(
                    [
                        a.stream if type(a.stream) is int else _stream(a.stream, e.tid)
                        for a, e in zip(args, events, strict=True)
                    ]
                ),
                "correlation": _ints([0 if a.correlation is None else a.correlation for a in args]),
                "graph": _ints([a.graph_id or 0 for a in args]),
                "node": _ints([a.graph_node_id or 0 for a in args]),
            }
        )

    def _ids(self, texts: list[msgspec.Raw]) -> list[int]:
        known = self._name_ids
        return [known.setdefault(text, len(known)) for text in map(bytes, texts)]

    def _add_calls(self, events: list[Event]) -> None:
        for event in events:
            name = _text(event.name)
            if _LAUNCH.match(name) and event.args is not None and event.args.correlation is not None:
                time, _ = to_ns([event.ts])
                kind = ("GraphLaunch" in name, "Kernel" in name)
                self._calls.append((int(event.args.correlation), _thread(event), int(time[0]), *kind))

    def _add_ranges(self, events: list[Event]) -> None:
        if not events:
            return
        start, _ = to_ns([e.ts for e in events])
        length, _ = to_ns([e.dur for e in events])
        for event, begin, end in zip(events, start.tolist(), (start + length).tolist(), strict=True):
            self._ranges.append((_thread(event), begin, end, _text(event.name)))

    def _add_labels(self, events: list[Event]) -> None:
        for event in events:
            if event.args is not None and isinstance(event.args.name, str):
                self._lane_labels[event.pid, event.tid] = event.args.name

    def trace(self, source: Source, *, accept_lanes: bool) -> Trace:
        """Everything collected, checked."""
        ops, n_negative = self._columns()
        self._real_streams(ops, accept_lanes)
        self._real_times(ops)
        return checks.finished(
            Trace(source, ops, self.launches(), self.ranges(), NO_NODES, n_negative=n_negative, n_sub_ns=self.n_sub_ns)
        )

    def launches(self) -> Launches:
        """Calls that put work on a device, or into a graph."""
        calls = self._calls
        if not calls:
            return NO_LAUNCHES
        correlation, thread, time = (_ints([c[i] for c in calls]) for i in range(3))
        return Launches(
            np.zeros(len(calls), np.int64),
            correlation,
            thread,
            time,
            np.array([c[3] for c in calls]),
            np.array([c[4] for c in calls]),
        )

    def ranges(self) -> Ranges:
        """The record_function ranges."""
        if not self._ranges:
            return NO_RANGES
        thread, start, end = (_ints([r[i] for r in self._ranges]) for i in range(3))
        return Ranges(thread, start, end, tuple(r[3] for r in self._ranges))

    def correlations(self) -> set[int]:
        """Correlation ids that have a device operation."""
        return {int(c) for part in self._ops for c in part["correlation"].tolist()}

    def _columns(self) -> tuple[Ops, int]:
        if not self._ops:
            raise TraceError("the trace holds no device operation", where=self.where, fix=checks.DEVICE_ACTIVITY)
        column = {c: np.concatenate([part[c] for part in self._ops]) for c in self._ops[0]}
        self._ops.clear()
        good = column["end"] >= column["start"]
        n_negative = len(good) - int(np.count_nonzero(good))
        if n_negative:
            column = {c: v[good] for c, v in column.items()}
        lane, contexts, streams = pairs(column["context"], column["stream"])
        in_graph = (column["node"] != 0) | (column["graph"] != 0)
        graph = np.where(column["graph"] != 0, column["graph"], column["node"] >> 32)
        texts = tuple(_text(msgspec.Raw(raw)) for raw in self._name_ids)
        ops = Ops(
            start=column["start"],
            end=column["end"],
            device=column["device"],
            lane=lane,
            kind=column["kind"].astype(np.int8),
            name=column["name"],
            process=np.zeros(len(lane), np.int64),
            correlation=column["correlation"],
            graph=np.where(in_graph, graph, NO_NODE),
            node=np.where(in_graph, column["node"] & 0xFFFFFFFF, NO_NODE),
            lanes=tuple((0, int(c), int(s)) for c, s in zip(contexts, streams, strict=True)),
            names=texts,
            short_names=tuple(t if t.startswith(("Memcpy", "Memset")) else names.short_name(t) for t in texts),
        )
        return ops, n_negative

    def _real_streams(self, ops: Ops, accept_lanes: bool) -> None:
        """A trace whose lanes were renamed for display no longer says what ran on which stream."""
        streams = {stream for _, _, stream in ops.lanes}
        renamed = [
            label for (_, tid), label in self._lane_labels.items() if tid in streams and not _is_stream(label, tid)
        ]
        devices = set(ops.device.tolist()) if renamed else set()
        renamed = [
            label
            for (pid, tid), label in self._lane_labels.items()
            if pid in devices and tid in streams and not _is_stream(label, tid)
        ]
        if (renamed or max(streams, default=0) >= _LOGICAL_LANE_BASE) and not accept_lanes:
            example = f" (such as {renamed[0]!r})" if renamed else ""
            raise TraceError(
                f"exported with logical lanes{example}: the streams the hardware used are not in the file",
                where=self.where,
                fix="export without a graph lane resolver or annotations, or accept the lanes with --accept-lanes",
            )

    def _real_times(self, ops: Ops) -> None:
        n_zero = int(np.count_nonzero(ops.start == 0))
        if n_zero and n_zero < len(ops) and int(ops.start.max()) > 10**12:
            raise TraceError(
                f"{n_zero} operations have a zero timestamp",
                where=self.where,
                fix="a known fault of torch 2.12 and of CUPTI before 13.1: record with another version",
            )

    def _broken(self, what: str) -> TraceError:
        return TraceError(what[:300], where=self.where, fix=_BAD)


def _ints(values: list[Any]) -> Ints:
    """Whole numbers only: text raises, so does a float that is not whole."""
    array = np.array(values)
    if array.dtype == np.int64:
        return array
    if array.dtype.kind in "ub" or (array.dtype.kind == "O" and all(type(v) is int for v in values)):
        return np.array(values, np.int64)
    raise ValueError(f"expected whole numbers, found {next((v for v in values if type(v) is not int), '?')!r}"[:80])


def _first(device: Any, pid: Any) -> Any:
    return pid if device is None else device


def _stream(stream: Any, tid: Any) -> int:
    """The stream number, from the arguments or else from the track (`7`, or `stream 7` in 2021)."""
    found = _STREAM.match(str(tid if stream is None else stream))
    if not found:
        raise ValueError(f"no stream in {stream!r} or {tid!r}"[:80])
    return int(found.group(1))


def _is_stream(label: str, tid: Any) -> bool:
    found = _STREAM.match(label)
    return bool(found) and found is not None and str(tid).endswith(found.group(1))


def _thread(event: Event) -> int:
    return hash((str(event.pid), str(event.tid))) & 0x7FFF_FFFF_FFFF_FFFF


def _text(raw: msgspec.Raw) -> str:
    try:
        decoded = msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        decoded = bytes(raw).decode("utf-8", "replace")
    return decoded if isinstance(decoded, str) else str(decoded)[:200]
