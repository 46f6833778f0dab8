"""Weight-bound kernels at K3's rank shapes: which blocks are fastest, beside cuBLAS and the torch twins in one run.

In: nothing, or the batches and cases wanted. Out: a table, every configuration tried as JSON lines, and the choices
for k3model/kernels/choices.json. A configuration whose result is not the twin's is never chosen. Needs a GPU.

    python benchmarks/kernels.py --out OUT                # all of it, kernels compiled side by side first
    python benchmarks/kernels.py --out OUT --pdl          # the same with programmatic dependent launch
    python benchmarks/kernels.py --out OUT --check        # every kernel once against its twin, no timing
    cp OUT/choices.json k3model/kernels/choices.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import copies, launch_us

from k3model.config import preset
from k3model.hits import seeded_hits
from k3model.kernels import choices, experts_fma, experts_mma, gemv, moe, norm
from k3model.kernels.choices import Choice
from k3model.kernels.packed import Hits, Packed, known_hits

Log = Callable[[dict[str, object]], None]
#: Name, blocks, and a function of the index of a set of inputs.
Way = tuple[str, tuple[Choice, Choice], Callable[[int], torch.Tensor]]

BATCHES = (1, 2, 4, 8)
BETAS = (4.0, 25.0)
EPS = 1e-5
#: Bytes a second of a pure read on an H200, as measured.
READ = 4.45e12
#: ||out - reference|| / ||reference|| against float64: a few roundings to bfloat16, of 0.3 % each. Wrong is near one.
CLOSE = 2e-2


@dataclass(frozen=True)
class Case:
    """A weight [rows, columns] ([2 rows, columns] for situ) of one rank of `rank-93`, and where it is."""

    op: str
    rows: int
    columns: int
    where: str

    @property
    def bytes(self) -> int:
        """Weights read by one launch."""
        return self.rows * self.columns * (4 if self.op == "situ" else 2)

    def __str__(self) -> str:
        return f"{self.op} {self.rows}x{self.columns}"


CASES = (
    Case("linear", 3072, 7168, "KDA q|k|v|g"),
    Case("linear", 136, 7168, "KDA f_a|b"),
    Case("linear", 768, 128, "KDA f_b"),
    Case("linear", 7168, 768, "KDA, MLA out"),
    Case("linear", 1536, 7168, "MLA q_a"),
    Case("linear", 576, 7168, "MLA kv_a"),
    Case("norm", 1152, 1536, "MLA q_b"),
    Case("linear", 768, 7168, "MLA gate"),
    Case("linear", 896, 7168, "router"),
    Case("linear", 3584, 7168, "latent down"),
    Case("norm", 7168, 3584, "latent up"),
    Case("situ", 384, 7168, "shared gate, up"),
    Case("linear", 7168, 384, "shared down"),
    Case("situ", 2112, 7168, "dense gate, up"),
    Case("linear", 7168, 2112, "dense down"),
    Case("linear", 10240, 7168, "lm_head"),
    Case("linear", 3208, 7168, "fused KDA q|k|v|g|f_a|b"),
    Case("linear", 2112, 7168, "fused MLA q_a|kv_a"),
)
EXPERTS = preset("rank-93")


def candidates(case: Case, batch: int) -> list[Choice]:
    """A modest list: the rule's own, its neighbours, and blocks for the tensor cores."""
    halves = 2 if case.op == "situ" else 1
    own = choices.rule(case.rows, case.columns, batch, paired=halves == 2)
    found = [own, *(_mma(case, halves) if case.columns >= 256 else ())]
    if batch <= 4:
        found += _fma(case, batch, halves)
    return list(dict.fromkeys(found))


