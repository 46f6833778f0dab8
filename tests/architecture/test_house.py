"""The house as design and packaging promise it: one list of packages, one import rule, schemas equal to the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from k3bench.schemas import record_kinds, schema_name, schema_text

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
#: PyPI name -> conda name, where the two differ.
CONDA_NAMES = {"torch": "pytorch"}


def split(spec: str) -> tuple[str, str]:
    """`name >=1,<2` -> (name, constraint), names in lower case."""
    match = re.fullmatch(r"([A-Za-z0-9._-]+)\s*(.*)", spec.strip())
    assert match, spec
    return match[1].lower(), match[2].replace(" ", "")


def conda_specs() -> list[str]:
    return [d for d in ENVIRONMENT["dependencies"] if isinstance(d, str)]


def pip_specs() -> list[str]:
    (part,) = [d["pip"] for d in ENVIRONMENT["dependencies"] if isinstance(d, dict)]
    return part


def test_environment_and_pyproject_name_the_same_packages_and_versions() -> None:
    """The conda view differs by two known names only, and adds python and pip."""
    project = {CONDA_NAMES.get(n, n): v for n, v in map(split, PYPROJECT["project"]["dependencies"])}
    conda = dict(map(split, conda_specs()))
    assert conda.pop("python") == PYPROJECT["project"]["requires-python"].replace(" ", "")
    conda.pop("pip")
    assert conda == project


def test_the_packages_the_project_is_built_on_are_all_named() -> None:
    """torch, snakemake, mlflow, submitit, seaborn; tensorrt-llm as an extra that nothing installs by itself."""
    project = dict(map(split, PYPROJECT["project"]["dependencies"]))
    assert {"torch", "snakemake", "mlflow", "submitit", "seaborn"} <= set(project)
    assert list(map(split, PYPROJECT["project"]["optional-dependencies"]["trtllm"])) == list(map(split, pip_specs()))
    assert "tensorrt" not in (ROOT / "requirements.lock").read_text()


def test_every_conda_spec_parses_strictly() -> None:
    """A conda solve is not run here; each spec is at least one that conda would read."""
    rattler = pytest.importorskip("rattler", reason="py-rattler is not installed")
    for spec in conda_specs():
        assert rattler.MatchSpec(spec, strict=True).name is not None


def test_the_lock_covers_every_dependency_except_torch_and_names_no_index() -> None:
    """Hashed, and free of registry addresses; torch is chosen at set-up."""
    lock = (ROOT / "requirements.lock").read_text()
    locked = {line.split("==")[0].lower() for line in lock.splitlines() if "==" in line and not line.startswith(" ")}
    project = {n for n, _ in map(split, PYPROJECT["project"]["dependencies"])} - {"torch"}
    assert project <= locked
    assert "torch" not in locked
    assert "--hash=sha256:" in lock
    assert not re.search(r"https?://|--(extra-)?index", lock)


@pytest.mark.parametrize("kind", list(record_kinds()), ids=lambda k: k.SCHEMA)
def test_a_schema_file_equals_what_the_code_generates(kind: type) -> None:
    """`k3bench schemas workflow/schemas` was run after the last change to the records."""
    path = ROOT / "workflow/schemas" / schema_name(kind)
    assert path.read_text() == schema_text(kind), "run: k3bench schemas workflow/schemas"


def test_the_import_rule_holds() -> None:
    """Stage rooms meet in files; frameworks stay at their edges."""
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as m; m()"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


def test_tensorrt_llm_is_imported_in_its_engine_only() -> None:
    """Nothing else may need a GPU package to import."""
    for package in ("workflow", "k3model"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "trtllm.py":
                assert not re.search(r"^\s*(import|from) tensorrt_llm", path.read_text(), re.MULTILINE), path
