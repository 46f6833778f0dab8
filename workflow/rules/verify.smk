"""verify: plan, builds -> results/<recipe>/observations/<obs>/equivalence.json"""


rule verify:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        builds=lambda w: expand(
            f"results/{NAME}/builds/{{pair}}/{{arm}}.json",
            pair=PLAN.observation(w.obs).pair,
            arm=("before", "after"),
        ),
    output:
        f"results/{NAME}/observations/{{obs}}/equivalence.json",
    log:
        f"results/{NAME}/logs/verify-{{obs}}.log",
    conda:
        "../../environment.yml"
    shell:
        "k3bench verify {input.plan:q} {wildcards.obs} --out {output:q} 2> {log:q}"
