#!/bin/sh
# Bytes of the rank that has most of a GPT, as `keel plan` says them and as the ranks of a run do (event `memory`): of the
# device, and of the transport's memory in which gradients and held sums lie. Counts, so they hold on any machine. Without
# inputs, tables and workspace of kernels, which plans do not count, both are the same to the byte (grid_drills_test.sh).
#   MEMORY_SHAPE="2 12 768 32"   layers, heads, width, tokens of a sample
# room: runtime
set -u
. "$(dirname "$0")/../demo/lib.sh"
set -- ${MEMORY_SHAPE:-2 12 768 32}
layers=$1 heads=$2 width=$3 block=$4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
gpt_job memory $layers $heads $width $block 1024 2 1 >"$work/job.conf"
for plan in "1 data=1 tensor=1 zero=0" "4 data=4 tensor=1 zero=0" "4 data=4 tensor=1 zero=1" "4 data=4 tensor=1 zero=2" \
    "4 data=4 tensor=1 zero=3" "2 data=1 tensor=2 zero=0" "4 data=2 tensor=2 zero=0" "4 data=2 tensor=2 zero=2"; do
    set -- $plan
    keys="$(printf -- '--set parallel.%s ' $2 $3 $4) --set job.shards=${2#data=} --set job.tensor=${3#tensor=} --set parallel.bucket=8000000"
    rm -rf "$work/run"
    "$KEEL" plan "$work/job.conf" --ranks "$1" $keys --json >"$work/plan" &&
        "$KEEL" run "$work/job.conf" --ranks "$1" --out "$work/run" $keys >"$work/log" 2>&1 ||
        { tail -1 "$work/log" >&2; exit 1; }
    planned=$(sed -n 's/.*"plans":\[{[^}]*}[^}]*"total_bytes":\([0-9]*\).*/\1/p' "$work/plan")
    seen=$(sed -n 's/.*"event":"memory".*"device_bytes":\([0-9]*\),"shared_bytes":\([0-9]*\).*/\1 \2/p' "$work/run/events.jsonl" |
        awk '{ if ($1 + $2 > most) most = $1 + $2 } END { print most }')
    awk -v plan="$plan" -v planned="$planned" -v seen="$seen" 'BEGIN {
        ratio = seen / planned
        printf "{\"room\":\"runtime\",\"figure\":\"memory, %s ranks\",\"value\":%d,\"unit\":\"B\",\"peer\":\"keel plan\",\"peer_value\":%d,\"ratio\":%.4f,\"goal\":1.01,\"met\":%s}\n",
            plan, seen, planned, ratio, (ratio <= 1.01 && ratio >= 0.99) ? "true" : "false" }'
done
