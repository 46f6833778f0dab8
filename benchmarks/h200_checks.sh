#!/bin/sh
# What only a GPU can answer besides campaigns, in one command of about eight minutes; a short table last.
#
#   benchmarks/h200_checks.sh                     prefill of rank-93, equality under memory pressure, GPU tests
#   K3_DRY=1 benchmarks/h200_checks.sh            the same path with nano on a CPU
#
# OUT: where logs and records go (default: results/checks). No installation; python3 needs torch, triton, pytest, pydantic.
set -u
cd "$(dirname "$0")/.."
OUT=${OUT:-results/checks}
preset=rank-93 tokens=8192 device=cuda probed=block-12 budget=150
if [ "${K3_DRY:-}" ]; then preset=nano tokens=256 device=cpu probed=nano budget=5; fi
export PYTHONPATH="$PWD/workflow:$PWD" CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
mkdir -p "$OUT"
table=""
row() { table="$table$(printf '%-34s %s' "$1" "$2")
"; }

python3 - "$preset" "$tokens" "$device" > "$OUT/prefill.txt" 2>&1 << 'PROGRAM'
import sys, time
import torch
from k3model.capture import Decode
from k3model.config import preset
from k3model.decode import build
from k3model.policy import policy

name, tokens, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
kernels = "triton" if device == "cuda" else "torch"
started = time.monotonic()
model = build(preset(name, kernels=kernels), device=device, max_batch=1, context=tokens + 64)
session = Decode(model, policy("serial"), 1)
prompt = torch.randint(0, model.config.vocab_local, (1, tokens), generator=torch.Generator().manual_seed(0))
session.prefill(prompt[:, :64])
session.clear()
session.position()
print(f"built after {time.monotonic() - started:.1f} s")
started = time.monotonic()
session.prefill(prompt)
assert session.position() == tokens and bool(torch.isfinite(session.model.caches.state).all())
print(f"prefill of {tokens} tokens, {name}: {time.monotonic() - started:.2f} s")
PROGRAM
row "prefill (< 60 s)" "$(tail -1 "$OUT/prefill.txt")"

plan=$OUT/h200-first/plan.json
python3 -m k3bench plan recipes/h200-first.yaml --out "$plan" > /dev/null
for arm in before after; do
    python3 -m k3bench build "$plan" "p1/$arm" > "$OUT/build.txt" 2>&1 || cat "$OUT/build.txt"
done
python3 -m k3bench verify "$plan" obs1 --device "$device" --preset "$probed" --budget "$budget" --out "$OUT/equivalence.json" \
    > "$OUT/verify.txt" 2>&1
for status in pass fail not_run; do
    row "equality $probed, $status" "$(grep -c ": $status" "$OUT/verify.txt") rows"
    row "  of them under memory pressure" "$(grep 'memory recycled' "$OUT/verify.txt" | grep -c ": $status") rows"
done

side_by_side=""
python3 -c 'import xdist' 2> /dev/null && side_by_side="-n 6"
# shellcheck disable=SC2086
timeout 400 python3 -m pytest tests/k3model -m gpu -q -p no:cacheprovider $side_by_side --junitxml "$OUT/pytest.xml" > "$OUT/pytest.txt" 2>&1
row "pytest tests/k3model -m gpu" "$(tail -1 "$OUT/pytest.txt")"
printf '\n%s' "$table"
