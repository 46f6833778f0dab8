"""MLflow in line with the records: nothing doubled, nothing half, whatever was killed or out of reach."""

from __future__ import annotations

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic import Spec, make, write

from k3bench.errors import TrackingError
from k3bench.publish.lock import single_writer
from k3bench.publish.projected import Point, Projected
from k3bench.publish.stage import publish
from k3bench.publish.target import target_for
from k3bench.publish.track import check, rebuild, track, wanted
from k3bench.publish.tracking import connected, differences, sync
from k3bench.records.receipt import Receipt
from k3bench.store import read_record

SPEC = Spec(name="small", racks=("r1", "r2"), blocks=2, effects_pct={1: -4.0, 4: -3.0}, superseded=3)
SYNC = (
    "import sys,pathlib; from k3bench.publish.track import track; p=pathlib.Path(sys.argv[1]);"
    "track(p, records=p.parent)"
)


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the developer's shell says, tests write to their own sqlite file."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with its report, and an empty database beside it: made once, copied for each test."""
    results = tmp_path_factory.mktemp("template") / "results"
    publish(write(SPEC, results / "small"))
    with connected(target_for(results, environment={})):
        pass
    return results


@pytest.fixture
def campaign(template: Path, tmp_path: Path) -> Path:
    """A campaign on disk; returns its comparison."""
    shutil.copytree(template, tmp_path / "results")
    return tmp_path / "results" / "small" / "comparison.json"


@pytest.fixture
def fresh(campaign: Path) -> Path:
    """The same where nobody has made a database yet."""
    database(campaign).unlink()
    return campaign


def database(comparison: Path) -> Path:
    return comparison.parent.parent / "mlflow.db"


def rows(comparison: Path, query: str) -> list[tuple]:  # type: ignore[type-arg]
    with sqlite3.connect(database(comparison)) as found:
        return found.execute(query).fetchall()


def histories(comparison: Path) -> Counter[tuple[str, str, float, int, int]]:
    """Every stored point of current runs, by key."""
    query = """select t.value, m.key, m.value, m.step, m.timestamp from metrics m
               join tags t on t.run_uuid = m.run_uuid and t.key = 'k3bench.key'
               join tags s on s.run_uuid = m.run_uuid and s.key = 'state' and s.value = 'current'"""
    return Counter(rows(comparison, query))


def projected_histories(comparison: Path) -> Counter[tuple[str, str, float, int, int]]:
    runs = wanted(comparison, comparison.parent).runs
    return Counter((r.key, p.key, p.value, p.step, p.time_ms or 1) for r in runs for p in set(r.points))


def statuses(comparison: Path) -> list[tuple[str, str]]:
    query = "select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid and t.key = 'k3bench.key'"
    return sorted(rows(comparison, query))


def in_line(comparison: Path) -> None:
    """One finished run a key, a digest on each, every history equal to the files."""
    keys = sorted(r.key for r in wanted(comparison, comparison.parent).runs)
    assert statuses(comparison) == [(key, "FINISHED") for key in keys]
    assert len(rows(comparison, "select * from tags where key = 'k3bench.digest'")) == len(keys)
    assert histories(comparison) == projected_histories(comparison)


def test_every_tpot_is_found_again_exact(campaign: Path) -> None:
    """After a sync each measured TPOT, accepted or superseded, stands in the database with its very bits."""
    track(campaign, records=campaign.parent)
    query = "select m.key, m.step, m.value from metrics m where m.key glob '*_c[0-9]*/tpot_median_ms'"
    stored = Counter(value for _, _, value in rows(campaign, query))
    made = make(SPEC)
    assert stored == Counter(p.metrics["tpot_median_ms"] for p in (*made.points, *made.fragments))
    in_line(campaign)


def test_a_second_sync_writes_nothing(campaign: Path) -> None:
    """The same records again: no new run, no changed row."""
    first = track(campaign, records=campaign.parent)
    before = {table: rows(campaign, f"select * from {table}") for table in ("runs", "metrics", "tags", "params")}
    said: list[str] = []
    second = track(campaign, records=campaign.parent, say=said.append)
    assert {table: rows(campaign, f"select * from {table}") for table in before} == before
    assert first.runs == second.runs
    assert "0 MLflow runs written" in said[-1]


