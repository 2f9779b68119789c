#!/bin/sh
# The small residual network of runtime/jobs/fashion.conf on Fashion-MNIST, whole: test accuracy, and the time it took.
# 6,000 steps, about 1 s each on four cores that others use too: it is run when it is asked for, KEEL_FASHION=1.
# KEEL_FASHION_STEPS cuts it short. The run stays in build/bench-fashion; the same command goes on with one that was
# interrupted, and tells of one that is done.
set -u
. "$(dirname "$0")/../demo/lib.sh"
[ -n "${KEEL_FASHION:-}" ] || { echo "fashion_bench: not run: takes an hour or more; KEEL_FASHION=1 asks for it" >&2; exit 0; }
root=${BUILD:-build}/bench-fashion
mkdir -p "$root"
"$KEEL" run runtime/jobs/fashion.conf --out "$root" ${KEEL_FASHION_STEPS:+--set "train.steps=$KEEL_FASHION_STEPS"} \
    >"$root/log" 2>&1 || { echo "fashion_bench: failed; see $root/log" >&2; exit 1; }
accuracy=$(sed -n 's/.*"val_accuracy":\([0-9.e-]*\).*/\1/p' "$root/metrics.jsonl" | tail -n 1)
spent=$(sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' "$root/metrics.jsonl" | awk '{ s += $1 } END { print s }')
met=$(awk -v a="$accuracy" 'BEGIN { print (a >= 0.93) ? "true" : "false" }')
printf '{"room":"runtime","figure":"fashion-mnist, small resnet: test accuracy","value":%s,"unit":"","peer":null,"peer_value":null,"ratio":null,"goal":0.93,"met":%s}\n' \
    "$accuracy" "$met"
printf '{"room":"runtime","figure":"fashion-mnist, small resnet: time of all steps","value":%s,"unit":"s","peer":null,"peer_value":null,"ratio":null,"goal":null,"met":null}\n' \
    "$spent"
