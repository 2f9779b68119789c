#!/bin/sh
# Loss of one rank of four, from the commit before it to the next one, seconds by cause: medians over several runs
# of the demo model. One JSON object per line.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-runs
runs=${RUNS:-5}
rm -rf "$root"
mkdir -p "$root"
for i in $(seq 1 "$runs"); do
    "$KEEL" run runtime/jobs/demo.conf --ranks 4 --out "$root/$i" --set train.steps=24 --set train.eval_every=0 \
        --set snapshot.every=8 --drill "kill:rank=$((i % 4)),step=$((10 + i)),at=reduce" >"$root/$i.log" 2>&1 ||
        { echo "recovery_bench: run $i failed; see $root/$i.log" >&2; exit 1; }
done
median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print "null" }'; }
for part in before detect reconfigure sync heal redo wait other total; do
    value=$(cat "$root"/*/events.jsonl | grep '"event":"recovery"' | sed -n "s/.*\"${part}_s\":\([0-9.e-]*\).*/\1/p" | median)
    goal=null met=null
    if [ $part = total ]; then
        goal=2
        met=$(awk -v v="$value" 'BEGIN { print v < 2 ? "true" : "false" }')
    fi
    printf '{"room":"runtime","figure":"loss of one rank of four, commit to commit: %s","value":%s,"unit":"s","peer":null,"peer_value":null,"ratio":null,"goal":%s,"met":%s}\n' \
        "$part" "$value" "$goal" "$met"
done
# What a healthy step costs, from the undisturbed part of the same runs.
for field in seconds exposed_comm_s snapshot_stall_s; do
    value=$(cat "$root"/*/metrics.jsonl | awk -F'"step":' '{ split($2, s, ","); if (s[1] > 2 && s[1] < 10) print }' |
        sed -n "s/.*\"$field\":\([0-9.e-]*\).*/\1/p" | median)
    printf '{"room":"runtime","figure":"demo model, 4 ranks, median step: %s","value":%s,"unit":"s","peer":null,"peer_value":null,"ratio":null,"goal":null,"met":null}\n' \
        "$field" "$value"
done
