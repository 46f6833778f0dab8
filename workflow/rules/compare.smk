"""compare: every record of a campaign -> results/<campaign>/comparison.json"""


rule compare:
    input:
        plan=lambda w: (
            []
            if FOLDERS[w.campaign] != f"results/{NAME}"
            else f"results/{NAME}/plan.json"
        ),
        allocations=lambda w: (
            [f"results/{NAME}/observations/{obs}/{a}.json" for obs, a in ALLOCATIONS]
            if w.campaign == NAME
            else sorted(Path(FOLDERS[w.campaign]).glob("*.json"))
        ),
    output:
        "results/{campaign}/comparison.json",
    log:
        "results/{campaign}/logs/compare.log",
    conda:
        "../../environment.yml"
    params:
        folder=lambda w: FOLDERS[w.campaign],
    shell:
        "k3bench compare {params.folder:q} --out {output:q} > {log:q} 2>&1"
