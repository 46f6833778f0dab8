"""Builds from git: a work tree at one full commit, what may lie on top of it, and how two arms are related."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from k3bench.build import build_pair
from k3bench.errors import BuildError
from k3bench.records.measurement import Arm
from k3bench.records.plan import Build, Plan
from k3bench.store import CampaignFolder

from .conftest import TWO_PAIRS, Repo

Planned = Callable[..., Plan]


def git(repo: Repo, ref: str, **more: object) -> str:
    """A build of kind git, as YAML."""
    return json.dumps({"kind": "git", "repository": str(repo.path), "ref": ref} | more)


def value_of(root: Path, build: Build) -> str:
    """What the built package says."""
    assert build.place is not None
    return (CampaignFolder(root).tree(build.place) / "k3model/value.py").read_text()


def both(planned: Planned, root: Path, old: str, new: str, pair: str = "p1", **more: str) -> dict[Arm, Build]:
    """Build a pair of two named builds."""
    return build_pair(planned(builds={"old": old, "new": new}, **more), pair, root=root)


def test_each_arm_gets_a_work_tree_at_the_full_commit_its_ref_names(
    planned: Planned, repo: Repo, tmp_path: Path
) -> None:
    """Branch, tag and short commit end as forty digits, and the checkout itself is not touched."""
    repo.git("tag", "v1", "main~1")
    made = both(planned, tmp_path / "r", git(repo, "v1"), git(repo, repo.git("rev-parse", "--short", "main")))
    assert made["before"].git_commit == repo.git("rev-parse", "main~1")
    assert made["after"].git_commit == repo.git("rev-parse", "main")
    assert [value_of(tmp_path / "r", b) for b in made.values()] == ["VALUE = 1\n", "VALUE = 2\n"]
    assert made["before"].source_digest != made["after"].source_digest
    assert made["after"].history == "after is 1 commit ahead of before"
    assert repo.git("status", "--porcelain", "--branch") == "## main"


def test_an_unknown_ref_is_answered_with_the_branches_there_are(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A slip of the keyboard is cheap to mend."""
    with pytest.raises(BuildError, match="'mian' names no commit") as refused:
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "mian"))
    assert "choose from: main" in refused.value.fix


def test_uncommitted_changes_are_refused_with_their_names(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A build at the commit that is checked out would leave them out without a word."""
    repo.write("VALUE = 3\n")
    repo.write("NEW = 1\n", "k3model/new.py")
    with pytest.raises(BuildError, match="uncommitted changes") as refused:
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "HEAD"))
    assert "k3model/value.py" in refused.value.what
    assert "k3model/new.py" in refused.value.what
    assert "dirty: declared" in refused.value.fix


def test_a_full_commit_means_nothing_of_the_checkout(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Forty digits leave no doubt, whatever lies in the checkout that stands there; a branch does."""
    repo.write("VALUE = 3\n")
    for n in range(6):
        repo.write("NEW = 1\n", f"k3model/new{n}.py")
    with pytest.raises(BuildError, match="uncommitted changes") as refused:
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "main"))
    assert refused.value.what.endswith("k3model/new3.py and 2 more")
    commit = repo.git("rev-parse", "main")
    assert f"ref: {commit}" in refused.value.fix
    made = both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, commit))
    assert value_of(tmp_path / "r", made["after"]) == "VALUE = 2\n"


def test_a_new_recipe_is_no_change_of_the_sources(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """The recipe that asks for a build is written in the checkout; a changed one that git keeps does count."""
    (repo.path / "recipes").mkdir()
    repo.write("name: a b\n", "recipes/a b.yaml")
    made = both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "HEAD"))
    assert made["after"].git_commit == repo.git("rev-parse", "main")
    repo.commit("name: kept\n", "recipes/kept.yaml")
    repo.write("name: changed\n", "recipes/kept.yaml")
    repo.write("name: new\n", "recipes/new.yaml")
    with pytest.raises(BuildError, match="uncommitted changes") as refused:
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "HEAD"))
    assert "recipes/kept.yaml" in refused.value.what
    assert "recipes/new.yaml" not in refused.value.what


