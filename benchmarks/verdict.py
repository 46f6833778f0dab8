"""The bars of the verdict: simulated campaigns of known truth through the rule that `k3bench compare` applies.

In: the noise model beside the checkout (`../shared/data/noise_model.py`). Out: a table with Monte Carlo errors on the
screen, and the same as JSON. Every number is a share of campaigns; a bar holds if it is met within three Monte Carlo
errors. Exit status 1 if one is missed. Run: `python benchmarks/verdict.py [--campaigns 4000] [--out FILE]`.

The rule is `compare.outliers.judge_sweep`, which `compare.campaign.campaign` calls for its records; `--check-records`
sends some of the same draws through whole records and compares the words.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from scipy import stats

from k3bench.compare.noise import range_exceeded_p
from k3bench.compare.outliers import Sweep, judge_sweep
from k3bench.compare.pairs import pair_up
from k3bench.compare.planning import Design, blocks_for
from k3bench.compare.verdict import DISAGREEMENT, IMPROVEMENT, REGRESSION, WITHIN_NOISE, WORDS, Rule

ROOT = Path(__file__).parents[1]
NOISE_MODEL = ROOT.parent / "shared" / "data" / "noise_model.py"
BUILD = 0.002
SDS, BLOCKS = (0.010, 0.015, 0.025), (2, 3, 4, 5, 6)
REQUESTS, REQUEST_SD = 40, 0.02
#: Seconds of one run on the machine whose hours are counted; the first is paid per start.
START_S, WARMUP_S, LOAD_S, GPUS = 900.0, 60.0, 120.0, 16


@dataclass(frozen=True)
class Cell:
    """One corner of the noise model."""

    k: int
    blocks: int
    sd: float
    effect: float = 0.0
    interaction: float = 0.0
    odd_rack: float | None = None
    levels: int = 1

    @property
    def name(self) -> str:
        """For the table."""
        text = f"k={self.k} B={self.blocks} sd={100 * self.sd:g}% effect={100 * self.effect:+g}%"
        text += f" interaction={100 * self.interaction:g}%" if self.interaction else ""
        text += f" odd rack at {100 * self.odd_rack:+g}%" if self.odd_rack is not None else ""
        return text + (f" {self.levels} levels" if self.levels > 1 else "")


@dataclass(frozen=True)
class Result:
    """A share of campaigns in one cell."""

    cell: str
    share: float
    error: float


@dataclass(frozen=True)
class Bar:
    """A target over some cells; `at_most` says on which side it lies. The worst cell decides."""

    name: str
    target: float
    at_most: bool
    results: tuple[Result, ...]

    @property
    def worst(self) -> Result:
        """The cell nearest to, or furthest beyond, the target."""
        return (max if self.at_most else min)(self.results, key=lambda r: r.share)

    @property
    def met(self) -> bool:
        """Within three Monte Carlo errors, in every cell."""
        return all(
            r.share <= self.target + 3 * r.error if self.at_most else r.share >= self.target - 3 * r.error
            for r in self.results
        )


@dataclass
class Bench:
    """Draws, judges and remembers."""

    model: Any
    campaigns: int
    seed: int
    judged: dict[tuple[Cell, Rule], Sweep] = field(default_factory=dict)

    def rng(self, cell: Cell) -> np.random.Generator:
        """Every cell has its own stream, so that adding cells changes no other."""
        return np.random.default_rng([self.seed, *cell.name.encode()])

    def draw(self, cell: Cell, *, sequential: bool = False) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        """Log values (campaign, level, observation, run) and which runs are after."""
        y, label = self.model.campaign(
            self.rng(cell), self.campaigns * cell.levels, cell.k, cell.blocks, cell.effect, cell.sd, BUILD,
            cell.interaction, sequential=sequential, one_rack=cell.odd_rack,
        )  # fmt: skip
        shape = (self.campaigns, cell.levels, cell.k, 4 * cell.blocks)
        return y.reshape(shape), (label == 1).reshape(shape)

    def sweep(self, cell: Cell, rule: Rule = Rule()) -> Sweep:  # noqa: B008
        """The rule's verdicts of all campaigns of a cell."""
        key = (cell, rule)
        if key not in self.judged:
            self.judged.clear()  # one cell's arrays at a time
            self.judged[key] = judge_sweep(pair_up(*self.draw(cell)), rule)
        return self.judged[key]

    def share(self, cell: Cell, of: Callable[[Sweep], np.ndarray], rule: Rule = Rule()) -> Result:  # type: ignore[type-arg]  # noqa: B008
        """A share with its binomial error (never below that of one hit)."""
        hits = of(self.sweep(cell, rule))
        p = float(hits.mean())
        floor = max(p, 1.0 / len(hits))
        return Result(cell.name, p, math.sqrt(floor * (1 - min(p, 1 - 1.0 / len(hits))) / len(hits)))


