"""build: plan, sources -> results/<recipe>/builds/<pair>/<arm>.json

Both arms at once: they are compared before either counts. Work trees and caches lie beside the records, no rule's output.
"""


rule build:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        files=build_files(PLAN),
    output:
        expand(
            f"results/{NAME}/builds/{{{{pair}}}}/{{arm}}.json",
            arm=("before", "after"),
        ),
    log:
        f"results/{NAME}/logs/build-{{pair}}.log",
    conda:
        "../../environment.yml"
    params:
        spec=lambda w: build_spec(PLAN.recipe, w.pair),
        executor=config.get("executor", "local"),
    shell:
        "k3bench build {input.plan:q} {wildcards.pair} --executor {params.executor} > {log:q} 2>&1"
