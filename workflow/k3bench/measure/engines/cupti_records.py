"""CUPTI activity and graph-node callbacks through cupti-python. In: the open ranges. Out: `recs` and `nodes`, plain.

One subscriber a process: it cannot run beside another profiler. Out of scope: what is run, where the document goes.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

#: CUPTI hands activity records over in buffers of this size.
_BUFFER_BYTES = 8 * 1024 * 1024
_FLUSH_FORCED = 1


class CuptiRecords:
    """`open_ranges` is the live list of range names, outermost first: a node is tagged with it at its creation."""

    def __init__(self, open_ranges: list[str]) -> None:
        from cupti import cupti

        self._cupti: Any = cupti
        self._open = open_ranges
        self._recs: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []
        self._n_dropped = 0

    @property
    def version(self) -> str | None:
        """Of the libcupti that this process has loaded: cupti-python does not tell."""
        found = re.search(r"/\S*libcupti\.so\S*", Path("/proc/self/maps").read_text())
        number = ctypes.c_uint32()
        if found and not ctypes.CDLL(found.group()).cuptiGetVersion(ctypes.byref(number)):
            return str(number.value)
        return None

    def start(self) -> None:
        """Collect device operations, and write graph nodes down as they are created and cloned. Before the capture."""
        kinds, ids = self._cupti.ActivityKind, self._cupti.CallbackIdResource
        subscriber = self._cupti.subscribe(self._on_node, None)
        for one in (ids.GRAPHNODE_CREATED, ids.GRAPHNODE_CLONED):
            self._cupti.enable_callback(1, subscriber, self._cupti.CallbackDomain.RESOURCE, one)
        self._cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._on_activities)
        for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET):
            self._cupti.activity_enable(kind)

    def _on_node(self, userdata: Any, domain: Any, callback: Any, data: Any) -> None:
        """An exception in here would be lost in C; a node that cannot be read counts as dropped."""
        try:
            graph = self._cupti.GraphData.from_ptr(data.resource_descriptor)
            name = self._cupti.CallbackIdResource(callback).name
            row = {"cb": name, "tag": list(self._open), "node": self._cupti.get_graph_node_id(graph.node)}
            if name == "GRAPHNODE_CLONED":
                row["orig"] = self._cupti.get_graph_node_id(graph.original_node)
            self._nodes.append(row)
        except Exception:
            self._n_dropped += 1

    def _on_activities(self, activities: Any) -> None:
        for activity in activities:
            try:
                self._recs.append(self._row(activity))
            except Exception:
                self._n_dropped += 1

    def _row(self, activity: Any) -> dict[str, Any]:
        return {
            "kind": self._cupti.ActivityKind(activity.kind).name,
            "name": getattr(activity, "name", None),
            "start": activity.start,
            "end": activity.end,
            "device": activity.device_id,
            "context": activity.context_id,
            "stream": activity.stream_id,
            "corr": activity.correlation_id,
            "graph": activity.graph_id,
            "node": activity.graph_node_id,
        }

    def stop(self) -> dict[str, Any]:
        """Everything that was collected."""
        self._cupti.activity_flush_all(_FLUSH_FORCED)
        lost = ctypes.c_size_t()
        self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(lost))
        return {
            "schema": "k3bench.cupti/1",
            "cupti_version": self.version,
            "n_dropped": self._n_dropped + lost.value,
            "recs": self._recs,
            "nodes": self._nodes,
        }
