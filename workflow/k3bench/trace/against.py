"""Our values against independently computed ones, to the nanosecond. In: an analysed trace, an oracle file. Out: rows.

Two kinds of oracle: whole windows per device (`sets`), and families per graph (`families`). Out of scope: agreeing
with anything approximately.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from k3bench.errors import TraceError
from k3bench.records.residency import (
    UNATTRIBUTED,
    DeviceResidency,
    FamilyResidency,
    GraphResidency,
    Measure,
    TraceResidency,
)

_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Row:
    """One value: what the oracle says and what we say."""

    what: str
    expected: Any
    ours: Any

    @property
    def agrees(self) -> bool:
        """Equal; integers exactly."""
        return bool(self.expected == self.ours)


def read_oracle(path: Path) -> dict[str, Any]:
    """The oracle file as plain data."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        content = msgspec.json.decode(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("no object")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise TraceError(
            f"no oracle: {error}", where=str(path), fix="give FILE.oracle.json or FILE.family.json"
        ) from None
    return content


def is_family_oracle(oracle: dict[str, Any]) -> bool:
    """Families per graph, all complete steps kept (no warm-up dropped)."""
    return "sets" not in oracle


def compare(result: TraceResidency, oracle: dict[str, Any], where: str) -> list[Row]:
    """Every value of the oracle that has a counterpart."""
    try:
        rows = list(_families(result, oracle) if is_family_oracle(oracle) else _windows(result, oracle))
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(
            f"not an oracle of the expected shape: {error!r}", where=where, fix="see the traces' README"
        ) from None
    if not rows:
        raise TraceError(
            "the oracle holds no value to compare", where=where, fix="give FILE.oracle.json or FILE.family.json"
        )
    return rows


def _windows(result: TraceResidency, oracle: dict[str, Any]) -> Iterator[Row]:
    devices = {str(d.device): d for d in result.devices}
    for name, of_device in oracle["sets"].items():
        for device, values in of_device.items():
            yield from _window(f"{name}/device {device}", values, devices.get(device), kernels_only=name == "kernels")
    if "exact_duplicate_ops" in oracle:
        yield Row("exact_duplicate_ops", oracle["exact_duplicate_ops"], result.counts.n_exact_duplicates)
    if "graph_launch_calls" in oracle:
        yield Row("graph_launch_calls", oracle["graph_launch_calls"], result.counts.n_graph_launches)
    if "sub_ns_values" in oracle:
        yield Row("sub_ns_values", oracle["sub_ns_values"], result.counts.n_sub_ns)


def _window(what: str, values: dict[str, Any], device: DeviceResidency | None, *, kernels_only: bool) -> Iterator[Row]:
    if device is None:
        yield Row(f"{what} present", True, False)
        return
    measure = device.window_kernels_only if kernels_only else device.window
    lanes = {x.lane: x.kernels_busy_ns if kernels_only else x.busy_ns for x in device.lanes}
    ours = {
        "busy_ns": measure.busy_ns,
        "two_stream_ns": measure.residency_ns,
        "same_stream_overlap_ns": measure.same_lane_ns,
        "conc2_ns": measure.conc2_ns,
        "sum_dur_ns": measure.sum_duration_ns,
        "ops": measure.n_ops,
        "span_ns": device.span_kernels_only_ns if kernels_only else device.span_ns,
        "stream_busy_ns": {lane: busy for lane, busy in lanes.items() if busy},
        "streams": sum(busy > 0 for busy in lanes.values()),
    }
    for key, value in ours.items():
        if key in values:
            yield Row(f"{what} {key}", values[key], value)
    for kernel in values.get("top_kernels", ()) if not kernels_only else ():
        yield _top_kernel(what, kernel, device)


_LETTERS = {"C": "memcpy", "S": "memset"}
_CUT = 120


def _top_kernel(what: str, kernel: dict[str, Any], device: DeviceResidency) -> Row:
    """An oracle names a kernel by its first characters, or nsys by its short name; several of ours can fit."""
    name = _LETTERS.get(kernel["name"], kernel["name"])
    expected = (kernel["n"], kernel["dur_ns"], kernel["hidden_ns"])
    fitting = [k for k in device.kernels if name in (k.name[:_CUT], k.short_name[:_CUT], k.kind)]
    each = [(k.n, k.duration_ns, k.hidden_other_lane_ns) for k in fitting]
    together = tuple(sum(column) for column in zip(*each, strict=True)) if each else ()
    return Row(f"{what} kernel {name[:40]}", expected, expected if expected in each else together)


def _families(result: TraceResidency, oracle: dict[str, Any]) -> Iterator[Row]:
    graphs = {g.graph: g for d in result.devices for g in d.graphs}
    for name, expected in oracle.items():
        graph = graphs.get(name)
        if graph is None:
            yield Row(f"graph {name} present", True, False)
            continue
        yield Row(f"graph {name} steps", expected["steps"], graph.n_steps_kept)
        yield Row(f"graph {name} ops_per_step", expected["ops_per_step"], graph.ops_per_step)
        yield Row(f"graph {name} dropped_incomplete", expected["dropped_incomplete"], graph.n_dropped_incomplete)
        for family, values in expected["families"].items():
            yield from _family(f"graph {name} {family}", values, _named(graph, family), graph.n_steps_kept)


def _named(graph: GraphResidency, family: str) -> FamilyResidency | None:
    wanted = UNATTRIBUTED if family == "none" else family
    return next((f for f in graph.families if f.family == wanted), None)


def _family(what: str, values: dict[str, Any], ours: FamilyResidency | None, n_steps: int) -> Iterator[Row]:
    if ours is None:
        yield Row(f"{what} present", True, False)
        return
    steps, every, kernels = values["per_step"], ours.all_ops, ours.kernels_only
    for key, mine in (
        ("busy_ns", every.busy_per_step_ns),
        ("two_stream_ns", every.residency_per_step_ns),
        ("conc2_ns", every.conc2_per_step_ns),
        ("kernels_only_busy_ns", kernels.busy_per_step_ns),
        ("kernels_only_two_stream_ns", kernels.residency_per_step_ns),
    ):
        yield Row(f"{what} {key} per step", [step[key] for step in steps], list(mine))
    yield Row(
        f"{what} segments in all steps", sum(s["segments"] for s in steps), round(ours.segments_per_step * n_steps)
    )
    yield Row(f"{what} lanes in all steps", sum(s["lanes"] for s in steps), round(ours.lanes_per_step * n_steps))
    yield Row(f"{what} share", values["share_two_stream_of_busy"], _share(every))
    for name, kernel in values["kernels"].items():
        yield Row(f"{what} kernel {name}", _expected(kernel), _kernel(ours, name))


def _share(measure: Measure) -> float | None:
    return measure.residency_ns / measure.busy_ns if measure.busy_ns else None


_KERNEL_KEYS = ("n", "dur_ns", "hidden_in_family_ns", "hidden_any_family_ns", "hidden_any_op_ns")


def _expected(kernel: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(kernel[key] for key in _KERNEL_KEYS)


def _kernel(family: FamilyResidency, name: str) -> tuple[int, ...]:
    """Instances of one display name together, as the oracle has them."""
    rows = [
        (k.n, k.duration_ns, k.hidden_same_family_ns, k.hidden_any_family_ns, k.hidden_any_op_ns)
        for k in family.kernels
        if k.short_name == name
    ]
    return tuple(sum(column) for column in zip(*rows, strict=True)) if rows else ()