def test_changed_records_supersede_the_older_run(campaign: Path) -> None:
    """Measured again with other values: new runs are current, the older ones stay and are marked."""
    track(campaign, records=campaign.parent)
    write(replace(SPEC, seed=1), campaign.parent)
    publish(campaign)
    receipt = track(campaign, records=campaign.parent)
    states = Counter(value for (value,) in rows(campaign, "select value from tags where key = 'state'"))
    assert states == {"current": len(receipt.runs), "superseded": len(receipt.runs)}
    assert receipt.superseded == len(receipt.runs)
    assert histories(campaign) == projected_histories(campaign)
    assert check(campaign, records=campaign.parent) == []


def test_the_receipt_names_runs_and_links(campaign: Path) -> None:
    """Ids and links live in the receipt, never in the report."""
    track(campaign, records=campaign.parent)
    receipt = read_record(campaign.parent / "receipt.json", Receipt)
    assert {link.name for link in receipt.links} == {"table", "curves", "verdicts", "verdict"}
    ids = {run.run_id for run in receipt.runs}
    text = (campaign.parent / "report" / "pr.md").read_text() + (campaign.parent / "report" / "index.html").read_text()
    assert not [i for i in ids if i in text]


def test_reports_and_records_are_artifacts(campaign: Path) -> None:
    """The verdict run carries the report; a measurement run carries its records and per-step arrays."""
    receipt = track(campaign, records=campaign.parent)
    home = campaign.parent.parent / "mlartifacts"
    verdict = next(r.run_id for r in receipt.runs if r.role == "verdict")
    arm = next(r.run_id for r in receipt.runs if r.name == "obs1.before")
    kept = home / "small.verdicts" / verdict / "artifacts"
    assert (kept / "report" / "pr.md").read_bytes() == (campaign.parent / "report" / "pr.md").read_bytes()
    raw = sorted((home / "small" / arm / "artifacts" / "raw").iterdir())
    points = [p for p in make(SPEC).points if p.observation == "obs1" and p.name.arm == "before"]
    assert {p.raw for p in points} <= {path.name for path in raw}


def test_more_than_mlflow_takes_in_one_call_is_all_there(tmp_path: Path) -> None:
    """2,500 metrics, 230 tags and 150 params of one run: none is lost at the borders of calls."""
    points = tuple(Point(f"m{i}", float(i), 0, 1_700_000_000_000) for i in range(2500))
    run = replace(
        many(1, 1)[0],
        points=points,
        tags={"study": "bulk", **{f"t{i}": str(i) for i in range(230)}},
        params={f"p{i}": str(i) for i in range(150)},
    )
    target = target_for(tmp_path, environment={})
    sync(target, "bulk", "bulk", [run])
    assert differences(target, "bulk", "bulk", [run]) == []
    with sqlite3.connect(tmp_path / "mlflow.db") as found:
        counts = [found.execute(f"select count(*) from {t}").fetchone()[0] for t in ("metrics", "params")]
    assert counts == [2500, 150]


# --- killed ---------------------------------------------------------------------------------------------------------


#: Says when everything is loaded, so that a kill hits the writing and not Python's imports.
READY_SYNC = (
    "import os; from k3bench.publish.tracking import ENVIRONMENT; os.environ.update(ENVIRONMENT);"
    "import mlflow, mlflow.store.tracking.sqlalchemy_store; print('ready', flush=True);" + SYNC
)


