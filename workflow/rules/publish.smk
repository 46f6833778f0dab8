"""publish: comparison, records -> results/<campaign>/report/ and, as a second step, MLflow

The report is written first: an MLflow that is down can cost the receipt, never the report.
"""


rule publish:
    input:
        "results/{campaign}/comparison.json",
    output:
        "results/{campaign}/report/pr.md",
        report(
            "results/{campaign}/report/index.html",
            caption="../report/page.rst",
            category="{campaign}",
        ),
        report(
            "results/{campaign}/report/tpot.svg",
            caption="../report/tpot.rst",
            category="{campaign}",
        ),
        report(
            "results/{campaign}/report/forest.svg",
            caption="../report/forest.rst",
            category="{campaign}",
        ),
    log:
        "results/{campaign}/logs/publish.log",
    conda:
        "../../environment.yml"
    shell:
        "k3bench publish {input:q} > {log:q} 2>&1"


rule track:
    input:
        comparison="results/{campaign}/comparison.json",
        report="results/{campaign}/report/pr.md",
    output:
        "results/{campaign}/receipt.json",
    log:
        "results/{campaign}/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        folder=lambda w: FOLDERS[w.campaign],
    shell:
        "k3bench track {input.comparison:q} --records {params.folder:q} --out {output:q} > {log:q} 2>&1"
