"""build: plan, sources -> results/<recipe>/builds/<pair>/<arm>.json"""


rule build:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        sources=sorted(Path("k3model").rglob("*.py")),
    output:
        f"results/{NAME}/builds/{{pair}}/{{arm}}.json",
    log:
        f"results/{NAME}/logs/build-{{pair}}-{{arm}}.log",
    conda:
        "../../environment.yml"
    params:
        recipe=PLAN.recipe.engine.model_dump_json() + PLAN.recipe.arms.model_dump_json(),
    shell:
        "k3bench build {input.plan:q} {wildcards.pair}/{wildcards.arm} --out {output:q} > {log:q} 2>&1"
