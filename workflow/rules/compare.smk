"""compare: every record of a campaign -> results/<campaign>/comparison.json"""


rule compare:
    input:
        lambda w: RECORDS[w.campaign],
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