def _fma(case: Case, batch: int, halves: int) -> Iterator[Choice]:
    widest = case.columns & -case.columns
    widths = [w for w in (1024, 512, 256, 128) if w <= widest][:2] or [1024]
    fitting: list[tuple[float, int, Choice]] = []
    others: list[tuple[float, int, Choice]] = []
    for block_k in widths:
        steps = -(-case.columns // block_k)
        for block_n in (1, 2, 4, 8, 16, 32):
            for warps in (1, 2, 4, 8):
                each = halves * block_n * block_k / (64 * warps)  # registers a thread for one piece
                ahead = min(steps, int((64 if batch <= 2 else 24) // each)) if each >= halves * 4 else 0
                programs = case.rows / block_n
                if ahead and (programs >= 128 or block_n == 1):
                    flying = halves * block_n * block_k * 2 * ahead * min(programs / 132, 2048 / (32 * warps), 32)
                    choice = Choice("fma", block_n, block_k, ahead, warps)
                    (fitting if block_k == 256 * warps else others).append((-min(flying, 160e3), block_n, choice))
    most = {1: 6, 2: 4}.get(batch, 2)
    for ranked in (fitting, others):  # those whose x needs no other layout, and the rest
        yield from (choice for _, _, choice in sorted(ranked, key=lambda item: item[:2])[:most])


def _mma(case: Case, halves: int) -> Iterator[Choice]:
    pieces, wide = case.columns // 64, case.rows * halves >= 16 * choices.PROCESSORS
    for warps in [w for w in ((1, 2, 4, 8) if wide else (1, 2, 4, 8, 16)) if pieces >= 3 * w][-2:]:
        for rows in (32, 16, 8) if wide else (16, 8, 4):
            for ahead in sorted({min(-(-pieces // warps), n) for n in ((4, 8) if rows >= 16 else (8, 14))}):
                if rows * ahead <= 128:  # registers
                    yield Choice("mma", rows // halves, 64, ahead, warps)


def operands(case: Case, batch: int, sets: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """x, a norm, and as many weights as asked for."""
    torch.manual_seed(0)
    rows = case.rows * (2 if case.op == "situ" else 1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    weights = [draw(rows, case.columns).mul_(case.columns**-0.5) for _ in range(sets)]
    return draw(batch, case.columns), 1 + 0.1 * draw(case.columns), weights


def caller(case: Case, x: torch.Tensor, norm: torch.Tensor, **how: object) -> Callable[[torch.Tensor], torch.Tensor]:
    """The kernel of a case as a function of its weight."""
    if case.op == "norm":
        return lambda weight: gemv.norm_linear(x, norm, EPS, weight, **how)  # type: ignore[arg-type]
    if case.op == "situ":
        return lambda weight: gemv.situ_linear(x, weight, *BETAS, **how)  # type: ignore[arg-type]
    if case.where in ("router", "lm_head"):
        return lambda weight: gemv.linear_wide(x, weight, **how)  # type: ignore[arg-type]
    return lambda weight: gemv.linear(x, weight, **how)  # type: ignore[arg-type]


def twin(case: Case, x: torch.Tensor, norm: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its torch twin."""
    if case.op == "norm":
        return lambda weight: gemv.norm_linear_twin(x, norm, EPS, weight)
    if case.op == "situ":
        return lambda weight: gemv.situ_linear_twin(x, weight, *BETAS)
    if case.where in ("router", "lm_head"):
        return lambda weight: gemv.linear_wide_twin(x, weight)
    return lambda weight: gemv.linear_twin(x, weight)


def reference(case: Case, x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The twin in float64."""
    return twin(case, x.double(), norm.double())(weight.double())


def apart(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||; infinite if anything is not finite."""
    gap = float((out.double() - expected.double()).norm() / expected.double().norm())
    return gap if gap == gap else float("inf")


def precompile(work: tuple[Case, int, list[Choice], bool]) -> None:
    """In a process of its own: what the timed run will find in Triton's cache."""
    case, batch, found, pdl = work
    x, norm, (weight,) = operands(case, batch, 1)
    for choice in found:
        try:
            caller(case, x, norm, choice=choice, pdl=pdl)(weight)
        except Exception as error:
            print(f"{case} batch {batch} {choice} pdl {pdl}: {type(error).__name__}: {error}"[:300], flush=True)


def tune(case: Case, batch: int, log: Log, *, pdl: bool, check: bool) -> Choice | None:
    """Time every candidate, print the case's line, return the fastest right one."""
    sets = 1 if check else copies(case.bytes)
    x, norm, weights = operands(case, batch, sets)
    expected, times = reference(case, x, norm, weights[0]), []
    for choice in candidates(case, batch):
        try:
            call = caller(case, x, norm, choice=choice, pdl=pdl)
            gap = apart(call(weights[0]), expected)
            if gap > CLOSE or check:
                log({"case": str(case), "batch": batch, **asdict(choice), "gap": gap, "right": gap <= CLOSE})
                continue
            us = launch_us(lambda i, call=call: call(weights[i]), sets)  # type: ignore[misc]
            times.append((us, choice))
            log({"case": str(case), "batch": batch, **asdict(choice), "us": us, "gap": gap})
        except Exception as error:
            log(
                {"case": str(case), "batch": batch, **asdict(choice), "error": f"{type(error).__name__}: {error}"[:500]}
            )
    if not times:
        return None
    us, best = min(times, key=lambda item: item[0])
    plain = twin(case, x, norm)
    own = choices.rule(case.rows, case.columns, batch, paired=case.op == "situ")
    row: dict[str, object] = {"rule": next((us for us, choice in times if choice == own), None)}
    row["twin"] = launch_us(lambda i: plain(weights[i]), sets)
    row["cublas"] = launch_us(lambda i: torch.mm(x, weights[i].t()), sets)
    report(f"{case} ({case.where})", batch, us, case.bytes, row, best)
    log({"case": str(case), "batch": batch, "best": asdict(best), "us": us, **row})
    return best


def report(name: str, batch: int, us: float, size: int, row: dict[str, object], best: object) -> None:
    """One line of the table."""
    ideal = size / READ * 1e6
    others = " ".join(f"{key} {value:6.1f}" for key, value in row.items() if isinstance(value, float))
    print(
        f"{name:38} b{batch}  {us:6.2f} us  {us / ideal:5.2f} x floor  {size / us / 1e3:6.0f} GB/s  {others}  {best}",
        flush=True,
    )


def bank(seed: int) -> Packed:
    """Eight experts of random codes."""
    draw = torch.Generator("cuda").manual_seed(seed)
    E, inner, latent = EXPERTS.local_experts, EXPERTS.expert_intermediate, EXPERTS.latent

    def codes(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=draw, device="cuda", dtype=torch.uint8)

    return Packed(
        codes(0, 256, E, 2, inner, latent // 2), codes(117, 121, E, 2, inner, latent // 32),
        codes(0, 256, E, latent, inner // 2), codes(117, 121, E, latent, inner // 32),
    )  # fmt: skip


def expert_blocks() -> Iterator[tuple[Choice, Choice]]:
    """Warps, chunks asked for ahead, and rows, of gate-and-up and of down: those whose registers do not spill."""
    for up in ((2, 4, 16), (4, 4, 16), (4, 7, 16), (8, 2, 16), (4, 1, 32), (4, 2, 32), (8, 2, 32)):
        for down in ((4, 3, 16), (4, 4, 16), (4, 6, 16), (8, 1, 16), (8, 2, 16), (4, 2, 32)):
            yield choices.expert_rule("mma", *up), choices.expert_rule("mma", *down)


def expert_inputs(batch: int) -> tuple[torch.Tensor, torch.Tensor, Hits]:
    """z, weights, and the hits of a layer of `rank-93`."""
    hits = known_hits([[hit] for hit in seeded_hits(EXPERTS, 5, batch)], torch.device("cuda"))
    torch.manual_seed(1)
    z = torch.randn(batch, EXPERTS.latent, device="cuda", dtype=torch.bfloat16)
    return z, torch.rand(batch, 1, device="cuda"), hits


def expert_ways(batch: int, banks: list[Packed], pdl: bool) -> Iterator[Way]:
    """Every way to run the experts."""
    z, mix, hits = expert_inputs(batch)
    laid_out = [bank.interleave() for bank in banks]

    def on_tensor_cores(blocks: tuple[Choice, Choice], i: int) -> torch.Tensor:
        return experts_mma.experts(z, mix, hits, laid_out[i], *BETAS, blocks, pdl=pdl)

    def on_plain_cores(blocks: tuple[Choice, Choice], i: int) -> torch.Tensor:
        return experts_fma.experts(z, mix, hits.table, banks[i], *BETAS, blocks, pdl=pdl)

    for blocks in expert_blocks():
        yield "mma", blocks, partial(on_tensor_cores, blocks)
    blocks = choices.expert_rule("fma"), choices.expert_rule("fma")
    yield "fma", blocks, partial(on_plain_cores, blocks)


def precompile_experts(work: tuple[int, bool]) -> None:
    """The same as `precompile`, for the experts of one batch."""
    batch, pdl = work
    for name, blocks, call in expert_ways(batch, [bank(0)], pdl):
        try:
            call(0)
        except Exception as error:
            print(f"experts batch {batch} {name} {blocks}: {type(error).__name__}: {error}"[:300], flush=True)


def tune_experts(batch: int, banks: list[Packed], log: Log, *, pdl: bool, check: bool) -> tuple[Choice, Choice] | None:
    """The same for the routed experts: both matrices, two launches."""
    z, mix, hits = expert_inputs(batch)
    expected, times = moe.experts_twin(z.double(), mix.double(), hits, banks[0], *BETAS), []
    row: dict[str, object] = {}
    for name, blocks, call in expert_ways(batch, banks, pdl):
        what: dict[str, object] = {"case": "experts", "batch": batch, "way": name, "warps": [b.warps for b in blocks]}
        what |= {"ahead": [b.ahead for b in blocks], "block_n": [b.block_n for b in blocks]}
        try:
            gap = apart(call(0), expected)
            log({**what, "gap": gap, "right": gap <= CLOSE})
            if gap > CLOSE or check:
                continue
            us = launch_us(call, len(banks))
            log({**what, "us": us})
            if name == "fma":  # for comparison: a bank with known hits is interleaved, which only "mma" reads
                row["fma"] = us
            else:
                times.append((us, blocks))
        except Exception as error:
            log({**what, "error": f"{type(error).__name__}: {error}"[:500]})
    if not times:
        return None
    us, best = min(times, key=lambda item: item[0])
    row["twin"] = launch_us(lambda i: moe.experts_twin(z, mix, hits, banks[i], *BETAS), len(banks))
    distinct = len(set(seeded_hits(EXPERTS, 5, batch)))
    size = distinct * 3 * EXPERTS.expert_intermediate * EXPERTS.latent * 17 // 32
    report(f"experts, {distinct} of 8 hit", batch, us, size, row, [(b.path, b.warps, b.ahead, b.block_n) for b in best])
    return best


def picks(log: Log) -> None:
    """Top-k of the router by warps of its one program, beside torch."""
    for batch in BATCHES:
        logits, bias = torch.randn(batch, 896, device="cuda"), torch.randn(896, device="cuda") * 0.05
        row = {"twin": launch_us(lambda i: moe.pick_twin(logits, bias, 16, 1.0), 1)}  # noqa: B023
        right = torch.equal(moe.pick(logits, bias, 16, 1.0)[0], moe.pick_twin(logits, bias, 16, 1.0)[0])
        for warps in (4, 8):
            row[f"{warps} warps"] = launch_us(lambda i: moe.pick(logits, bias, 16, 1.0, warps=warps), 1)  # noqa: B023
        print(f"{'pick 16 of 896':38} b{batch}  right: {right}  " + " ".join(f"{k} {v:.2f} us" for k, v in row.items()))
        log({"case": "pick", "batch": batch, "right": right, **row})


def norms(log: Log) -> None:
    """RMSNorm of the hidden width, alone and after an add, beside torch and Liger Kernel where it can be imported."""
    if importlib.util.find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_fused_add_rms_norm, liger_rms_norm
    else:
        liger_rms_norm = liger_fused_add_rms_norm = None
    for batch in BATCHES:
        bank = torch.randn(1, batch, 7168, device="cuda", dtype=torch.bfloat16)
        added, weight = torch.randn_like(bank[0]), torch.ones(7168, device="cuda", dtype=torch.bfloat16)
        directions, kept = torch.zeros(1, 7168, device="cuda"), norm.Kept.of(bank, 1)
        calls: dict[str, Callable[[int], object]] = {
            "norm": lambda i: norm.add_mix_norm(bank, 0, (), False, directions, None, weight, EPS, kept),  # noqa: B023
            "torch": lambda i: F.rms_norm(bank[0], (7168,), weight, EPS),  # noqa: B023
            "add, norm": lambda i: norm.add_mix_norm(bank, 0, (added,), False, directions, None, weight, EPS, kept),  # noqa: B023
            "torch add, norm": lambda i: F.rms_norm(bank[0].add_(added), (7168,), weight, EPS),  # noqa: B023
        }
        if liger_rms_norm is not None:
            calls["liger"] = lambda i: liger_rms_norm(bank[0], weight, EPS)  # noqa: B023
            calls["liger add, norm"] = lambda i: liger_fused_add_rms_norm(bank[0], added, weight, EPS)  # noqa: B023
        row = {}
        for name, call in calls.items():
            try:
                with torch.no_grad():
                    row[name] = launch_us(call, 1)
            except Exception as error:
                log({"case": "norm", "batch": batch, "way": name, "error": f"{type(error).__name__}: {error}"[:500]})
        print(f"{'RMSNorm of 7168':38} b{batch}  " + "  ".join(f"{k} {v:.2f} us" for k, v in row.items()), flush=True)
        log({"case": "norm", "batch": batch, **row})


def mixes(log: Log) -> None:
    """Two addends, the mix of so many snapshots, the norm: by warps of a row's one program, beside torch."""
    for batch, snapshots in ((b, s) for b in (1, 8) for s in (1, 4, 8)):
        bank = torch.randn(9, batch, 7168, device="cuda", dtype=torch.bfloat16)
        others, weight = (torch.randn_like(bank[0]), torch.randn_like(bank[0])), torch.ones_like(bank[0, 0])
        directions, kept = torch.randn(187, 7168, device="cuda") * 0.01, norm.Kept.of(bank, 187)
        kept.squares.copy_(bank.float().square().sum(-1))
        row = {"keep": launch_us(lambda i: norm.keep(kept, bank, 0, directions), 1)}  # noqa: B023
        for top in range(snapshots):
            norm.keep(kept, bank, top, directions)
        told = bank, snapshots, others, True, directions, 3, weight, EPS, kept
        row["twin"] = launch_us(lambda i: norm.add_mix_norm_twin(*told), 1)  # noqa: B023
        for warps in (4, 8, 16):
            row[f"{warps} warps"] = launch_us(lambda i: norm.add_mix_norm(*told, warps=warps), 1)  # noqa: B023
        gap = apart(norm.add_mix_norm(*told), norm.add_mix_norm_twin(*told))
        words = "  ".join(f"{k} {v:.2f} us" for k, v in row.items())
        print(f"{f'add, mix of {snapshots} snapshots, norm':38} b{batch}  gap {gap:.1e}  {words}", flush=True)
        log({"case": "mix", "batch": batch, "snapshots": snapshots, "gap": gap, **row})


def main() -> None:
    """Compile side by side, then time one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for choices.json and kernels.jsonl")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name or place contains one of these words")
    parser.add_argument("--pdl", action="store_true", help="launch with programmatic dependent launch")
    parser.add_argument("--check", action="store_true", help="every candidate against its twin, no timing")
    parser.add_argument("--processes", type=int, default=12, help="compiling processes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    wanted = [c for c in CASES if not args.only or any(word in f"{c} {c.where}" for word in args.only)]
    experts_too = not args.only or "experts" in args.only
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        jobs = []
        for batch in sorted(args.batches, reverse=True):  # the longest to compile first
            jobs += [pool.apply_async(precompile_experts, ((batch, args.pdl),))] if experts_too else []
            for case in wanted:
                found = candidates(case, batch)
                for part in (found[::2], found[1::2]):
                    jobs.append(pool.apply_async(precompile, ((case, batch, part, args.pdl),)))
        for job in jobs:
            job.get()
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    chosen = dict(choices.measured())  # of the cases that are not run now
    with (args.out / "kernels.jsonl").open("w") as lines:

        def log(record: dict[str, object]) -> None:
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            if "error" in record or record.get("right") is False:
                print("FAILED", record, flush=True)

        for case in wanted:
            for batch in args.batches:
                best = tune(case, batch, log, pdl=args.pdl, check=args.check)
                if best is not None:
                    chosen[choices.key(case.op, case.rows, case.columns, batch)] = best
            torch.cuda.empty_cache()
        if experts_too:
            banks = [bank(seed) for seed in range(1 if args.check else 3)]
            for batch in args.batches:
                pair = tune_experts(batch, banks, log, pdl=args.pdl, check=args.check)
                if pair is not None:
                    inner, latent = EXPERTS.expert_intermediate, EXPERTS.latent
                    chosen[choices.key("expert up", inner, latent, batch)] = pair[0]
                    chosen[choices.key("expert down", latent, inner, batch)] = pair[1]
        if not args.check and not args.only:
            picks(log)
            norms(log)
            mixes(log)
    if not args.check:
        made = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": version("triton")}
        choices.write(chosen, {**made, "pdl": args.pdl}, args.out / "choices.json")
    print(f"done in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
