"""trace: profiled runs, after the timed blocks -> results/<recipe>/observations/<obs>/residency.json

Only where the recipe names a tool (`trace: {tool: ..., level: ...}`). The traces themselves are no rule's output.
"""


rule profile:
    input:
        plan=ancient(f"results/{NAME}/plan.json"),
        builds=lambda w: expand(
            f"results/{NAME}/builds/{{pair}}/{{arm}}.json",
            pair=PLAN.observation(w.obs).pair,
            arm=("before", "after"),
        ),
        timed=lambda w: [
            ancient(f"results/{NAME}/observations/{obs}/{name}.json")
            for obs, name in ALLOCATIONS
            if obs == w.obs
        ],
    output:
        f"results/{NAME}/observations/{{obs}}/traces/{{arm}}.c{{level}}.r0.collected.json",
    log:
        f"results/{NAME}/logs/profile-{{obs}}-{{arm}}-c{{level}}.log",
    conda:
        "../../environment.yml"
    params:
        folder=lambda w, output: Path(output[0]).parent,
        tool=PLAN.recipe.trace.tool,
        executor=config.get("executor", "local"),
    shell:
        "k3bench profile {input.plan:q} {wildcards.obs}/{wildcards.arm} --tool {params.tool} "
        "--level {wildcards.level} --executor {params.executor} --out {params.folder:q} 2>&1 | tee {log:q}"


rule trace:
    input:
        lambda w: [
            f"results/{NAME}/observations/{p.observation}/traces/{p.arm}.c{p.level}.r0.collected.json"
            for p in PLAN.profiles
            if p.observation == w.obs
        ],
    output:
        f"results/{NAME}/observations/{{obs}}/residency.json",
    log:
        f"results/{NAME}/logs/trace-{{obs}}.log",
    conda:
        "../../environment.yml"
    params:
        folder=lambda w, input: Path(input[0]).parent,
        families=f"results/{NAME}/plan.json" if PLAN.recipe.trace.families else "",
    shell:
        "k3bench trace --collected {params.folder:q} --families {params.families} --out {output:q} > {log:q} 2>&1"
