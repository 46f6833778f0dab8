#!/bin/sh
# One observation of a distributed recipe, its zero-change twin, profiled runs of every rank, residency, equality, on a
# bare machine with as many GPUs as ranks. A stage ends within ten minutes; h200_observation.sh says what it needs.
#
#   benchmarks/h200_ranks.sh recipes/h200-tp2.yaml obs1              all of it; obs2 is another boot, with the same OUT
#   benchmarks/h200_ranks.sh recipes/h200-tep8.yaml obs1 measure     the timed runs; then evidence: a command each
#   K3_DRY=1 OUT=/tmp/dry benchmarks/h200_ranks.sh recipes/h200-tp2.yaml obs1    nano over gloo: the path, not the times
#
# OUT: where results and the pack go (default: results). LIMIT_S: equality probes end before this (default 570).
set -u
cd "$(dirname "$0")/.."
recipe=${1:?which recipe: recipes/h200-tp2.yaml, recipes/h200-tep4.yaml or recipes/h200-tep8.yaml}
observation=${2:?which observation: obs1 or obs2}
stage=${3:-all}
began=$(date +%s)
ranks=$(sed -n 's/.*tp_size: \([0-9]*\).*/\1/p' "$recipe")
# NVLink multicast stays off, as found: on a shared host it can put the GPUs out of service.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" NVSHMEM_DISABLE_NVLS="${NVSHMEM_DISABLE_NVLS:-1}"
export TORCH_SYMM_MEM_DISABLE_MULTICAST="${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}" RECIPE="$recipe" ONE_TOOL=1
[ "$ranks" -le 4 ] || export DRY_PRESET=small-16 # nano has four heads
if [ -z "${K3_DRY:-}" ]; then
    found=$(python3 -c 'import torch; print(torch.cuda.device_count())')
    [ "$found" -ge "$ranks" ] || { echo "$recipe needs $ranks GPUs, this machine shows $found"; exit 2; }
fi

measured() {
    for seen in "$observation" "zero${observation#obs}"; do
        benchmarks/h200_observation.sh "$seen" measure
        grep -qs '"status":"measured"' "${OUT:-results}/$(basename "$recipe" .yaml)/observations/$seen/alloc1.json" ||
            { echo "$seen: NOT measured"; failed=1; }
    done
}

evidence() {
    left=$((${LIMIT_S:-570} - $(date +%s) + began - 45 * ranks)) # profiled runs and exports come before the probes
    export VERIFY_S=$((left > 0 ? (left / 2 < 75 ? left / 2 : 75) : 0))
    benchmarks/h200_observation.sh "$observation" evidence || failed=1
}

failed=0
case "$stage" in
    measure) measured ;;
    evidence) evidence ;;
    all) measured; evidence ;;
    *) echo "stage is measure, evidence or all, not $stage"; exit 2 ;;
esac
echo "$ranks ranks, $observation: $(($(date +%s) - began)) s in all"
exit "$failed"
