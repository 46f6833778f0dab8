"""A GPU machine with torch, numpy, pydantic, PyYAML and safetensors only can plan, build, measure here and verify."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: What such a machine lacks; a module set to None in sys.modules cannot be imported.
ABSENT = ("aiohttp", "matplotlib", "mlflow", "msgspec", "pandas", "pygments", "rich", "scipy", "seaborn", "snakemake",
          "statsmodels", "submitit")  # fmt: skip
BLOCKED = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); from k3bench.cli import main; "


def on_bare_machine(*words: str) -> subprocess.CompletedProcess[str]:
    code = BLOCKED + f"sys.exit(main({list(words)!r}))"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_plan_build_and_verify_need_nothing_else(tmp_path: Path) -> None:
    """The budget is spent at once: this is about imports."""
    plan = str(tmp_path / "plan.json")
    assert on_bare_machine("plan", "recipes/laptop.yaml", "--out", plan).returncode == 0
    for arm in ("before", "after"):
        done = on_bare_machine("build", plan, f"p1/{arm}", "--out", str(tmp_path / f"builds/p1/{arm}.json"))
        assert done.returncode == 0, done.stderr
    out = tmp_path / "equivalence.json"
    done = on_bare_machine("verify", plan, "obs1", "--device", "cpu", "--budget", "0", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert out.exists()
