"""Recipe in, pull-request section out: plan, build, measure, verify, trace, compare, publish.

    snakemake --cores 1 --workflow-profile workflow/profiles/laptop --config recipe=recipes/laptop.yaml

The campaigns kept in results/recorded/ are compared and published beside the recipe's own.
"""

from pathlib import Path

from k3bench.plan import (
    build_files,
    build_spec,
    make_plan,
    profiled,
    spec_digests,
    verified,
    verified_in_jobs,
)
from k3bench.recipe import load_recipe
from k3bench.store import recorded_campaigns, summaries

RECIPE = config.get("recipe", "recipes/laptop.yaml")
PLAN = make_plan(load_recipe(Path(RECIPE)))
NAME = PLAN.recipe.name
ALLOCATIONS = spec_digests(PLAN)
FOLDERS = {**recorded_campaigns(Path("results/recorded")), NAME: f"results/{NAME}"}
RECORDS = {campaign: summaries(Path(folder)) for campaign, folder in FOLDERS.items()}
RECORDS[NAME] = [
    f"results/{NAME}/plan.json",
    *(f"results/{NAME}/observations/{obs}/{name}.json" for obs, name in ALLOCATIONS),
    *(f"results/{NAME}/observations/{obs}/equivalence.json" for obs in verified(PLAN)),
    *(f"results/{NAME}/observations/{obs}/residency.json" for obs in profiled(PLAN)),
]


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        expand("results/{campaign}/report/pr.md", campaign=FOLDERS),
        expand("results/{campaign}/receipt.json", campaign=FOLDERS),


include: "workflow/rules/plan.smk"
include: "workflow/rules/build.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/verify.smk"
include: "workflow/rules/trace.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/publish.smk"


onerror:
    shell(
        "grep -h -A 3 -E '^(error: |.*NOT measured)' results/*/logs/*.log >&2 || true"
    )


onsuccess:
    shell("test ! -e results/{NAME:q}/comparison.json || k3bench show results/{NAME:q}")
