"""verify: plan, builds -> results/<recipe>/observations/<obs>/equivalence.json

An engine that needs jobs for it (trtllm) waits for the timed ones: a neighbour that loads weights disturbs them.
"""


rule verify:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        builds=lambda w: expand(
            f"results/{NAME}/builds/{{pair}}/{{arm}}.json",
            pair=PLAN.observation(w.obs).pair,
            arm=("before", "after"),
        ),
        timed=[
            ancient(f"results/{NAME}/observations/{obs}/{name}.json")
            for obs, name in ALLOCATIONS
            if verified_in_jobs(PLAN)
        ],
    output:
        f"results/{NAME}/observations/{{obs}}/equivalence.json",
    log:
        f"results/{NAME}/logs/verify-{{obs}}.log",
    conda:
        "../../environment.yml"
    params:
        executor=(
            f"--executor {config.get('executor', 'local')}"
            if verified_in_jobs(PLAN)
            else ""
        ),
    shell:
        "k3bench verify {input.plan:q} {wildcards.obs} {params.executor} --out {output:q} 2> {log:q}"
