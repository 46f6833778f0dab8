"""Saved views of the MLflow UI, written through its tags: one link opens the right table, one the right curves.

In: experiment ids, a comparison. Out: experiment tags and links. MLflow does not document these tags, so this comes
last and never fails a sync. Out of scope: runs.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from k3bench.publish import series
from k3bench.records.comparison import Comparison

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOTE = (
    "One run is one arm of one observation. In curves (sections with a slash) **step = concurrency**; "
    "`c1_tpot_ms` is the same value as a table column; `runs_c1/...` holds every single run, step = its position "
    "in the observation; `rel/tpot_pct` is % against the mean before value at that concurrency. Lower TPOT is "
    "better; MLflow's own difference chart paints it red. Superseded runs carry state = superseded."
)
VERDICT_NOTE = (
    "One run is the verdict of one revision of a campaign. delta = after against before in %; gain = the same "
    "with its sign turned so that positive is better; low and high = 95 % interval; band = what a zero change "
    "stays inside with 95 %. The description of a run is its pull-request section."
)


def write(client: MlflowClient, experiments: Mapping[str, str], record: Comparison) -> list[str]:
    """Notes and views of both experiments. Returns what could not be written, as sentences."""
    failed = []
    for role, experiment in experiments.items():
        tags = {"mlflow.note.content": NOTE if role == "measurement" else VERDICT_NOTE}
        for key, name, state in views(record):
            if key.startswith(f"{record.campaign}-verdict") == (role == "verdict"):
                tags[f"mlflow.sharedViewState.{key}"] = _packed(name, state)
        for tag, value in tags.items():
            try:
                client.set_experiment_tag(experiment, tag, value)
            except Exception as error:  # a view is a convenience: whatever goes wrong, the runs are there
                failed.append(f"saved view {tag} could not be written: {str(error).splitlines()[0][:200]}")
    return failed


def links(experiments: Mapping[str, str], record: Comparison, run_ids: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, address after the server's own) of the table, the curves, the verdicts and this verdict."""
    name = record.campaign
    measured, verdicts = experiments["measurement"], experiments["verdict"]
    yield "table", f"#/experiments/{measured}/runs?viewStateShareKey={name}-table"
    yield "curves", f"#/experiments/{measured}/runs?viewStateShareKey={name}-curves&compareRunsMode=CHART"
    yield "verdicts", f"#/experiments/{verdicts}/runs?viewStateShareKey={name}-verdicts"
    yield "verdict", f"#/experiments/{verdicts}/runs/{run_ids[f'{name}/verdict']}"


def views(record: Comparison) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(key, shown name, state) of each view. Keys are fixed, so that the next sync overwrites."""
    name, levels = record.campaign, series.levels(record)
    yield f"{name}-table", f"{name}: table", _state(
        f"tags.study = '{name}' and tags.state = 'current'",
        [*(f"metrics.`c{c}_tpot_ms`" for c in levels), *(f"metrics.`c{c}_rel_pct`" for c in levels),
         *(f"tags.`{t}`" for t in ("arm", "obs", "rack", "build", "job"))],
    )  # fmt: skip
    yield f"{name}-curves", f"{name}: curves by arm", {
        **_state(f"tags.study = '{name}' and tags.state = 'current'", ["tags.`arm`", "tags.`obs`"]),
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "arm"}]},
        "compareRunSections": [
            {"uuid": section, "name": title, "display": True, "isReordered": False}
            for section, title, _ in _sections(record)
        ],
        "isAccordionReordered": True,
        "compareRunCharts": list(_charts(record)),
    }  # fmt: skip
    yield f"{name}-verdicts", f"{name}: verdicts", _state(
        f"tags.study = '{name}'",
        ["tags.`verdict`", *(f"metrics.`c{c}_{m}`" for c in levels for m in ("delta_pct", "low_pct", "high_pct")),
         "tags.`state`"],
    )  # fmt: skip


def _state(search: str, columns: list[str]) -> dict[str, Any]:
    return {
        "searchFilter": search,
        "orderByKey": "attributes.start_time",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": ["attributes.`Duration`", *columns],
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsHiddenMode": "SHOWALL",
    }


def _sections(record: Comparison) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(id, title, metrics) of each section; one without numbers is left out."""
    yield "k3-speed", "Against concurrency", ("rel/tpot_pct", "latency/tpot_median_ms", "throughput/output_tok_s")
    if record.mechanism and record.kind == "measured":
        families = sorted({f.family.lower() for f in record.mechanism.families})
        yield "k3-overlap", "Overlap", tuple(f"overlap/{family}_residency_ms" for family in families)


def _range(record: Comparison, metric: str) -> dict[str, float]:
    """Grouped charts begin at 0, where an effect of a few percent cannot be seen."""
    values = [run.value for run in record.runs if run.value is not None]
    if metric != "latency/tpot_median_ms" or not values:
        return {}
    return {"yMin": 0.97 * min(values), "yMax": 1.03 * max(values)}


def _charts(record: Comparison) -> Iterator[dict[str, Any]]:
    for section, metric in ((section, metric) for section, _, metrics in _sections(record) for metric in metrics):
        yield {
            "type": "LINE",
            "uuid": f"k3-{metric.replace('/', '-')}",
            "metricSectionId": section,
            "metricKey": metric,
            "selectedMetricKeys": [metric],
            "isGenerated": False,
            "deleted": False,
            "runsCountToCompare": 100,
            "xAxisKey": "step",
            "xAxisScaleType": "linear",
            "selectedXAxisMetricKey": "",
            "scaleType": "linear",
            "lineSmoothness": 0,
            "useGlobalLineSmoothing": False,
            "useGlobalXaxisKey": False,
            "displayPoints": True,
            "displayOriginalLine": True,
            "yAxisKey": "metric",
            "yAxisExpressions": [],
            "range": _range(record, metric),
        }


def _packed(name: str, state: Mapping[str, Any]) -> str:
    """As the UI itself packs it; fixed times, so that the same view is the same tag."""
    raw = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    packed = "deflate;" + base64.b64encode(zlib.compress(raw, 9)).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": packed}, separators=(",", ":"))
