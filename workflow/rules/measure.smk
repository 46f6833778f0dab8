"""measure: plan, builds -> results/<recipe>/observations/<obs>/<allocation>.json

One job for all allocations: it submits them in the order of the plan and waits for all in one process. The points
themselves are no rule's output: Snakemake deletes declared outputs, and a measured point is never deleted.
"""


rule measure:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        builds=[
            f"results/{NAME}/builds/{pair}/{arm}.json"
            for pair in sorted({o.pair for o in PLAN.observations})
            for arm in ("before", "after")
        ],
    output:
        [f"results/{NAME}/observations/{obs}/{name}.json" for obs, name in ALLOCATIONS],
    log:
        f"results/{NAME}/logs/measure.log",
    conda:
        "../../environment.yml"
    params:
        specs=list(ALLOCATIONS.values()),
        executor=config.get("executor", "local"),
    shell:
        "k3bench measure {input.plan:q} --executor {params.executor} 2>&1 | tee {log:q}"
