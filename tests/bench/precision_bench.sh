#!/bin/sh
# Storage in 16 bits against float32: the demo's GPT for 300 steps with each, one rank; final losses.
# (Memory by plan: tests/runtime/amp_test.c prints it.)
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-precision
rm -rf "$root"
mkdir -p "$root"
# mean NAME: of the training losses of the last 50 steps; one alone is that of one batch.
mean() { tail -n 50 "$root/$1/metrics.jsonl" | sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' | awk '{ s += $1 } END { print s / NR }'; }
# figure NAME VALUE UNIT PEER-VALUE GOAL: of 16 bits against float32; the goal bounds | ratio - 1 |, or the ratio
figure() {
    printf '%s %s %s\n' "$2" "$4" "$5" | awk -v name="$1" -v unit="$3" '{
        ratio = $1 / $2; off = ratio < 1 ? 1 - ratio : ratio - 1
        printf "{\"room\":\"runtime\",\"figure\":\"%s\",\"value\":%s,\"unit\":\"%s\",\"peer\":\"float32\",\"peer_value\":%s,\"ratio\":%.4f,\"goal\":%s,\"met\":%s}\n",
            name, $1, unit, $2, ratio, $3, $3 == "null" ? "null" : (off <= $3 ? "true" : "false") }'
}
for storage in f32 bf16 f16; do
    "$KEEL" run runtime/jobs/demo.conf --out "$root/$storage" --set cluster.ranks=1 --set train.storage=$storage \
        --set snapshot.every=0 >"$root/$storage.log" 2>&1 ||
        { echo "precision_bench: failed; see $root/$storage.log" >&2; exit 1; }
    [ "$storage" = f32 ] && continue
    figure "GPT on the demo text, 300 steps, $storage storage: final validation loss" "$(last_field "$root/$storage" val_loss)" nat \
        "$(last_field "$root/f32" val_loss)" 0.01
    figure "the same: training loss, mean of the last 50 steps" "$(mean $storage)" nat "$(mean f32)" 0.01
done