def called(s: Sweep) -> np.ndarray:  # type: ignore[type-arg]
    """Improvement or regression at any level."""
    return np.isin(s.verdict.code, (IMPROVEMENT, REGRESSION)).any(axis=-1)


def word(code: int) -> Callable[[Sweep], np.ndarray]:  # type: ignore[type-arg]
    """One word at the only level."""
    return lambda s: (s.verdict.code == code).any(axis=-1)


def harmless(s: Sweep) -> np.ndarray:  # type: ignore[type-arg]
    """Non-inferior at the only level."""
    return s.verdict.non_inferior_p[..., 0] < 0.05


def covers(effect: float) -> Callable[[Sweep], np.ndarray]:  # type: ignore[type-arg]
    """The 95 % interval holds the truth."""

    def holds(s: Sweep) -> np.ndarray:  # type: ignore[type-arg]
        low, high = s.verdict.pooled.interval(0.95)
        return ((low <= math.log1p(effect)) & (math.log1p(effect) <= high))[..., 0]

    return holds


def grid(ks: tuple[int, ...], *, effect: float = 0.0, levels: int = 1) -> list[Cell]:
    """All blocks and run sds at some numbers of observations."""
    return [Cell(k, b, sd, effect, levels=levels) for k in ks for b in BLOCKS for sd in SDS]


def bars(bench: Bench) -> Iterator[Bar]:
    """Every bar, in the order of the method's table."""

    def many(name: str, target: float, at_most: bool, cells: list[Cell], of: Any, rule: Rule = Rule()) -> Bar:  # noqa: B008
        return Bar(name, target, at_most, tuple(bench.share(c, of, rule) for c in cells))

    def one(name: str, target: float, cell: Cell, of: Any) -> Bar:
        return Bar(name, target, False, (bench.share(cell, of),))

    yield many("false call at zero change, k 2 to 4", 0.05, True, grid((2, 3, 4)), called)
    yield many("false call at zero change, k 1", 0.05, True, grid((1,)), called)
    yield many("any of four null levels, Holm, k 2 to 4", 0.05, True, grid((2, 3, 4), levels=4), called)
    primary = Rule(primary=0)
    yield many(
        "any of four null levels, primary level, k 2 to 4", 0.05, True, grid((2, 3, 4), levels=4), called, primary
    )
    yield many("disagreement at zero change", 0.05, True, grid((2, 3, 4)), word(DISAGREEMENT))
    wrong = [c for effect in (-0.01, -0.02, -0.04) for c in grid((2, 3, 4), effect=effect)]
    yield many("wrong direction at 1 % or more, k 2 to 4", 0.005, True, wrong, word(REGRESSION))
    found = word(IMPROVEMENT)
    yield one("power -2 %, k=3 B=4 sd 1.5 %", 0.90, Cell(3, 4, 0.015, -0.02), found)
    yield one("power -2 %, k=2 B=4 sd 1 %", 0.90, Cell(2, 4, 0.010, -0.02), found)
    yield one("power -2 %, k=4 B=6 sd 2.5 %", 0.88, Cell(4, 6, 0.025, -0.02), found)
    yield one("power -4 %, k=3 B=2 sd 1.5 %", 0.95, Cell(3, 2, 0.015, -0.04), found)
    yield one("power -4 %, k=3 B=3 sd 2.5 %", 0.92, Cell(3, 3, 0.025, -0.04), found)
    yield one("power -2 %, interaction 20 %, k=3 B=4 sd 1.5 %", 0.85, Cell(3, 4, 0.015, -0.02, 0.2), found)
    odd = [Cell(3, 4, 0.015, -0.04, odd_rack=at) for at in (0.0, 0.02)]
    yield many("odd rack among -4 %: not called improvement", 0.87, False, odd, lambda s: ~found(s))
    yield one("odd rack at +2 % among -4 %: disagreement", 0.98, odd[1], word(DISAGREEMENT))
    slow = [(m, Cell(k, 4, 0.015, m)) for m in (0.01, 0.02, 0.03) for k in (1, 2, 3, 4)]
    yield Bar(
        "slowdown equal to the margin called harmless", 0.05, True,
        tuple(bench.share(c, harmless, Rule(margin=m)) for m, c in slow),
    )  # fmt: skip
    yield one("zero change passes non-inferiority at 2 %, k=3 B=4 sd 1.5 %", 0.95, Cell(3, 4, 0.015), harmless)
    yield Bar(
        "95 % interval covers the truth", 0.94, False,
        tuple(bench.share(c, covers(e)) for e in (0.0, -0.02) for c in grid((1, 2, 3, 4), effect=e)),
    )  # fmt: skip


