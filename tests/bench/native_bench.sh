#!/bin/sh
# native_bench.sh - what a step of GPT-2 124M and of ResNet-18 takes with canonical kernels, over what it takes with
# native ones.
#
# Processes in turn, ROUNDS of each (3), medians. On a processor only convolutions have a native variant, Winograd's
# (kernels/README.md says what else was tried): of GPT-2 the two differ by noise alone, of ResNet-18 by what the promise
# of same bits costs.
set -u
bench=${BUILD:-build}/bench/step_bench
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# step SHAPE KIND: its milliseconds
step() {
    "$bench" auto "$1" 0 "$2" >"$work/out" || { echo "native_bench: step_bench of $1, $2, failed ($?)" >&2; exit 1; }
    sed -n "s/.*$1 step\",\"value\":\([0-9.e+]*\).*/\1/p" "$work/out" >>"$work/$1.$2"
}
median() { sort -g "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
for shape in gpt2-124m resnet-18; do
    for _ in $(seq "${ROUNDS:-3}"); do
        step $shape canonical
        step $shape native
    done
    awk -v shape=$shape -v ours="$(median "$work/$shape.canonical")" -v native="$(median "$work/$shape.native")" 'BEGIN {
        ratio = native / ours
        printf "{\"room\":\"kernels\",\"figure\":\"%s step, canonical\",\"value\":%.5g,\"unit\":\"ms\",", shape, ours
        printf "\"peer\":\"native kernels\",\"peer_value\":%.5g,\"ratio\":%.3f,\"goal\":0.95,\"met\":%s}\n", native, ratio, (ratio >= 0.95 ? "true" : "false") }'
done
