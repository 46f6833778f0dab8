"""Attention's kernels at K3's rank shapes, by their constants: absorb, attend, combine, and the last two in turn.

In: nothing, or the batches wanted. Out: a table in microseconds a launch, caches and weights cold, with each setting's
distance from the twins in float64. Needs a GPU.

    python benchmarks/attention.py                        # settings one by one
    python benchmarks/attention.py --pdl --context 8320   # launched as a step with PDL does; tokens in the cache
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from kernel_timing import copies, launch_us

from k3model.cache import LatentCache, Rows
from k3model.config import preset
from k3model.kernels import attention, mla

BATCHES = (1, 2, 4, 8)
CAPACITY, PAGE = 8448, 64
#: ||out - reference|| / ||reference||: a few roundings to bfloat16, of 0.3 % each. Wrong is near one.
CLOSE = 2e-2
#: Constants of `attention` (and ABSORBED of `mla`) to try; the first is as they stand.
SETTINGS: tuple[dict[str, int], ...] = (
    {},
    {"PIECE": 128},
    {"PIECE": 512},
    {"PROGRAMS": 132},
    {"PROGRAMS": 132, "STAGES": 4},
    {"STAGES": 2, "PROGRAMS": 396},
    {"MOST_SHARES": 66},
    {"VALUES": 16, "ABSORBED": 16},
    {"ADDED": 32, "ADDED_STAGES": 3, "ABSORBED": 64},
    {"VALUES": 16, "ADDED_STAGES": 6},
)


@contextmanager
def constants(setting: dict[str, int]) -> Iterator[None]:
    """The kernels' modules with other constants."""
    owners = {name: mla if name == "ABSORBED" else attention for name in setting}
    before = {name: getattr(owner, name) for name, owner in owners.items()}
    for name, owner in owners.items():
        setattr(owner, name, setting[name])
    try:
        yield
    finally:
        for name, owner in owners.items():
            setattr(owner, name, before[name])


class Case:
    """What the kernels of one batch read, in enough copies that none is found in the L2."""

    def __init__(self, batch: int, context: int) -> None:
        config = preset("rank-93")
        self.h, self.C, self.N = config.mla_heads_local, config.kv_lora_rank, config.qk_nope_dim
        size, pages = config.latent_row, batch * CAPACITY // PAGE
        self.scale = (self.N + config.qk_rope_dim) ** -0.5
        torch.manual_seed(0)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        self.caches = [LatentCache(draw(pages, PAGE, size)) for _ in range(copies(pages * PAGE * size * 2))]
        per_head = self.N + config.v_dim
        self.weights = [draw(self.h, per_head, self.C) * self.C**-0.5 for _ in range(copies(self.h * per_head * 1024))]
        self.q, self.query = draw(batch, self.h, self.N + config.qk_rope_dim), draw(batch, self.h, size)
        self.fused, self.gate = torch.empty_like(self.query), draw(batch, self.h * config.v_dim)
        self.lengths = torch.full((batch,), context, device="cuda")
        table = torch.randperm(pages, device="cuda").view(batch, -1)
        self.rows = Rows(torch.arange(batch, device="cuda"), self.lengths, table, False, PAGE)

    def absorb(self, i: int, pdl: bool = False) -> None:
        """M3 on the i-th weights."""
        mla.absorb(self.q, self.weights[i][:, : self.N], self.fused, pdl=pdl)

    def attend(self, i: int, pdl: bool = False) -> attention.Attended:
        """M5 on the i-th cache."""
        return attention.attend(self.query, self.caches[i], self.rows, self.lengths, self.scale, self.C, pdl=pdl)

    def combine(self, attended: attention.Attended, i: int, pdl: bool = False) -> torch.Tensor:
        """M6 on the i-th weights."""
        return attention.combine(attended, self.weights[i][:, self.N :].mT, self.gate, pdl=pdl)

    def gaps(self) -> tuple[float, float]:
        """How far absorb, and attend with combine, are from their twins in float64."""
        self.absorb(0)
        W = self.weights[0].double()
        columns = torch.zeros_like(self.query, dtype=torch.float64)
        mla.absorb_twin(self.q.double(), W[:, : self.N], columns)
        wide = LatentCache(self.caches[0].pages.double())
        attended = attention.attend_twin(self.query.double(), wide, self.rows, self.lengths, self.scale, self.C)
        expected = attention.combine_twin(attended, W[:, self.N :].mT, self.gate.double())
        out = self.combine(self.attend(0), 0)
        return apart(self.fused[..., : self.C], columns[..., : self.C]), apart(out, expected)


def apart(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||; infinite if anything is not finite."""
    gap = float((out.double() - expected).norm() / expected.norm())
    return gap if gap == gap else float("inf")


def measure(case: Case, pdl: bool) -> dict[str, float]:
    """Microseconds a launch. Combine alone finds its parts in the L2, as it does behind attend."""
    attended, caches, weights = case.attend(0), len(case.caches), len(case.weights)
    return {
        "absorb": launch_us(lambda i: case.absorb(i, pdl), weights),
        "attend": launch_us(lambda i: case.attend(i, pdl), caches),
        "combine": launch_us(lambda i: case.combine(attended, i, pdl), weights),
        "both": launch_us(lambda i: case.combine(case.attend(i, pdl), i % weights, pdl), caches),
    }


def main() -> None:
    """One line for each batch and setting."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--context", type=int, default=8200, help=f"cached tokens a row, at most {CAPACITY}")
    parser.add_argument("--pdl", action="store_true", help="launch with programmatic dependent launch")
    parser.add_argument("--settings", type=int, nargs="+", default=list(range(len(SETTINGS))), help="which, from 0 on")
    args = parser.parse_args()
    for batch in args.batches:
        case = Case(batch, args.context)
        for setting in (SETTINGS[i] for i in args.settings):
            with constants(setting):
                name = " ".join(f"{key}={value}" for key, value in setting.items()) or "as it stands"
                try:
                    gaps = case.gaps()
                    times = measure(case, args.pdl)
                except Exception as error:
                    print(f"b{batch} {name:28} FAILED {type(error).__name__}: {error}"[:300], flush=True)
                    continue
            right = "right" if max(gaps) <= CLOSE else "WRONG"
            line = "  ".join(f"{key} {us:6.2f}" for key, us in times.items())
            print(f"b{batch} {name:28} {line}  {right} {gaps[0]:.4f} {gaps[1]:.4f}", flush=True)
        del case
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
