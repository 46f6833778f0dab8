"""Which forks at which batch: the table of several boots.

    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json
    python benchmarks/policy_table.py boot1/decode.json boot2/decode.json --write k3model/policies.json

In: files of `decode.py` with the section `best`, each of a process of its own; those that name one boot are one boot.
Out: a table on the screen, and the one that recipes name as `best-by-batch`. Out of scope: timing.

The fastest policy of one boot is partly the luckiest. So means over boots decide, and of the policies that the boots do
not tell from the fastest the one with the fewest forks is taken, which can be none. Told apart: slower by more than two
standard errors of the boots' differences, whose spread is taken to be at least half a point, as recorded boots showed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from k3bench.store import write_atomic
from k3model.errors import PolicyError
from k3model.policy import FORKS, with_forks

#: Least standard deviation from boot to boot of what separates two policies, in points of the serial step: the steps
#: and the campaign under results/recorded, h200-decode and h200-forks, differ by 0.3 to 1.1.
FLOOR_POINTS = 0.5


class CannotDecideError(Exception):
    """Files that give no table; the message names the file and what to do."""


class Measured(BaseModel):
    """A policy in a file of `decode.py`: its forks, its change against serial [%]."""

    forks: tuple[str, ...]
    delta_pct: float = Field(allow_inf_nan=False)


class Policies(BaseModel):
    """What was timed at one batch."""

    policies: dict[str, Measured] = Field(min_length=1)


class Arguments(BaseModel):
    """What the steps were asked to be; the rest is passed on."""

    model_config = ConfigDict(extra="allow")

    options: str = ""
    preset: str = ""
    recipe: str = ""


class Provenance(BaseModel):
    """What ran where; the rest is passed on."""

    model_config = ConfigDict(extra="allow")

    device: str
    boot: str | None = None
    arguments: Arguments = Arguments()


class Found(BaseModel):
    """A file of `decode.py`, its section `best` by batch."""

    provenance: Provenance
    best: dict[str, Policies] = Field(min_length=1)


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
        spread = max(FLOOR_POINTS, statistics.stdev(slower) if len(slower) > 1 else 0.0)
        return statistics.mean(slower) > 2 * spread / math.sqrt(len(slower))


def read(path: Path) -> Found:
    """One file of `decode.py`. Raises `CannotDecideError`."""
    try:
        return Found.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CannotDecideError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CannotDecideError(
            f"{path}: {where}: {first['msg']}; make it with: benchmarks/decode.py --sections best --out {path.name}"
        ) from None


def same_thing(paths: list[Path], found: list[Found]) -> None:
    """Refuses figures given twice, and files of other batches, models or devices than the first."""
    seen: dict[str, Path] = {}
    for path, one in zip(paths, found, strict=True):
        figures = repr({batch: _by_forks(rows) for batch, rows in one.best.items()})
        if figures in seen:
            raise CannotDecideError(f"{path} holds the same figures as {seen[figures]}: every process counts once")
        seen[figures] = path
        for name, mine, first in zip(("batches", "model", "device"), _what(one), _what(found[0]), strict=True):
            if mine != first:
                raise CannotDecideError(f"{path} has {name} {mine}, {paths[0]} has {first}: measure alike")


def _what(one: Found) -> tuple[str, str, str]:
    asked = one.provenance.arguments
    model = f"{asked.preset} {Path(asked.recipe).name} {asked.options}"
    return ", ".join(sorted(one.best)), model, one.provenance.device


def measured(found: list[Found], batch: str) -> tuple[list[Policy], list[str]]:
    """What every file measured at this batch, the fastest first, with serial; and the names of what some file lacks."""
    rows = [_by_forks(one.best[batch]) for one in found]
    everywhere = [forks for forks in rows[0] if all(forks in row for row in rows)]
    if everywhere == [()]:
        raise CannotDecideError(f"no policy is in every file at batch {batch}: measure the same ones in each process")
    lacking = [name for row in rows for forks, (name, _) in row.items() if forks not in everywhere]
    boots: dict[str, list[int]] = {}
    for number, one in enumerate(found):
        boots.setdefault(one.provenance.boot or f"file {number}", []).append(number)
    policies = [
        Policy(
            rows[0][forks][0],
            forks,
            tuple(statistics.mean(rows[number][forks][1] for number in boot) for boot in boots.values()),
        )
        for forks in everywhere
    ]
    return sorted(policies, key=lambda policy: policy.mean), list(dict.fromkeys(lacking))


def _by_forks(timed: Policies) -> dict[tuple[str, ...], tuple[str, float]]:
    """Forks -> name and change. One set of forks is one policy, whatever its name and order; none changes nothing."""
    rows: dict[tuple[str, ...], tuple[str, float]] = {(): ("serial", 0.0)}
    for name, row in timed.policies.items():
        try:
            with_forks(name, *row.forks)
        except PolicyError as error:
            raise CannotDecideError(f"policy {name}: {error}") from None
        forks = tuple(fork for fork in FORKS if fork in row.forks)
        if forks in rows and rows[forks] != (name, row.delta_pct):
            raise CannotDecideError(f"policies {rows[forks][0]} and {name} are the same forks, timed twice")
        rows[forks] = name, row.delta_pct
    return rows


def chosen(policies: list[Policy]) -> Policy:
    """The fewest forks that cannot be told from the fastest; of equally many the faster."""
    left = [policy for policy in policies if not policy.told_from(policies[0])]
    return min(left, key=lambda policy: (len(policy.forks), policy.mean))


def table(found: list[Found]) -> dict[str, list[str]]:
    """Batch -> forks, each decision printed."""
    rows = {}
    print("batch  policy          mean [%]  each boot [%]         forks")
    for batch in found[0].best:
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
        told = [
            {"file": str(path), **one.provenance.model_dump(exclude_none=True)}
            for path, one in zip(args.files, found, strict=True)
        ]
        text = json.dumps({"provenance": told, "tables": {"best-by-batch": rows}}, indent=2) + "\n"
        write_atomic(args.write, text.encode())
        print(f"written: {args.write}")


if __name__ == "__main__":
    main()
