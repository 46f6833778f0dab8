"""How long a sync with MLflow takes, beside one call a metric, in the same run.

In: how many runs and metrics. Out: two lines on standard output. Out of scope: correctness (the tests), servers.

    python benchmarks/tracking.py --runs 500 --metrics 60
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from k3bench.publish.projected import Point, Projected
from k3bench.publish.target import target_for
from k3bench.publish.tracking import connected, sync

#: The slow way is timed on this many runs; it grows evenly with their number.
_SLOW_RUNS = 3


def many(runs: int, metrics: int) -> list[Projected]:
    """Runs as a campaign of one workload would project them."""
    return [
        Projected(
            key=f"bulk/obs{i}/before",
            name=f"obs{i}.before",
            role="measurement",
            start_ms=1_700_000_000_000 + i,
            end_ms=1_700_000_001_000 + i,
            tags={"study": "bulk", "arm": "before"},
            params={"isl": "8192"},
            points=tuple(Point(f"m{j}", 13.0 + i / 7 + j, j % 8, 1_700_000_000_500) for j in range(metrics)),
        )
        for i in range(runs)
    ]


def in_batches(folder: Path, runs: list[Projected]) -> float:
    """Seconds for all runs, into an empty database."""
    target = target_for(folder, environment={})
    with connected(target):
        pass
    began = time.perf_counter()
    written = sync(target, "bulk", "bulk", runs).written
    took = time.perf_counter() - began
    assert len(written) == len(runs)
    return took


def one_by_one(folder: Path, runs: list[Projected]) -> float:
    """Seconds a run with a call for every metric."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.create_experiment("slow", artifact_location=str(folder))
    began = time.perf_counter()
    for run in runs:
        made = client.create_run(experiment).info.run_id
        for p in run.points:
            client.log_metric(made, p.key, p.value, timestamp=p.time_ms, step=p.step)
        client.set_terminated(made)
    return (time.perf_counter() - began) / len(runs)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--metrics", type=int, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        took = in_batches(Path(temporary), many(args.runs, args.metrics))
        slow = args.runs * one_by_one(Path(temporary), many(_SLOW_RUNS, args.metrics))
    print(
        f"{args.runs} runs x {args.metrics} metrics: {took:.1f} s; one call a metric: {slow:.0f} s ({slow / took:.0f}x)"
    )
    print(f"{os.cpu_count()} processors; load average {os.getloadavg()[0]:.1f}; the slow way from {_SLOW_RUNS} runs")


if __name__ == "__main__":
    main()
