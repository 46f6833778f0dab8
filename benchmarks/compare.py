"""How long `compare` takes for a large campaign: 500 observations x 8 blocks x 12 levels x 6 metrics by default.

In: made-up measurement records. Out: seconds on the screen; exit status 1 above the limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "k3bench" / "compare"))

import campaigns as made  # noqa: E402

from k3bench.compare.campaign import campaign  # noqa: E402
from k3bench.records.measurement import Measurement  # noqa: E402
from k3bench.records.plan import Plan  # noqa: E402


def six_metrics(of: Plan) -> list[Measurement]:
    """Every planned point, with the two metrics that the tests' campaigns leave out."""
    return [
        point.model_copy(
            update={
                "metrics": {
                    **point.metrics,
                    "step_p99_ms": 1.1 * point.metrics["tpot_median_ms"],
                    "output_tok_s": 900.0 / point.metrics["tpot_median_ms"],
                }
            }
        )
        for point in made.points(of, made.noisy(-0.02))
    ]


def main() -> int:
    """Make the records, then compare them a few times; the fastest counts, as other work shares the machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--observations", type=int, default=500)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--levels", type=int, default=12)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds")
    args = parser.parse_args()
    of = made.plan(observations=args.observations, blocks=args.blocks, levels=tuple(range(1, args.levels + 1)))
    points = six_metrics(of)
    size = f"{args.observations} observations x {args.blocks} blocks x {args.levels} levels x 6 metrics"
    print(f"{size}: {len(points)} points")
    seconds = []
    for _ in range(args.times):
        began, cpu = time.perf_counter(), time.process_time()
        seen = campaign(of, points)
        seconds.append(time.perf_counter() - began)
        print(f"compare: {seconds[-1]:.2f} s ({time.process_time() - cpu:.2f} s of processor), {seen.headline.word}")
    print(f"fastest {min(seconds):.2f} s, limit {args.limit:g} s")
    return int(min(seconds) > args.limit)


if __name__ == "__main__":
    sys.exit(main())
