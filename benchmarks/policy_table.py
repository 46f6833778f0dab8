"""Which forks at which batch: the table of several boots and builds.

    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json
    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json --write k3model/policies.json

In: files of `decode.py`, each of a process of its own, with the section `best`. Out: a table on the screen, and the one
that recipes name as `best-by-batch`. Out of scope: timing.

The fastest policy of one boot is partly the luckiest. So the means over the files decide, and of the policies that
cannot be told from the fastest the one with the fewest forks is taken: within twice the floor that docs/METHOD.md
assumes for what another boot alone does to a ratio, over the root of the number of files.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Standard deviation of a ratio from one boot and build to the next [%], as a campaign assumes it.
FLOOR_PCT = 0.3


@dataclass(frozen=True)
class Policy:
    """Forks, and the change against serial in every file [%]."""

    name: str
    forks: tuple[str, ...]
    deltas: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the files [%]."""
        return statistics.mean(self.deltas)


def measured(found: list[dict[str, Any]], batch: str) -> list[Policy]:
    """What every file measured at this batch, the fastest first; one set of forks is one policy, whatever its name."""
    rows = [{tuple(row["forks"]): (name, row) for name, row in f["best"][batch]["policies"].items()} for f in found]
    shared = [forks for forks in rows[0] if all(forks in row for row in rows)]
    policies = [Policy(rows[0][forks][0], forks, tuple(row[forks][1]["delta_pct"] for row in rows)) for forks in shared]
    return sorted(policies, key=lambda policy: policy.mean)


def chosen(policies: list[Policy]) -> Policy:
    """The fewest forks that cannot be told from the fastest; of equally many the faster."""
    fastest = policies[0]
    margin = 2 * FLOOR_PCT / math.sqrt(len(fastest.deltas))
    return min((p for p in policies if p.mean <= fastest.mean + margin), key=lambda p: (len(p.forks), p.mean))


def main() -> None:
    """Read, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="decode.json")
    parser.add_argument("--write", type=Path, metavar="policies.json")
    args = parser.parse_args()
    found = [json.loads(path.read_text()) for path in args.files]
    if lacking := [str(path) for path, f in zip(args.files, found, strict=True) if "best" not in f]:
        parser.error(f"no section best in {', '.join(lacking)}; make it with: benchmarks/decode.py --sections best")
    batches = [batch for batch in found[0]["best"] if all(batch in f["best"] for f in found)]
    table = {}
    print("batch  policy          mean [%]  each file [%]         forks")
    for batch in batches:
        policies = measured(found, batch)
        winner = chosen(policies)
        table[batch] = list(winner.forks)
        for policy in policies:
            each = ", ".join(f"{delta:+.2f}" for delta in policy.deltas)
            mark = "  <- chosen" if policy is winner else ""
            print(f"{batch:<6} {policy.name:<15} {policy.mean:<+9.2f} {each:<21} {', '.join(policy.forks)}{mark}")
    if args.write:
        told = [{"file": str(path), **f["provenance"]} for path, f in zip(args.files, found, strict=True)]
        args.write.write_text(json.dumps({"provenance": told, "tables": {"best-by-batch": table}}, indent=2) + "\n")
        print(f"written: {args.write}")


if __name__ == "__main__":
    main()
