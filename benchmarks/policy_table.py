"""Which forks at which batch: the table of several boots.

    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json
    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json --write k3model/policies.json

In: files of `decode.py` with the section `best`, each of a process of its own. Out: a table on the screen, and the one
that recipes name as `best-by-batch`. Out of scope: timing.

The fastest policy of one boot is partly the luckiest. So means over boots decide, and of the policies that cannot be
told from the fastest the one with the fewest forks is taken, which can be none. Told apart: slower by more than two
standard errors of the boots' differences, whose spread is taken to be at least the floor that docs/METHOD.md assumes
for one ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3model.errors import PolicyError
from k3model.policy import FORKS, with_forks

#: Least standard deviation of the ratio of two policies from boot to boot [%], as a campaign assumes it.
FLOOR_PCT = 0.3


class CannotDecideError(Exception):
    """Files that give no table; the message names the file and what to do."""


@dataclass(frozen=True)
class Policy:
    """Forks in layer order, and the change against serial [%] of each boot, the mean of its processes."""

    name: str
    forks: tuple[str, ...]
    deltas: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the boots [%]."""
        return statistics.mean(self.deltas)

    def told_from(self, fastest: Policy) -> bool:
        """Slower by more than chance between boots explains."""
        slower = [mine - best for mine, best in zip(self.deltas, fastest.deltas, strict=True)]
        spread = max(FLOOR_PCT, statistics.stdev(slower) if len(slower) > 1 else 0.0)
        return statistics.mean(slower) > 2 * spread / math.sqrt(len(slower))


def read(path: Path) -> dict[str, Any]:
    """One file of `decode.py`."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CannotDecideError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict) or "best" not in found or "provenance" not in found:
        raise CannotDecideError(f"{path} has no section best; make it with: benchmarks/decode.py --sections best")
    return found


def same_thing(paths: list[Path], found: list[dict[str, Any]]) -> None:
    """Refuses a file given twice, and files of other batches, options or devices than the first."""
    seen: dict[str, Path] = {}
    for path, one in zip(paths, found, strict=True):
        if (twin := seen.setdefault(json.dumps(one["best"]), path)) != path:
            raise CannotDecideError(f"{path} holds the same figures as {twin}: every process counts once")
    for name, of in (("batches", _batches), ("options", _options), ("device", _device)):
        for path, one in zip(paths, found, strict=True):
            if of(one) != of(found[0]):
                raise CannotDecideError(f"{path} has {name} {of(one)}, {paths[0]} has {of(found[0])}: measure alike")


def _batches(one: dict[str, Any]) -> str:
    return ", ".join(one["best"])


def _options(one: dict[str, Any]) -> str:
    return str(one["provenance"].get("arguments", {}).get("options"))


def _device(one: dict[str, Any]) -> str:
    return str(one["provenance"].get("device"))


def measured(found: list[dict[str, Any]], batch: str) -> tuple[list[Policy], list[str]]:
    """What every file measured at this batch, the fastest first, with serial; and the names of what some file lacks."""
    rows = [_by_forks(one["best"][batch]["policies"]) for one in found]
    everywhere = [forks for forks in rows[0] if all(forks in row for row in rows)]
    lacking = [name for row in rows for forks, (name, _) in row.items() if forks not in everywhere]
    boots: dict[str, list[int]] = {}
    for number, one in enumerate(found):
        boots.setdefault(one["provenance"].get("boot") or f"file {number}", []).append(number)
    policies = [
        Policy(
            rows[0][forks][0],
            forks,
            tuple(statistics.mean(rows[number][forks][1] for number in boot) for boot in boots.values()),
        )
        for forks in everywhere
    ]
    return sorted(policies, key=lambda policy: policy.mean), list(dict.fromkeys(lacking))


def _by_forks(policies: dict[str, Any]) -> dict[tuple[str, ...], tuple[str, float]]:
    """Forks -> name and change. One set of forks is one policy, whatever its name and order; none changes nothing."""
    rows: dict[tuple[str, ...], tuple[str, float]] = {(): ("serial", 0.0)}
    for name, row in policies.items():
        try:
            with_forks(name, *row["forks"])
        except PolicyError as error:
            raise CannotDecideError(f"policy {name}: {error}") from None
        if not math.isfinite(row["delta_pct"]):
            raise CannotDecideError(f"policy {name}: its change is {row['delta_pct']}")
        rows[tuple(fork for fork in FORKS if fork in row["forks"])] = name, row["delta_pct"]
    return rows


def chosen(policies: list[Policy]) -> Policy:
    """The fewest forks that cannot be told from the fastest; of equally many the faster."""
    left = [policy for policy in policies if not policy.told_from(policies[0])]
    return min(left, key=lambda policy: (len(policy.forks), policy.mean))


def table(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Batch -> forks, each decision printed."""
    rows = {}
    print("batch  policy          mean [%]  each boot [%]         forks")
    for batch in found[0]["best"]:
        policies, lacking = measured(found, batch)
        winner = chosen(policies)
        rows[batch] = list(winner.forks)
        for policy in policies:
            each = ", ".join(f"{delta:+.2f}" for delta in policy.deltas)
            mark = "  <- chosen" if policy is winner else ""
            print(f"{batch:<6} {policy.name:<15} {policy.mean:<+9.2f} {each:<21} {', '.join(policy.forks)}{mark}")
        if lacking:
            print(f"{batch:<6} left out, not in every file: {', '.join(lacking)}")
    return rows


def main() -> None:
    """Read, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="decode.json")
    parser.add_argument("--write", type=Path, metavar="policies.json")
    args = parser.parse_args()
    try:
        found = [read(path) for path in args.files]
        same_thing(args.files, found)
        rows = table(found)
    except CannotDecideError as error:
        parser.error(str(error))
    if args.write:
        told = [{"file": str(path), **one["provenance"]} for path, one in zip(args.files, found, strict=True)]
        args.write.write_text(json.dumps({"provenance": told, "tables": {"best-by-batch": rows}}, indent=2) + "\n")
        print(f"written: {args.write}")


if __name__ == "__main__":
    main()
