#!/bin/sh
# What four ranks of this machine wait for each other in a step of one GPT, by plan, with the limit beside it: the bytes that
# a rank sends in a step over the bandwidth that an all-reduce of as many ranks has in the same minutes. A wait above the
# limit is latency, and ranks that are not equally fast (here they share the processors). Medians over steps.
#   EXCHANGE_SHAPE="4 8 512 256"   layers, heads, width, tokens of a sample; 8 samples a step
#   EXCHANGE_STEPS=8
# room: runtime
set -u
. "$(dirname "$0")/../demo/lib.sh"
set -- ${EXCHANGE_SHAPE:-4 8 512 256}
layers=$1 heads=$2 width=$3 block=$4 steps=${EXCHANGE_STEPS:-8} ranks=4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
gpt_job exchange $layers $heads $width $block 96 $((steps + 2)) 2 >"$work/job.conf"

# field NAME: its median over the steps of the last run, without two that warm up
field() {
    sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p" "$work/run/metrics.jsonl" | tail -n +3 | sort -g |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# bandwidth BYTES: bytes a second that a rank sends, by the median all-reduce of so many
bandwidth() {
    "$KEEL" net bench --ranks $ranks --min "$1" --max "$1" --json |
        sed -n 's/.*"p50_us":\([0-9.]*\).*/\1/p' |
        awk -v bytes="$1" -v n=$ranks '{ print 2 * (n - 1) / n * bytes / $1 * 1e6 }'
}

line() {
    printf '{"room":"runtime","figure":"exchange, %s: %s","value":%.4g,"unit":"%s","peer":null,"peer_value":null,"ratio":null,"goal":null,"met":null}\n' "$@"
}

for plan in "data=4 tensor=1 zero=0" "data=4 tensor=1 zero=2" "data=2 tensor=2 zero=0" "data=1 tensor=4 zero=0"; do
    rm -rf "$work/run"
    "$KEEL" run "$work/job.conf" --ranks $ranks --nodes 1 --out "$work/run" --set job.shards=4 --set job.tensor=4 \
        $(printf -- '--set parallel.%s ' $plan) >"$work/log" 2>&1 || { tail -1 "$work/log" >&2; exit 1; }
    rate=$(bandwidth $((2 * block * width * 4))) # of the rows of a microbatch, as slices exchange them
    step=$(field seconds) waits=$(field exposed_comm_s) bytes=$(field sent_bytes)
    line "$plan" "step" "$step" s
    line "$plan" "waits for other ranks" "$waits" s
    line "$plan" "share of the step" "$(awk -v a="$waits" -v b="$step" 'BEGIN { print a / b }')" ""
    line "$plan" "bytes sent by a rank" "$bytes" B
    line "$plan" "limit, bytes over bandwidth" "$(awk -v a="$bytes" -v b="$rate" 'BEGIN { print a / b }')" s
done
