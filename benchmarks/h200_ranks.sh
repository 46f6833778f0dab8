#!/bin/sh
# One observation of a distributed recipe, its zero-change twin, profiled runs of every rank, residency and equality: one
# command of at most ten minutes on a bare machine with as many GPUs as ranks. See h200_observation.sh for what it needs.
#
#   benchmarks/h200_ranks.sh recipes/h200-tp2.yaml obs1        obs2 on another boot, with OUT holding what the first made
#   K3_DRY=1 OUT=/tmp/dry benchmarks/h200_ranks.sh recipes/h200-tp2.yaml obs1    nano over gloo: the path, not the times
#
# OUT: where results and the pack go (default: results). LIMIT_S: equality probes end before this (default 570).
set -u
cd "$(dirname "$0")/.."
recipe=${1:?which recipe: recipes/h200-tp2.yaml, recipes/h200-tep4.yaml or recipes/h200-tep8.yaml}
observation=${2:?which observation: obs1 or obs2}
began=$(date +%s)
ranks=$(sed -n 's/.*tp_size: \([0-9]*\).*/\1/p' "$recipe")
# NVLink multicast stays off, as found: on a shared host it can put the GPUs out of service.
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" NVSHMEM_DISABLE_NVLS="${NVSHMEM_DISABLE_NVLS:-1}"
export TORCH_SYMM_MEM_DISABLE_MULTICAST="${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}" RECIPE="$recipe"
[ "$ranks" -le 4 ] || export DRY_PRESET=small-16  # nano has four heads
if [ -z "${K3_DRY:-}" ]; then
    found=$(python3 -c 'import torch; print(torch.cuda.device_count())')
    [ "$found" -ge "$ranks" ] || { echo "$recipe needs $ranks GPUs, this machine shows $found"; exit 2; }
fi
failed=0
benchmarks/h200_observation.sh "$observation" measure || failed=1
benchmarks/h200_observation.sh "zero${observation#obs}" measure || failed=1
left=$((${LIMIT_S:-570} - $(date +%s) + began - 90))  # profiled runs and their export come before the probes
export VERIFY_S=$((left > 0 ? (left / 2 < 75 ? left / 2 : 75) : 0))
benchmarks/h200_observation.sh "$observation" evidence || failed=1
for seen in "$observation" "zero${observation#obs}"; do
    grep -qs '"status":"measured"' "${OUT:-results}/$(basename "$recipe" .yaml)/observations/$seen/alloc1.json" ||
        { echo "$seen: NOT measured"; failed=1; }
done
echo "$ranks ranks, $observation: $(($(date +%s) - began)) s in all"
exit "$failed"
