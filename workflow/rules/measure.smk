"""measure: plan, builds -> results/<recipe>/observations/<obs>/<allocation>.json

The points themselves are no rule's output: Snakemake deletes declared outputs, and a measured point is never deleted.
"""


rule measure:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        builds=lambda w: expand(
            f"results/{NAME}/builds/{{pair}}/{{arm}}.json",
            pair=PLAN.observation(w.obs).pair,
            arm=("before", "after"),
        ),
    output:
        f"results/{NAME}/observations/{{obs}}/{{allocation}}.json",
    log:
        f"results/{NAME}/logs/measure-{{obs}}-{{allocation}}.log",
    wildcard_constraints:
        allocation="alloc[0-9]+",
    conda:
        "../../environment.yml"
    params:
        spec=lambda w: ALLOCATIONS[w.obs, w.allocation],
        executor=config.get("executor", "local"),
    shell:
        "k3bench measure {input.plan:q} {wildcards.obs}/{wildcards.allocation} "
        "--executor {params.executor} --out {output:q} 2>&1 | tee {log:q}"
