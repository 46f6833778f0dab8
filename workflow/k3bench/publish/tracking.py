"""MLflow in line with the records: a projection, synced by one writer, idempotent, cheap to throw away and rebuild.

In: `Projected` runs. Out: MLflow runs, one per key with its digest; what each run is called there. The only file that
imports mlflow, and only inside functions. Out of scope: what is projected (`projection.py`), saved views (`views.py`).

Order of writing a run: create with `k3bench.pending`, log everything, mark older runs of the key superseded, terminate,
set `k3bench.digest` last. Killed anywhere, the next sync finds the pending run and goes on; points that are there
already are the same points, because their times come from the records.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3bench.errors import TrackingError
from k3bench.publish.lock import single_writer
from k3bench.publish.projected import Projected
from k3bench.publish.target import Target, without_password

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEY, DIGEST, PENDING = "k3bench.key", "k3bench.digest", "k3bench.pending"
SUPERSEDED, STATE = "k3bench.superseded_by", "state"
#: MLflow's own limits for one call.
BATCH_ALL, BATCH_OTHERS = 1000, 100
STEP_METRICS = BATCH_ALL - 2 * BATCH_OTHERS
#: What MLflow must know before it is imported: no telemetry, no emoji on stdout, bounded waiting.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_TRUNCATE_LONG_VALUES": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
}


@dataclass
class Synced:
    """What a sync did."""

    experiments: dict[str, str] = field(default_factory=dict)
    run_ids: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    superseded: int = 0
    version: str = ""


@contextmanager
def connected(target: Target) -> Iterator[MlflowClient]:
    """A client whose failures are `TrackingError`s, as the only writer of its database."""
    target.refuse_unusable()
    os.environ.update(ENVIRONMENT)
    with single_writer(target.lock):
        try:
            from mlflow import MlflowClient

            _hush()  # importing mlflow sets its loggers up
            client = MlflowClient(tracking_uri=target.uri)
            client.search_experiments(max_results=1)  # makes or upgrades the tables, under our lock
            yield client
        except TrackingError:
            raise
        except Exception as error:
            if _ours(error):
                raise
            raise TrackingError(
                f"MLflow could not be written: {_first_line(error)}",
                where=target.shown,
                fix="the records and the report are intact; bring MLflow back and run the same command again",
            ) from error


def _ours(error: Exception) -> bool:
    """Mistakes of our own are not MLflow's: let them be seen as they are."""
    return type(error).__module__.split(".")[0] in ("builtins", "k3bench") and not isinstance(error, OSError)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_password(lines[0] if lines else type(error).__name__)[:300]


def _hush() -> None:
    """Keep MLflow's chatter off the terminal; errors pass."""
    import logging

    for name in ("mlflow", "mlflow.store.db.utils", "alembic", "alembic.runtime.migration"):
        logging.getLogger(name).setLevel(logging.ERROR)


def sync(target: Target, experiment: str, study: str, runs: Sequence[Projected]) -> Synced:
    """Bring MLflow in line with `runs`. Raises `TrackingError` once, with nothing doubled whatever happened before."""
    with connected(target) as client:
        return sync_with(client, target, experiment, study, runs)


def sync_with(client: MlflowClient, target: Target, experiment: str, study: str, runs: Sequence[Projected]) -> Synced:
    """The same with a client at hand."""
    import mlflow

    done = Synced(version=mlflow.__version__)
    for role, name in (("measurement", experiment), ("verdict", f"{experiment}.verdicts")):
        mine = [run for run in runs if run.role == role]
        done.experiments[role] = _experiment(client, target, name)
        there = _existing(client, done.experiments[role], study)
        for run in mine:
            _sync_one(client, done, done.experiments[role], run, there.get(run.key, []))
    return done


def _experiment(client: MlflowClient, target: Target, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        if found.lifecycle_stage != "active":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)
    location = target.artifacts_of(name)
    return str(
        client.create_experiment(
            name, artifact_location=location, tags={"mlflow.experimentKind": "custom_model_development"}
        )
    )


