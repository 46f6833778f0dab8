"""plan: recipes/<recipe>.yaml -> results/<recipe>/plan.json"""


rule plan:
    input:
        RECIPE,
    output:
        f"results/{NAME}/plan.json",
    log:
        f"results/{NAME}/logs/plan.log",
    conda:
        "../../environment.yml"
    shell:
        "k3bench plan {input:q} --out {output:q} > {log:q} 2>&1"
