#!/bin/sh
# The kernels and the decode step on one GPU, on a bare machine (see h200_observation.sh): every stage is one command.
#
#   benchmarks/h200_decode.sh tests      kernels against their twins, the step, equality of policies with kernels on
#   benchmarks/h200_decode.sh tune       which blocks are fastest, beside cuBLAS and the twins: $OUT/choices.json
#   benchmarks/h200_decode.sh decode     step against floor, harness, op budget, forks, policies
#   benchmarks/h200_decode.sh peers      the step under torch.compile, fla-core's KDA kernel
#
# OUT: where tables and records go (default: results/decode). SET: options on top of the recipe's, e.g. "--set pdl=true".
# What `tune` makes belongs into k3model/kernels/choices.json; policy_table.py makes k3model/policies.json from decode.json
# of several boots.
set -u
cd "$(dirname "$0")/.."
stage=${1:?tests, tune, decode or peers}
OUT=${OUT:-results/decode}
export PYTHONPATH="$PWD/workflow:$PWD" CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
mkdir -p "$OUT"
case "$stage" in
    tests)
        side_by_side=""
        python3 -c 'import xdist' 2> /dev/null && side_by_side="-n 8"
        # shellcheck disable=SC2086
        python3 -m pytest tests/k3model/kernels -m gpu -q -p no:cacheprovider $side_by_side --junitxml "$OUT/tests.xml" > "$OUT/tests.txt" 2>&1
        tail -1 "$OUT/tests.txt"
        python3 -m k3bench plan recipes/h200-rank93.yaml --out "$OUT/plan.json" > /dev/null
        for arm in before after; do python3 -m k3bench build "$OUT/plan.json" "p1/$arm" > /dev/null; done
        python3 -m k3bench verify "$OUT/plan.json" obs1 --preset small --budget "${VERIFY_S:-60}" \
            --out "$OUT/equivalence.json" > "$OUT/verify.txt" 2>&1
        tail -1 "$OUT/verify.txt"
        ;;
    tune)
        python3 benchmarks/kernels.py --out "$OUT" --processes "$(nproc)" > "$OUT/kernels.txt" 2>&1
        cat "$OUT/kernels.txt"
        ;;
    decode)
        # shellcheck disable=SC2086
        python3 benchmarks/decode.py ${SET:-} --out "$OUT/decode.json" > "$OUT/decode.txt" 2>&1
        cat "$OUT/decode.txt"
        ;;
    peers)
        # shellcheck disable=SC2086
        python3 benchmarks/decode.py ${SET:-} --sections peers --out "$OUT/peers.json" > "$OUT/peers.txt" 2>&1
        cat "$OUT/peers.txt"
        ;;
    *) echo "stage is tests, tune, decode or peers, not $stage"; exit 2 ;;
esac