def _existing(client: MlflowClient, experiment: str, study: str) -> dict[str, list[Run]]:
    """Every run of the study by key. `study` is a record's name, so it cannot break out of the filter's quotes."""
    found: dict[str, list[Run]] = defaultdict(list)
    page = None
    while True:
        runs = client.search_runs(
            [experiment], filter_string=f"tags.study = '{study}'", max_results=1000, page_token=page
        )
        for run in runs:
            found[run.data.tags.get(KEY, "")].append(run)
        page = runs.token
        if not page:
            return found


def _sync_one(client: MlflowClient, done: Synced, experiment: str, run: Projected, there: Iterable[Run]) -> None:
    there = list(there)
    whole = [r for r in there if r.data.tags.get(DIGEST) == run.digest and r.info.status == "FINISHED"]
    begun = [r for r in there if r.data.tags.get(PENDING) == run.digest and r not in whole]
    whole.sort(key=lambda r: r.data.tags.get(STATE) != "current")
    if whole:
        kept = whole[0].info.run_id
        done.skipped.append(run.key)
    else:
        kept = begun[0].info.run_id if begun else _create(client, experiment, run)
        _log(client, kept, run)
        done.written.append(run.key)
    for other in there:
        if other.info.run_id != kept and not _is_superseded(other, kept):
            _supersede(client, other, kept, run.end_ms)
            done.superseded += 1
    _revive(client, kept, there)
    if not whole:
        client.set_terminated(kept, status="FINISHED", end_time=run.end_ms)
        client.set_tag(kept, DIGEST, run.digest)
    done.run_ids[run.key] = kept


def _is_superseded(old: Run, new: str) -> bool:
    tags = old.data.tags
    return tags.get(STATE) == "superseded" and tags.get(SUPERSEDED) == new and old.info.status != "RUNNING"


def _revive(client: MlflowClient, kept: str, there: list[Run]) -> None:
    """Records can return to what they were: a run that an earlier sync superseded is then the current one again."""
    for run in there:
        if run.info.run_id == kept and run.data.tags.get(STATE) != "current":
            client.set_tag(kept, STATE, "current")
        if run.info.run_id == kept and SUPERSEDED in run.data.tags:
            client.delete_tag(kept, SUPERSEDED)


def _supersede(client: MlflowClient, old: Run, new: str, end_ms: int) -> None:
    """Mark an older run; one that a killed sync left open is closed, or it would run for ever."""
    client.set_tag(old.info.run_id, STATE, "superseded")
    if old.info.status != "FINISHED":
        client.set_terminated(old.info.run_id, status="KILLED", end_time=end_ms)
    client.set_tag(old.info.run_id, SUPERSEDED, new)


def _create(client: MlflowClient, experiment: str, run: Projected) -> str:
    study = run.tags.get("study", "")
    tags = {KEY: run.key, PENDING: run.digest, "study": study, "role": run.role, STATE: "current"}
    made = client.create_run(experiment, start_time=run.start_ms or 1, run_name=run.name, tags=tags)
    return str(made.info.run_id)


