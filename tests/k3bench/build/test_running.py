"""What is built is what runs: servers of both arms, the measuring job, and the job that builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import k3model
from k3bench.build import build_pair
from k3bench.measure.allocation import ARMS
from k3bench.records.measurement import Allocation
from k3bench.records.plan import Build, Plan
from k3bench.runnable import source_digest
from k3bench.serving.arms import served_arm
from k3bench.serving.endpoint import model_card
from k3bench.store import CampaignFolder, read_record, write_record

from .conftest import Repo

Planned = Callable[..., Plan]
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from k3model.value import VALUE

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": f"value-{VALUE}"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def git(path: Path, ref: str) -> str:
    """A build of kind git, as YAML."""
    return json.dumps({"kind": "git", "repository": str(path), "ref": ref})


def k3_repository(path: Path) -> Repo:
    """The k3model of this very checkout in a repository of its own; main differs from main~1 by one comment."""
    repo = Repo.__new__(Repo)
    repo.path = path
    shutil.copytree(Path(k3model.__file__).parent, path / "k3model", ignore=shutil.ignore_patterns("__pycache__"))
    repo.git("init", "--quiet", "--initial-branch=main")
    repo.commit("# one\n", "k3model/marker.py")
    repo.commit("# two\n", "k3model/marker.py")
    return repo


def k3bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a folder of its own, where this checkout's k3model is importable as well."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "k3bench", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_a_program_of_the_build_runs_from_its_own_work_tree(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Working folder and PYTHONPATH are the arm's, also where another package of that name is installed."""
    repo.commit(SERVER, "serve.py")
    repo.git("tag", "one")
    repo.commit("VALUE = 3\n")
    command = json.dumps([sys.executable, "serve.py", "{port}"])
    engine = f"openai, serving: {{command: {command}, ready_limit_s: 60}}"
    plan = planned(engine=engine, builds={"old": git(repo.path, "one"), "new": git(repo.path, "main")})
    builds = build_pair(plan, "p1", root=tmp_path / "r")
    said = {}
    for arm in ARMS:
        server = served_arm(plan.recipe, plan.observations[0], builds, arm, tmp_path / "r").start(tmp_path / "log")
        try:
            said[arm] = model_card(server.base_url).name
        finally:
            server.stop()
    assert said == {"before": "value-2", "after": "value-3"}


def test_the_k3_server_says_which_sources_it_runs_and_others_are_noticed(planned: Planned, tmp_path: Path) -> None:
    """Asked of the running process; sources that were changed after the build fail the run."""
    repo = k3_repository(tmp_path / "k3")
    plan = planned(builds={"old": git(repo.path, "main~1"), "new": git(repo.path, "main")})
    builds = build_pair(plan, "p1", root=tmp_path / "r")
    assert builds["before"].source_digest != builds["after"].source_digest
    arm = served_arm(plan.recipe, plan.observations[0], builds, "after", tmp_path / "r")
    server = arm.start(tmp_path / "log")
    try:
        assert model_card(server.base_url).source_digest == builds["after"].source_digest
        assert arm.sources(server.base_url) == (f"runs sources {builds['after'].source_digest[:12]}, as built", "")
        other = served_arm(plan.recipe, plan.observations[0], {**builds, "after": builds["before"]}, "after", tmp_path)
        assert "it runs sources" in other.sources(server.base_url)[1]
    finally:
        server.stop()


@pytest.fixture
def campaign(planned: Planned, tmp_path: Path) -> tuple[Path, Plan]:
    """A folder with the plan of an in-process campaign from one shared commit."""
    repo = k3_repository(tmp_path / "k3")
    arms = {arm: f"{{policy: {arm}, build: new}}" for arm in ARMS}
    plan = planned(engine="k3model", builds={"new": git(repo.path, "main")}, **arms)
    root = tmp_path / "work/results/built"
    write_record(CampaignFolder(root).plan, plan)
    return root, plan


def test_a_measuring_job_imports_the_build_that_both_arms_share(campaign: tuple[Path, Plan]) -> None:
    """The commit's sources differ from what is installed, and the engine refuses to run any others."""
    root, _ = campaign
    done = k3bench(root.parents[1], "measure", "results/built/plan.json", "--here")
    assert done.returncode == 0, done.stderr
    folder = CampaignFolder(root)
    build = read_record(folder.build("p1", "after"), Build)
    summary = read_record(folder.allocation("obs1", "alloc1"), Allocation)
    assert (summary.status, summary.reason) == ("measured", "")
    assert len(summary.accepted) == 4
    assert build.source_digest != source_digest(Path(k3model.__file__).parent)


def test_sources_that_were_changed_under_a_measuring_job_are_not_measured(campaign: tuple[Path, Plan]) -> None:
    """Nothing of other sources is ever called a measurement of the build."""
    root, _ = campaign
    folder = CampaignFolder(root)
    assert k3bench(root.parents[1], "build", "results/built/plan.json", "p1").returncode == 0
    place = read_record(folder.build("p1", "after"), Build).place
    (folder.tree(str(place)) / "k3model/marker.py").write_text("# three\n")
    k3bench(root.parents[1], "measure", "results/built/plan.json", "--here")
    summary = read_record(folder.allocation("obs1", "alloc1"), Allocation)
    assert summary.status == "failed"
    assert "does not run what was built" in summary.reason


def test_builds_run_as_jobs_where_the_recipe_says_so(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Once: a second call takes the finished job; a folder that was lost is built again."""
    builds = {"old": git(repo.path, "main~1"), "new": git(repo.path, "main")}
    root = tmp_path / "work/results/built"
    folder = CampaignFolder(root)
    write_record(folder.plan, planned(builds=builds, extra="build_where: job"))
    words = ("build", "results/built/plan.json", "p1", "--executor", "local")
    first = k3bench(tmp_path / "work", *words)
    assert first.returncode == 0, first.stderr
    assert "attempt 1: submitted" in first.stderr
    record = folder.build("p1", "after").read_bytes()
    again = k3bench(tmp_path / "work", *words)
    assert "submitted" not in again.stderr
    assert folder.build("p1", "after").read_bytes() == record
    shutil.rmtree(root / "builds")
    assert "attempt 2: submitted" in k3bench(tmp_path / "work", *words).stderr
    assert folder.build("p1", "after").read_bytes() == record


def test_a_job_that_could_not_build_says_why(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """The refusal of the job is the refusal of the command."""
    failing = {"command": [sys.executable, "-c", "raise SystemExit('no')"]}
    broken = json.dumps(json.loads(git(repo.path, "main")) | failing)
    root = tmp_path / "work/results/built"
    plan = planned(
        builds={"old": git(repo.path, "main~1"), "new": broken},
        extra="build_where: job\ndeclared_change: [commit, command]",
    )
    write_record(CampaignFolder(root).plan, plan)
    done = k3bench(tmp_path / "work", "build", "results/built/plan.json", "p1", "--executor", "local")
    assert done.returncode == 2
    assert "error: the build command ended with status 1: no" in done.stderr
    assert not CampaignFolder(root).build("p1", "after").exists()