# --- other people's rules on the same draws -----------------------------------------------------------------------


def others(bench: Bench) -> list[dict[str, float | str]]:
    """Shares called (either way at zero change, improvement otherwise) by customary rules, 3 x 4 blocks, sd 1.5 %."""
    effects = (0.0, -0.005, -0.01, -0.02, -0.04)
    columns = {e: _rules(bench, Cell(3, 4, 0.015, e, 0.2)) for e in effects}
    names = list(columns[0.0])
    return [{"rule": name, **{f"{100 * e:g} %": columns[e][name] for e in effects}} for name in names]


def _rules(bench: Bench, cell: Cell) -> dict[str, float]:
    zero = cell.effect == 0.0
    y, after = (a[:, 0] for a in bench.draw(cell))
    late, late_after = (a[:, 0] for a in bench.draw(cell, sequential=True))
    rng = bench.rng(Cell(cell.k, cell.blocks, cell.sd, cell.effect, levels=99))
    spread = np.ptp(bench.model.aa_runs(rng, bench.campaigns, 3, cell.sd), axis=1)
    pairs = pair_up(y, after).log_ratio
    one, mean3 = pairs[:, 0, 0], pairs[:, :, 0].mean(axis=1)
    s = bench.sweep(cell)

    def hit(delta: np.ndarray, significant: np.ndarray) -> float:  # type: ignore[type-arg]
        return float((significant if zero else significant & (delta < 0)).mean())

    return {
        "seed: one delta > range of 3": hit(one, np.abs(one) > spread),
        "seed: mean of 3 deltas > range of 3": hit(mean3, np.abs(mean3) > spread),
        "naive t over requests, all before first": hit(*_naive_t(rng, late, late_after)),
        "naive t over requests, interleaved": hit(*_naive_t(rng, y, after)),
        "Mann-Whitney over runs, all before first": hit(*_mann_whitney(late, late_after)),
        "Mann-Whitney over runs, interleaved": hit(*_mann_whitney(y, after)),
        "this verdict": float((called(s) if zero else word(IMPROVEMENT)(s)).mean()),
        "this verdict: called disagreement": float(word(DISAGREEMENT)(s).mean()),
        "this verdict: called within noise": float(word(WITHIN_NOISE)(s).mean()),
    }