def _log(client: MlflowClient, run_id: str, run: Projected) -> None:
    """Everything the run holds: in few calls, each atomic, none of which can double a point."""
    from mlflow.entities import Metric, Param, RunTag

    metrics = [Metric(p.key, p.value, p.time_ms or 1, p.step) for p in run.points]
    params = [Param(k, v) for k, v in run.params.items()]
    tags = [RunTag(k, v) for k, v in {**run.tags, "role": run.role, STATE: "current"}.items()]
    for i in range(max(-(-len(metrics) // STEP_METRICS), -(-max(len(tags), len(params)) // BATCH_OTHERS))):
        few, many = slice(i * BATCH_OTHERS, (i + 1) * BATCH_OTHERS), slice(i * STEP_METRICS, (i + 1) * STEP_METRICS)
        client.log_batch(run_id, metrics=metrics[many], params=params[few], tags=tags[few])
    if run.artifacts:
        _upload(client, run_id, run.artifacts)


def _upload(client: MlflowClient, run_id: str, artifacts: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix="k3bench-") as folder:
        for name, data in artifacts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        client.log_artifacts(run_id, folder)


# --- looking instead of writing -------------------------------------------------------------------------------------


def differences(target: Target, experiment: str, study: str, runs: Sequence[Projected]) -> list[str]:
    """What MLflow holds otherwise than the records, a sentence each; empty when they are in line. Writes nothing."""
    if not target.exists():
        return [f"no MLflow database yet: {target.shown}"]
    with connected(target) as client:
        found: list[str] = []
        for role, name in (("measurement", experiment), ("verdict", f"{experiment}.verdicts")):
            there = client.get_experiment_by_name(name)
            runs_there = _existing(client, there.experiment_id, study) if there else {}
            mine = [run for run in runs if run.role == role]
            for run in mine:
                found += _differences_of(client, run, runs_there.get(run.key, []))
            extra = set(runs_there) - {run.key for run in mine}
            found += [f"{key or 'a run without key'}: in MLflow, but no record of it" for key in sorted(extra)]
        return found


def _differences_of(client: MlflowClient, run: Projected, there: list[Run]) -> list[str]:
    current = [r for r in there if r.data.tags.get(SUPERSEDED) is None]
    if not current:
        return [f"{run.key}: not in MLflow"]
    if len(current) > 1:
        return [f"{run.key}: {len(current)} current runs in MLflow"]
    only = current[0]
    if only.info.status != "FINISHED" or DIGEST not in only.data.tags:
        return [f"{run.key}: its last sync was broken off"]
    if only.data.tags[DIGEST] != run.digest:
        return [f"{run.key}: MLflow holds an older version"]
    return [*_wrong_words(run, only), *_wrong_values(client, run, only.info.run_id)]


def _wrong_words(run: Projected, there: Run) -> list[str]:
    """Tags and params that are not what was written."""
    return [
        f"{run.key}: {kind} {name} differs from the records"
        for kind, wanted, got in (("tag", run.tags, there.data.tags), ("param", run.params, there.data.params))
        for name in sorted(wanted)
        if got.get(name) != wanted[name]
    ]


def _wrong_values(client: MlflowClient, run: Projected, run_id: str) -> list[str]:
    """The digest says what was written; somebody may have written since."""
    wanted: dict[str, set[tuple[float, int, int]]] = defaultdict(set)
    for p in run.points:
        wanted[p.key].add((p.value, p.step, p.time_ms or 1))
    found = []
    for key in sorted(wanted):
        got = [(m.value, m.step, m.timestamp) for m in client.get_metric_history(run_id, key)]
        if sorted(got) != sorted(wanted[key]):
            found.append(f"{run.key}: history of {key} differs from the records")
    return found


def rebuild(target: Target, syncs: Callable[[Target], Any]) -> Path | None:
    """Build a new sqlite database beside the old one and put it in its place; returns where the old one went.

    Only for a local file: a server's database belongs to whoever runs the server.
    """
    database = target.database
    if database is None:
        raise TrackingError(
            "only a local sqlite database can be rebuilt from here",
            where=target.shown,
            fix="on a server, delete the study's runs in the UI and publish again: the records hold everything",
        )
    fresh = target.beside(".rebuilding")
    assert fresh.database is not None
    with single_writer(target.lock):
        for leftover in (fresh.database, Path(f"{fresh.database}-journal")):
            leftover.unlink(missing_ok=True)
        syncs(fresh)
        kept = None
        if database.exists():
            kept = database.with_name(database.name + ".replaced")
            os.replace(database, kept)
        os.replace(fresh.database, database)
    return kept
