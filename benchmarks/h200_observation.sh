#!/bin/sh
# One observation of recipes/h200-rank93.yaml on a bare machine: Python with torch, triton, numpy, pydantic, PyYAML, and
# msgspec for the evidence (it reads traces); no installation. Every stage is one command of at most eight minutes; records
# gather in $OUT and are packed at its end.
#
#   benchmarks/h200_observation.sh obs1 measure     rebuild (an empty Triton cache), then the timed runs
#   benchmarks/h200_observation.sh zero1 measure    the same with both arms equal, on the same boot
#   benchmarks/h200_observation.sh obs1 evidence    profiled runs (nsys where it works, Kineto), residency, equality
#   benchmarks/h200_observation.sh obs1 all         measure, then evidence; or each on a card of its own, beside each other
#   K3_DRY=1 OUT=/tmp/dry benchmarks/h200_observation.sh obs1 all     nano on a CPU: the path, not the times
#
# RECIPE: another recipe for this kind of machine (h200_ranks.sh gives one over several GPUs). ONE_TOOL: no Kineto beside.
# OUT: where results and the pack go (default: results). VERIFY_S: seconds for equality probes a preset (default 75).
# LIBDW: a libdw.so.1 for the importer of nsys, if the machine lacks one. K3BENCH_COMMIT: the commit, in an archive.
set -u
cd "$(dirname "$0")/.."
observation=${1:?which observation: obs1, obs2, obs3, zero1, zero2 or zero3}
stage=${2:-all}
recipe=${RECIPE:-recipes/h200-rank93.yaml}
OUT=${OUT:-results}
case "$OUT" in /*) ;; *) OUT=$PWD/$OUT ;; esac
export TRITON_CACHE_DIR="$OUT/triton-$observation"
export PYTHONPATH="$PWD/workflow:$PWD" CUBLAS_WORKSPACE_CONFIG=:4096:8 PYTHONUNBUFFERED=1
say() { printf '%s [%ss] %s\n' "$observation" "$(($(date +%s) - began))" "$*"; }
began=$(date +%s)
mkdir -p "$OUT"
if [ "${K3_DRY:-}" ]; then
    mkdir -p "$OUT/dry"
    sed -e '/collectives: distributed/!{/options:/d}' -e 's/preset: .*/preset: '"${DRY_PRESET:-nano}"'/; s/device: .*/device: cpu/; s/context: noise/context: prefill/' \
        -e 's/isl_tokens: .*/isl_tokens: 16/; s/osl_tokens: .*/osl_tokens: 4/; s/levels: .*/levels: [1, 2]/' \
        -e 's/batches: 1/batches: 5/; s/^blocks: .*/blocks: 1/; s/^blocks_per_allocation: .*/blocks_per_allocation: 1/' \
        "$recipe" > "$OUT/dry/$(basename "$recipe")"
    recipe=$OUT/dry/$(basename "$recipe")
fi
name=$(basename "$recipe" .yaml)
root=$OUT/$name
seen=$root/observations/$observation
[ -f "$root/plan.json" ] || python3 -m k3bench plan "$recipe" --out "$root/plan.json" > /dev/null || exit 2

# Kernels of all batches, compiled side by side: a preset and its context.
warm() {
    if [ "${K3_DRY:-}" ] || ! grep -q 'kernels: triton' "$recipe"; then return 0; fi
    # The recipe's options, as --set name=value.
    options=$(sed -n 's/.*options: {\(.*\)}.*/\1/p' "$recipe" | tr ',' '\n' | sed 's/ *\([a-z_]*\): *\([^ ]*\) */--set \1=\2/')
    # shellcheck disable=SC2086
    python3 -m k3model.kernels.warm "$1" --context "$2" --batches 1 2 4 8 $options &&
        say "kernels of $1 compiled"
}

measure() {
    rm -rf "$TRITON_CACHE_DIR"
    warm rank-93 8448 || return 1
    python3 -m k3bench measure "$root/plan.json" "$observation/alloc1" --here || return 1
    [ -d "$seen/points" ] || { say "NOT measured"; return 1; }
    say "measured"
}

profiles() {
    for arm in before after; do
        python3 -m k3bench profile "$root/plan.json" "$observation/$arm" --executor here --tool "$1" --out "$2" || return 1
    done
}

evidence() {
    nsys=$(ls -d /opt/nvidia/nsight-compute/*/host/target-linux-x64 2> /dev/null | tail -1)
    [ -n "$nsys" ] && PATH="$PATH:$nsys"
    if [ -n "${LIBDW:-}" ] && [ -f "$LIBDW" ]; then cp "$LIBDW" /usr/lib/x86_64-linux-gnu/libdw.so.1 && ldconfig; fi
    # Where this card has not measured, it builds; its kernels are then compiled before anything is profiled.
    python3 -m k3bench build "$root/plan.json" "p${observation##*[a-z]}" > /dev/null || return 1
    [ -d "$TRITON_CACHE_DIR" ] || warm rank-93 8448 || return 1
    traces=$seen/traces
    profiles nsys "$traces" || { say "nsys: NOT run; Kineto is the trace"; rm -rf "$traces"; profiles kineto "$traces"; }
    [ "${ONE_TOOL:-}" ] || [ -d "$seen/traces-kineto" ] || profiles kineto "$seen/traces-kineto" || say "Kineto beside nsys: NOT run"
    if ls "$traces"/*.collected.json > /dev/null 2>&1; then
        python3 -m k3bench trace --collected "$traces" --families --out "$seen/residency.json" &&
            say "traced" || say "residency: NOT read from the traces"
    else
        say "residency: NOT run, no trace"
    fi
    warm small 320
    warm block-12 320
    python3 -m k3bench verify "$root/plan.json" "$observation" --budget "${VERIFY_S:-75}" --out "$seen/equivalence.json"
    [ -f "$seen/equivalence.json" ] || { say "equality: NOT probed"; return 1; }
    say "verified"
}

pack() {
    tar -C "$OUT" --exclude='*.nsys-rep' -cJf "$OUT/$name-$observation.tar.xz" "$name"
    size=$(stat -c %s "$OUT/$name-$observation.tar.xz")
    if [ "$size" -gt 16777216 ]; then
        say "pack without traces: with them it is $size bytes"
        tar -C "$OUT" --exclude='traces*' -cJf "$OUT/$name-$observation.tar.xz" "$name"
    fi
    say "packed: $OUT/$name-$observation.tar.xz, $(stat -c %s "$OUT/$name-$observation.tar.xz") bytes"
}

failed=0
case "$stage" in
    measure) measure || failed=1 ;;
    evidence) evidence || failed=1 ;;
    all) measure || failed=1; evidence || failed=1 ;;
    *) say "stage is measure, evidence or all, not $stage"; exit 2 ;;
esac
pack
[ -d "$seen/points" ] && say "$(ls "$seen/points" | wc -l) points"
[ "$failed" = 0 ] || say "A STAGE FAILED: see above"
exit "$failed"
