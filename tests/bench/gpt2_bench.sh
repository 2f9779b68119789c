#!/bin/sh
# The GPT-2 124M shape (batch 4 x 64 tokens a shard, random weights) as a real run of two ranks with
# snapshots: what a step loses to communication and to snapshots. Medians, the first step left out.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-gpt2
rm -rf "$root"
mkdir -p "$root"
"$KEEL" run runtime/jobs/gpt2-124m.conf --ranks 2 --out "$root/run" --set job.shards=2 --set train.steps=7 \
    --set snapshot.every=2 >"$root/log" 2>&1 || { echo "gpt2_bench: failed; see $root/log" >&2; exit 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print "null" }'; }
for field in seconds exposed_comm_s snapshot_stall_s; do
    value=$(tail -n +2 "$root/run/metrics.jsonl" | sed -n "s/.*\"$field\":\([0-9.e-]*\).*/\1/p" | median)
    printf '{"room":"runtime","figure":"gpt2-124m, 2 ranks, median step: %s","value":%s,"unit":"s","peer":null,"peer_value":null,"ratio":null,"goal":null,"met":null}\n' \
        "$field" "$value"
done
rm -rf "$root/run/ckpt"