def test_declared_changes_are_taken_along_by_digest(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """New files included; the index of the checkout stays as it was."""
    repo.write("VALUE = 3\n")
    repo.write("NEW = 1\n", "k3model/new.py")
    before = repo.git("status", "--porcelain")
    made = both(
        planned,
        tmp_path / "r",
        git(repo, "main~1"),
        git(repo, "HEAD", dirty="declared"),
        extra="declared_change: [commit, dirty]",
    )["after"]
    assert value_of(tmp_path / "r", made) == "VALUE = 3\n"
    assert (CampaignFolder(tmp_path / "r").tree(str(made.place)) / "k3model/new.py").exists()
    assert made.git_dirty
    assert made.dirty_digest is not None
    assert f"+changes {made.dirty_digest[:12]}" in made.origin
    assert repo.git("status", "--porcelain") == before


def test_changes_beside_another_commit_concern_nobody(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Building an older commit from a checkout in use is the everyday case."""
    repo.git("branch", "old", "main~1")
    repo.commit("VALUE = 4\n")
    repo.write("VALUE = 5\n")
    made = both(planned, tmp_path / "r", git(repo, "old"), git(repo, "main~1"))
    assert value_of(tmp_path / "r", made["after"]) == "VALUE = 2\n"


def test_arms_without_a_common_past_are_refused(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """No change lies between two histories that never met."""
    other = Repo(tmp_path / "other", "VALUE = 9\n")
    with pytest.raises(BuildError, match="no history in common"):
        both(planned, tmp_path / "r", git(repo, "main"), git(other, "main"))


def test_arms_that_went_apart_say_how_far(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A comparison of two branches holds what either has alone, and the record says so."""
    repo.git("branch", "side", "main~1")
    repo.git("switch", "--quiet", "side")
    repo.commit("VALUE = 7\n")
    made = both(planned, tmp_path / "r", git(repo, "main"), git(repo, "side"))["after"]
    assert made.merge_base == repo.git("rev-parse", "main~1")
    assert made.history is not None
    assert "before has 1 commit of its own, after 1 commit" in made.history


def test_a_clone_shares_the_past_of_its_origin(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Two repositories may hold the two arms, as long as their commits are related."""
    repo.git("clone", "--quiet", str(repo.path), str(tmp_path / "clone"))
    clone = Repo.__new__(Repo)
    clone.path = tmp_path / "clone"
    clone.commit("VALUE = 3\n")
    made = both(planned, tmp_path / "r", git(repo, "main~1"), git(clone, "main"))
    assert made["after"].history == "after is 2 commits ahead of before"


def test_a_patch_lies_on_top_of_the_commit(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """The arms stand at one commit and differ in the patch, which is kept beside the work tree."""
    repo.write("VALUE = 8\n")
    patch = tmp_path / "change.patch"
    patch.write_text(repo.git("diff") + "\n")
    repo.git("checkout", "--quiet", ".")
    made = both(planned, tmp_path / "r", git(repo, "main"), git(repo, "main", patch=str(patch)))
    assert [value_of(tmp_path / "r", b) for b in made.values()] == ["VALUE = 2\n", "VALUE = 8\n"]
    assert made["after"].patch_digest is not None
    assert (
        CampaignFolder(tmp_path / "r").place(str(made["after"].place)) / "change.patch"
    ).read_bytes() == patch.read_bytes()


def test_a_patch_against_other_sources_is_refused(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Whole or not at all, with git's own words."""
    patch = tmp_path / "change.patch"
    patch.write_text("--- a/k3model/value.py\n+++ b/k3model/value.py\n@@ -1 +1 @@\n-VALUE = 77\n+VALUE = 78\n")
    with pytest.raises(BuildError, match="patch does not apply"):
        both(planned, tmp_path / "r", git(repo, "main"), git(repo, "main", patch=str(patch)))
    with pytest.raises(BuildError, match="cannot read the patch"):
        both(planned, tmp_path / "r", git(repo, "main"), git(repo, "main", patch=str(tmp_path / "none.patch")))


def counting(repo: Repo, ref: str, log: Path, **more: object) -> str:
    """A build whose command leaves a mark outside each time it runs, and an output inside."""
    program = f"open({str(log)!r}, 'a').write('x'); open('output.bin', 'w').write('made')"
    return git(repo, ref, command=[sys.executable, "-c", program], **more)


def test_the_same_inputs_are_not_built_again(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Not on a second call, not for another name of the same commit, not for another pair."""
    log, root = tmp_path / "runs", tmp_path / "r"
    pairs = "[{id: obs1, pair: p1}, {id: obs2, pair: p2}]"
    named = {"old": counting(repo, "main~1", log), "new": counting(repo, "main", log)}
    plan = planned(builds=named, observations=pairs)
    made = [build_pair(plan, pair, root=root) for pair in ("p1", "p1", "p2")]
    assert log.read_text() == "xx"
    assert made[0] == made[1]
    assert made[0]["after"].place == made[2]["after"].place
    assert made[0]["after"].output_digest is not None


def test_a_rebuild_is_made_anew_for_its_pair_with_empty_caches_of_its_own(
    planned: Planned, repo: Repo, tmp_path: Path
) -> None:
    """Build noise is inside the comparison: two pairs share nothing, and neither is made twice."""
    log, root = tmp_path / "runs", tmp_path / "r"
    named = {"old": counting(repo, "main~1", log), "new": counting(repo, "main", log)}
    plan = planned(builds=named, observations=TWO_PAIRS)
    made = {pair: build_pair(plan, pair, root=root) for pair in ("p1", "p2")}
    assert log.read_text() == "xxxx"
    assert len({b.identity for builds in made.values() for b in builds.values()}) == 4
    for pair, builds in made.items():
        for build in builds.values():
            assert build.place is not None
            assert build.place.startswith(f"{pair}/")
            caches = CampaignFolder(root).cache(build.place)
            assert {"triton", "inductor", "cuda"} <= {p.name for p in caches.iterdir()}
            assert not [p for p in caches.rglob("*") if p.is_file()]
    build_pair(plan, "p1", root=root)
    assert log.read_text() == "xxxx"


def test_what_was_broken_off_is_made_anew(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A work tree without the record that closes it is no build."""
    root, builds = tmp_path / "r", {"old": git(repo, "main~1"), "new": git(repo, "main")}
    made = build_pair(planned(builds=builds), "p1", root=root)["after"]
    place = CampaignFolder(root).place(str(made.place))
    (place / "made.json").unlink()
    (place / "tree/k3model/value.py").write_text("half")
    assert build_pair(planned(builds=builds), "p1", root=root)["after"] == made
    assert value_of(root, made) == "VALUE = 2\n"


def test_sources_that_changed_after_they_were_built_are_refused(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """What is measured is what was built."""
    root, builds = tmp_path / "r", {"old": git(repo, "main~1"), "new": git(repo, "main")}
    made = build_pair(planned(builds=builds), "p1", root=root)["after"]
    (CampaignFolder(root).tree(str(made.place)) / "k3model/value.py").write_text("VALUE = 99\n")
    with pytest.raises(BuildError, match=r"changed after they were built: k3model/value\.py"):
        build_pair(planned(builds=builds), "p1", root=root)


def test_the_words_of_a_command_never_reach_a_shell(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """Semicolons, dollars and backquotes are letters like others."""
    nasty = f"; touch {tmp_path}/pwned; $(touch {tmp_path}/pwned) `touch {tmp_path}/pwned`"
    program = "import sys; open('said.txt', 'w').write(sys.argv[1])"
    new = git(repo, "main", command=[sys.executable, "-c", program, nasty])
    made = both(planned, tmp_path / "r", git(repo, "main~1"), new, extra="declared_change: [commit, command]")["after"]
    assert (CampaignFolder(tmp_path / "r").tree(str(made.place)) / "said.txt").read_text() == nasty
    assert not (tmp_path / "pwned").exists()


def test_a_command_that_fails_is_told_by_its_last_words_and_its_log(
    planned: Planned, repo: Repo, tmp_path: Path
) -> None:
    """Nothing counts as built, and the next start tries again."""
    new = git(repo, "main", command=[sys.executable, "-c", "print('compiling'); raise SystemExit('no compiler')"])
    for _ in range(2):
        with pytest.raises(BuildError, match="ended with status 1: no compiler") as refused:
            both(planned, tmp_path / "r", git(repo, "main~1"), new)
        log = Path(refused.value.where.rpartition(": ")[2])
        assert log.read_text().splitlines() == ["compiling", "no compiler"]


def test_a_command_that_cannot_start_is_told_so(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A slip in its first word."""
    with pytest.raises(BuildError, match="cannot start 'no-such-program'"):
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "main", command=["no-such-program"]))


def test_what_a_command_left_running_ends_with_it(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A compiler that was sent to the background writes no more once the build is called made."""
    later = "import time; time.sleep(60)"
    program = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]]);"
        "open('pid.txt', 'w').write(str(p.pid))"
    )
    new = git(repo, "main", command=[sys.executable, "-c", program, later])
    change = "declared_change: [commit, command]"
    made = both(planned, tmp_path / "r", git(repo, "main~1"), new, extra=change)["after"]
    pid = (CampaignFolder(tmp_path / "r").tree(str(made.place)) / "pid.txt").read_text()
    state = Path(f"/proc/{pid}/stat")

    def is_over() -> bool:
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"

    end = time.monotonic() + 20
    while not is_over() and time.monotonic() < end:
        time.sleep(0.1)
    assert is_over()


def test_hooks_of_a_repository_do_not_run(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """A work tree is data until its own command is started."""
    hook = repo.path / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "main"))
    assert not (tmp_path / "hooked").exists()


def test_a_remote_repository_is_fetched_each_time_its_ref_is_asked_for(
    planned: Planned, repo: Repo, tmp_path: Path
) -> None:
    """A mirror of its own is kept; a branch that moved is seen."""
    address = json.dumps({"kind": "git", "repository": repo.path.as_uri().replace("%20", " "), "ref": "main"})
    first = both(planned, tmp_path / "r", git(repo, "main~1"), address)["after"]
    moved = repo.commit("VALUE = 3\n")
    second = both(planned, tmp_path / "r", git(repo, "main~1"), address)["after"]
    assert (first.git_commit, second.git_commit) == (repo.git("rev-parse", "main~1"), moved)
    gone = json.dumps({"kind": "git", "repository": f"file://{tmp_path}/nowhere", "ref": "main"})
    with pytest.raises(BuildError, match="cannot fetch the repository"):
        both(planned, tmp_path / "r", git(repo, "main~1"), gone)


def test_a_build_without_the_package_says_where_it_looked(planned: Planned, repo: Repo, tmp_path: Path) -> None:
    """`python_path` leads to sources that lie deeper."""
    repo.git("mv", "k3model", "src")
    (repo.path / "src/k3model").mkdir()
    for name in ("__init__.py", "value.py"):
        repo.git("mv", f"src/{name}", f"src/k3model/{name}")
    repo.commit("VALUE = 6\n", "src/k3model/value.py")
    with pytest.raises(BuildError, match="holds no package k3model"):
        both(planned, tmp_path / "r", git(repo, "main~1"), git(repo, "main"))
    made = both(
        planned,
        tmp_path / "r",
        git(repo, "main~1"),
        git(repo, "main", python_path="src"),
        extra="declared_change: [commit, python_path]",
    )["after"]
    assert made.python_path == "src"