def begun_sync(campaign: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", READY_SYNC, str(campaign)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(scope="session")
def revisions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three revisions of the campaign with other values, each with its report."""
    homes = [tmp_path_factory.mktemp("revisions") / "small" for _ in range(3)]
    for seed, home in enumerate(homes):
        publish(write(replace(SPEC, seed=seed), home))
    return homes


def seconds_of_a_sync(campaign: Path, copy: Path) -> float:
    """How long a whole sync takes here and now, on a copy."""
    shutil.copytree(campaign.parent.parent, copy)
    process = begun_sync(copy / campaign.parent.name / campaign.name)
    began = time.monotonic()
    assert process.wait(300) == 0
    return time.monotonic() - began


def killed_syncs(campaign: Path, revisions: list[Path], times: int, seconds: float) -> tuple[int, int]:
    """Sync one revision after the other and kill each sync at a random moment of its writing.

    Returns how many died, and how many of them left a run open.
    """
    chance, died, half = random.Random(17103), 0, 0
    for i in range(times):
        shutil.copytree(revisions[i % 3], campaign.parent, dirs_exist_ok=True)
        process = begun_sync(campaign)
        try:
            process.wait(chance.uniform(0.0, 0.9) * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            died += 1
            half += ("RUNNING",) in rows(campaign, "select status from runs")
    return died, half


@pytest.mark.parametrize("times", [5, pytest.param(25, marks=pytest.mark.all_faults)])
def test_killed_syncs_leave_nothing_doubled(campaign: Path, revisions: list[Path], tmp_path: Path, times: int) -> None:
    """Syncs of changing records killed at random, then one left alone: one current run a key, equal to the files."""
    seconds = seconds_of_a_sync(campaign, tmp_path / "copy")
    died, half = killed_syncs(campaign, revisions, times, seconds)
    track(campaign, records=campaign.parent)
    keys = sorted(r.key for r in wanted(campaign, campaign.parent).runs)
    assert sorted(rows(campaign, CURRENT)) == [(key, "FINISHED") for key in keys]
    assert histories(campaign) == projected_histories(campaign)
    assert check(campaign, records=campaign.parent) == []
    assert rows(campaign, "select * from runs where status = 'RUNNING'") == []
    print(f"{times} syncs, {died} killed, {half} left a run open; then {len(keys)} keys, 0 doubled, 0 open")


CURRENT = """select k.value, r.status from runs r
             join tags k on k.run_uuid = r.run_uuid and k.key = 'k3bench.key'
             join tags s on s.run_uuid = r.run_uuid and s.key = 'state' and s.value = 'current'
             join tags d on d.run_uuid = r.run_uuid and d.key = 'k3bench.digest'"""


def test_several_syncs_at_once_make_each_run_once(fresh: Path) -> None:
    """Four processes on a database that does not exist yet: the lock makes them one after the other."""
    processes = [subprocess.Popen([sys.executable, "-c", SYNC, str(fresh)]) for _ in range(4)]
    assert [process.wait(300) for process in processes] == [0, 0, 0, 0]
    in_line(fresh)


# --- looking and rebuilding -----------------------------------------------------------------------------------------


def test_check_finds_what_differs(campaign: Path) -> None:
    """A value changed by hand, a run without a record, a record without a run: each is one sentence."""
    receipt = track(campaign, records=campaign.parent)
    assert check(campaign, records=campaign.parent) == []
    run = next(r.run_id for r in receipt.runs if r.name == "obs1.after")
    with sqlite3.connect(database(campaign)) as found:
        found.execute(
            "update metrics set value = value + 1 where key = 'latency/tpot_median_ms' and run_uuid = ?", (run,)
        )
    assert check(campaign, records=campaign.parent) == [
        "small/obs1/after: history of latency/tpot_median_ms differs from the records"
    ]
    with sqlite3.connect(database(campaign)) as found:
        found.execute("update tags set value = 'small/nobody/after' where key = 'k3bench.key' and run_uuid = ?", (run,))
    assert check(campaign, records=campaign.parent) == [
        "small/obs1/after: not in MLflow",
        "small/nobody/after: in MLflow, but no record of it",
    ]


def test_rebuild_makes_the_same_from_the_records_alone(campaign: Path) -> None:
    """A database that was tampered with is replaced by one made of the records; the old file is kept."""
    track(campaign, records=campaign.parent)
    wanted_before = histories(campaign)
    database(campaign).write_bytes(b"no database at all")
    with pytest.raises(TrackingError, match="cannot be used"):
        track(campaign, records=campaign.parent)
    receipts = rebuild(campaign.parent.parent)
    assert [r.campaign for r in receipts] == ["small"]
    assert histories(campaign) == wanted_before
    in_line(campaign)
    assert database(campaign).with_name("mlflow.db.replaced").read_bytes() == b"no database at all"


def test_check_without_a_database_says_so(fresh: Path) -> None:
    """Looking makes nothing: no database appears because somebody asked."""
    assert "no MLflow database yet" in check(fresh, records=fresh.parent)[0]
    assert not database(fresh).exists()


# --- out of reach ---------------------------------------------------------------------------------------------------


def test_a_folder_is_refused_as_store(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's file store is gone: say what to use instead."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
    with pytest.raises(TrackingError, match="a folder is no MLflow store") as error:
        track(campaign, records=campaign.parent)
    assert "sqlite:" in error.value.fix


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write")
def test_an_unwritable_place_is_refused_at_once(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No minutes of retries where the folder cannot be written."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/nowhere/mlflow.db")
    with pytest.raises(TrackingError, match="cannot be used"):
        track(campaign, records=campaign.parent)
    assert (campaign.parent / "report" / "pr.md").exists()


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
    for connection in held:
        connection.close()


def test_a_server_that_is_down_costs_seconds_and_no_report(campaign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens: one clear error within half a minute; password unprinted; records and report intact."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:hunter2@127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(TrackingError, match="MLflow could not be written") as error:
        track(campaign, records=campaign.parent)
    assert time.monotonic() - began < 60
    assert "hunter2" not in str(error.value)
    assert "the report are intact" in error.value.fix
    assert (campaign.parent / "report" / "pr.md").exists()
    assert not (campaign.parent / "receipt.json").exists()


@pytest.mark.all_faults
def test_a_server_that_never_answers_is_given_up(
    campaign: Path, silent_server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that hangs ends after the timeouts that we set, not MLflow's minutes."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent_server}")
    began = time.monotonic()
    with pytest.raises(TrackingError):
        track(campaign, records=campaign.parent)
    assert time.monotonic() - began < 90


def test_a_lock_that_is_held_is_named(tmp_path: Path) -> None:
    """A second writer waits a bounded time and says which file to look at."""
    lock = tmp_path / "mlflow.db.lock"
    with single_writer(lock), pytest.raises(TrackingError, match="another process") as error:  # noqa: SIM117
        with single_writer(lock, wait_s=0.3):
            pass
    assert str(lock) in str(error.value)


def test_the_default_store_is_a_file_beside_the_results(tmp_path: Path) -> None:
    """Nothing to start: sqlite under results/, unless the environment names another."""
    assert target_for(tmp_path, environment={}).database == tmp_path / "mlflow.db"
    named = target_for(tmp_path, environment={"MLFLOW_TRACKING_URI": "postgresql://u:p@db/k3"})
    assert named.shown == "postgresql://…@db/k3"


def test_publishing_imports_no_mlflow(campaign: Path) -> None:
    """The report needs no MLflow; no measuring process ever loads it."""
    code = (
        "import sys,pathlib; from k3bench.publish.stage import publish; publish(pathlib.Path(sys.argv[1]));"
        "import k3bench.publish.tracking, k3bench.publish.track; assert 'mlflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(campaign)], check=True)


def test_nothing_leaves_the_machine(campaign: Path) -> None:
    """Telemetry is off before MLflow is imported."""
    code = SYNC + "; import os; print(os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['DO_NOT_TRACK'])"
    environment = {k: v for k, v in os.environ.items() if k != "CI"}
    done = subprocess.run([sys.executable, "-c", code, str(campaign)], env=environment, capture_output=True, text=True)
    assert done.stdout.split()[-2:] == ["true", "true"]
    assert done.stderr == ""


# --- how fast -------------------------------------------------------------------------------------------------------


def many(runs: int, metrics: int) -> list[Projected]:
    return [
        Projected(
            key=f"bulk/obs{i}/before", name=f"obs{i}.before", role="measurement", start_ms=1_700_000_000_000 + i,
            end_ms=1_700_000_001_000 + i, tags={"study": "bulk", "arm": "before"}, params={"isl": "8192"},
            points=tuple(Point(f"m{j}", 13.0 + i / 7 + j, j % 8, 1_700_000_000_500) for j in range(metrics)),
        )
        for i in range(runs)
    ]  # fmt: skip


def test_many_runs_of_many_metrics_arrive_whole(tmp_path: Path) -> None:
    """Batches lose nothing: every value of forty runs of sixty metrics is found again."""
    target = target_for(tmp_path, environment={})
    runs = many(40, 60)
    with connected(target):
        pass
    assert len(sync(target, "bulk", "bulk", runs).written) == 40
    with sqlite3.connect(tmp_path / "mlflow.db") as found:
        held = found.execute("select key, value from metrics where key like 'm%'").fetchall()
    assert sorted(held) == sorted((p.key, p.value) for run in runs for p in run.points)


def test_records_that_return_make_the_older_run_current_again(campaign: Path, revisions: list[Path]) -> None:
    """Revision A, then B, then A, then B: always one current run a key, and it is the one of the records."""
    for i in (0, 1, 0, 1, 0):
        shutil.copytree(revisions[i], campaign.parent, dirs_exist_ok=True)
        track(campaign, records=campaign.parent)
        assert check(campaign, records=campaign.parent) == []
        assert histories(campaign) == projected_histories(campaign)
    states = Counter(value for (value,) in rows(campaign, "select value from tags where key = 'state'"))
    assert states == {"current": 9, "superseded": 9}