def _arms(y: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Runs of each arm, all racks together; both arms have equally many."""
    flat, label = y.reshape(len(y), -1), after.reshape(len(y), -1)
    order = np.argsort(label, axis=1, kind="stable")
    runs = np.take_along_axis(flat, order, axis=1)
    half = runs.shape[1] // 2
    return runs[:, :half], runs[:, half:]


def _naive_t(rng: np.random.Generator, y: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Welch t over all requests of all runs, as if they were independent."""
    means, variances, n = [], [], 0
    for runs in _arms(y, after):
        requests = runs[..., None] + rng.normal(0, REQUEST_SD, (*runs.shape, REQUESTS))
        pooled = requests.reshape(len(runs), -1)
        n = pooled.shape[1]
        means.append(pooled.mean(axis=1))
        variances.append(pooled.var(axis=1, ddof=1))
    delta = means[1] - means[0]
    t = np.abs(delta) / np.sqrt((variances[0] + variances[1]) / n)
    return delta, 2 * stats.t.sf(t, 2 * n - 2) < 0.05


def _mann_whitney(y: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    before, later = _arms(y, after)
    p = stats.mannwhitneyu(later, before, axis=1, method="asymptotic").pvalue
    return np.median(later, axis=1) - np.median(before, axis=1), np.asarray(p) < 0.05


# --- what it costs ------------------------------------------------------------------------------------------------


def cost(bench: Bench, sd: float = 0.015) -> list[dict[str, Any]]:
    """GPU-hours to find an effect at 90 %: the range rule made honest, ours with restarts, ours in one process."""
    return [row for effect in (0.02, 0.01) for row in _cost(bench, sd, effect)]


def _cost(bench: Bench, sd: float, effect: float) -> Iterator[dict[str, Any]]:
    full, load = START_S + WARMUP_S + LOAD_S, WARMUP_S + LOAD_S
    total_sd = math.sqrt(sd**2 + bench.model.OUT_P * (1 - bench.model.OUT_P) * bench.model.OUT_D**2)
    best = max(range_below(m, effect / total_sd) for m in range(3, 13))
    yield {
        "effect_pct": 100 * effect,
        "rule": "range of m single zero-change runs, n against n",
        "runs": None,
        "gpu_h": None,
        "note": f"no n and m reach 90 %: with endless runs and the best m it finds {100 * best:.0f} %",
    }
    n, m, false, power = honest_range(total_sd, effect)
    runs = n * (2 + m)
    seed_h = runs * full * GPUS / 3600
    yield {
        "effect_pct": 100 * effect, "rule": "(a) range of m zero-change means of n runs, n against n", "runs": runs,
        "gpu_h": seed_h, "note": f"n={n}, m={m}: false calls {100 * false:.1f} %, power {100 * power:.1f} %",
    }  # fmt: skip
    planned = [(k, blocks_for(Design.of_runs(k, sd), effect)) for k in (2, 3, 4)]
    tried = [(k, *_until_power(bench, k, blocks, sd, effect)) for k, blocks in planned if blocks is not None]
    k, b, power = min(tried, key=lambda design: design[0] * design[1])
    note = f"{k} observations x {b} blocks: power {100 * power:.1f} % (heavy tails and drift included)"
    restart_h, process_h = (4 * k * b * full * GPUS / 3600, (k * START_S + 4 * k * b * load) * GPUS / 3600)
    ours_h = {"(b) ours, a server start a run": restart_h, "(c) ours, both graphs in a process": process_h}
    for rule, hours in ours_h.items():
        yield {
            "effect_pct": 100 * effect, "rule": rule, "runs": 4 * k * b, "gpu_h": hours,
            "note": f"{note}; {seed_h / hours:.1f} times cheaper than (a)",
        }  # fmt: skip


def _until_power(bench: Bench, k: int, blocks: int, sd: float, effect: float) -> tuple[int, float]:
    """The planned blocks, and more until the simulated power holds."""
    while True:
        seen = bench.share(Cell(k, blocks, sd, -effect), word(IMPROVEMENT))
        if seen.share >= 0.9:
            return blocks, seen.share
        blocks += 1


def range_below(m: int, sds: float) -> float:
    """Chance that the range of m zero-change values lies below so many standard deviations."""
    return float(stats.studentized_range.cdf(sds, m, np.inf))


def honest_range(sd: float, effect: float) -> tuple[int, int, float, float]:
    """Smallest n (2 + m) runs with at most 5 % false calls and 90 % power.

    Every value is the mean of n runs. Normal noise; rack levels, drift and build effects are left out: a gift.
    """
    m = next(m for m in range(3, 60) if range_exceeded_p(m) <= 0.05)
    n = next(n for n in range(1, 2000) if range_rule_power(m, effect * math.sqrt(n) / sd) >= 0.9)
    return n, m, range_exceeded_p(m), range_rule_power(m, effect * math.sqrt(n) / sd)


def range_rule_power(m: int, sds: float) -> float:
    """P(difference of two values > range of m), the true difference being so many standard deviations of a value."""
    z = np.linspace(-6.0, 6.0, 241)
    weight = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    gap = sds + math.sqrt(2.0) * z
    return float((weight * np.where(gap > 0, stats.studentized_range.cdf(np.maximum(gap, 0.0), m, np.inf), 0.0)).sum())


# --- one and the same rule ----------------------------------------------------------------------------------------


def check_records(bench: Bench, campaigns: int) -> dict[str, int]:
    """Some draws as whole records through `campaign`: the words must be those of the arrays."""
    sys.path.insert(0, str(ROOT / "tests" / "k3bench" / "compare"))
    import campaigns as made

    from k3bench.compare.campaign import campaign
    from k3bench.records.measurement import ARMS_OF

    different, total = 0, 0
    for cell, effect in ((Cell(3, 4, 0.015), -0.02), (Cell(2, 2, 0.025), 0.0), (Cell(1, 6, 0.010), 0.03)):
        of = made.plan(observations=cell.k, blocks=cell.blocks, levels=(1,))
        names = [o.id for o in of.observations]
        after = np.array([[a == "after" for b in o.blocks for a in ARMS_OF[b.order]] for o in of.observations])
        y = bench.draw(cell)[0][:campaigns] + np.where(after, math.log1p(effect), 0.0)
        for one in y:
            times = dict(zip(names, one[0], strict=True))
            seen = campaign(of, made.points(of, lambda o, p, a, c, times=times: 2.5 + float(times[o][p])))
            code = judge_sweep(pair_up(one, after), Rule(primary=0)).verdict.code[0]
            different += seen.headline.word != WORDS[int(code)]
            total += 1
    return {"campaigns": total, "different_words": different}


# --- printing -----------------------------------------------------------------------------------------------------


def load_noise_model() -> Any:
    """The noise model is data of the facts, not ours to copy."""
    if not NOISE_MODEL.exists():
        raise SystemExit(f"{NOISE_MODEL} is absent: the bars are defined by that noise model; place it there")
    spec = importlib.util.spec_from_file_location("noise_model", NOISE_MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_bars(found: list[Bar]) -> None:
    """One line a bar: target, worst cell, error, margin."""
    print(f"{'bar':<62} {'target':>8} {'worst':>7} {'error':>6} {'cells':>5}  met  worst cell")
    for bar in found:
        w, sign = bar.worst, "<=" if bar.at_most else ">="
        print(
            f"{bar.name:<62} {sign}{100 * bar.target:>5.1f}% {100 * w.share:>6.2f}% {100 * w.error:>5.2f}% "
            f"{len(bar.results):>5}  {'yes' if bar.met else 'NO':<3}  {w.cell}"
        )


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    """A plain table of dictionaries."""
    print(f"\n{title}")
    for row in rows:
        cells = [
            f"{100 * v:6.1f}" if isinstance(v, float) and k.endswith("%") else "-" if v is None
            else f"{v:8.1f}" if isinstance(v, float) else str(v)
            for k, v in row.items()
        ]  # fmt: skip
        print("  " + "  ".join([f"{cells[0]:<44}" if "rule" in list(row)[:1] else f"{cells[0]:>4}", *cells[1:]]))


def provenance(args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """What made these numbers."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    dirty = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "--", "workflow/k3bench/compare", "benchmarks/verdict.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    import hashlib

    return {
        "command": f"python benchmarks/verdict.py --campaigns {args.campaigns} --seed {args.seed}",
        "campaigns_a_cell": args.campaigns,
        "seed": args.seed,
        "noise_model_sha256": hashlib.sha256(NOISE_MODEL.read_bytes()).hexdigest(),
        "commit": commit.stdout.strip() or None,
        "uncommitted_changes": bool(dirty.stdout.strip()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": round(seconds, 1),
        "run_length_s": {"start": START_S, "warm_up": WARMUP_S, "load": LOAD_S, "gpus": GPUS},
    }


def main() -> int:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--campaigns", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=17103)
    parser.add_argument("--check-records", type=int, default=60, help="campaigns a cell sent through whole records")
    parser.add_argument("--out", type=Path, help="write the table as JSON here")
    args = parser.parse_args()
    began = time.monotonic()
    bench = Bench(load_noise_model(), args.campaigns, args.seed)
    found = list(bars(bench))
    print_bars(found)
    beside, hours = others(bench), cost(bench)
    print_rows("called, % (either way at 0 %; improvement otherwise); 3 observations x 4 blocks, run sd 1.5 %:", beside)
    print_rows("cost of 90 % power, run sd 1.5 %, 16 GPUs:", hours)
    print(f"\nrange of 3 zero-change runs: a zero change exceeds it {100 * range_exceeded_p(3):.1f} % of the time")
    same = check_records(bench, args.check_records)
    print(f"through whole records: {same['campaigns']} campaigns, {same['different_words']} with another word")
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s")
    if args.out:
        table = {
            "schema": "k3bench.verdict-bars/1",
            "bars": [{**asdict(b), "met": b.met, "worst": asdict(b.worst)} for b in found],
            "rules_beside": beside,
            "cost": hours,
            "records": same,
            "provenance": provenance(args, seconds),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        print(f"written: {args.out}")
    return 0 if all(b.met for b in found) and not same["different_words"] else 1


if __name__ == "__main__":
    sys.exit(main())
