#!/bin/sh
# What all protection costs a run that nothing befalls (issue 16: 0.5%, or below the noise that is shown): three ranks, a
# node each, all keys at their defaults. Processor time alone is counted, so that what else runs beside matters little.
# Protection is
#   control plane: launcher, agents and the workers' threads that talk to them, with beats, step records and metrics. It is
#       paid by the second and not by the step, so it is told over all processors of the machine;
#   in the workers: digests of the weights, of which a step makes two (of what its gradients were made of, a pass of its
#       own; of what the update left, which rides on the update and is counted as another pass: by perf annotate it costs
#       0.95 of one), step records and their checks, the watch for hangs and doubts about a device. They are found by perf,
#       over all samples of the workers. What is held for a redo is made of no copying: a sum is written beside what it is
#       the sum of. Snapshots are told by tiers_bench.sh, seals between hosts by transport_seal_bench.
# The limit: a step digests 8 bytes a weight, and computes 6 FLOPs a weight and token. A digest is two multiplications of 64
# bits a word, 15 GB/s a core: beside 90 GFLOP/s that is 8 / T of a step of T tokens a rank, 0.8% of 1,024, 0.2% of 4,096.
#   STEADY_SHAPE="4 4 128 128 8192"   layers, heads, width, tokens of a sample, vocabulary
#   STEADY_BATCH="8 32"               samples of a rank and step, a run each
#   STEADY_STEPS=40                   in four parts, of which the last three are counted
# GPT-2 124M: STEADY_SHAPE="12 12 768 1024 50257" STEADY_BATCH="1" STEADY_STEPS=8
# room: runtime
set -u
. "$(dirname "$0")/../demo/lib.sh"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
steps=${STEADY_STEPS:-40}
# shellcheck disable=SC2086 # words
set -- ${STEADY_SHAPE:-4 4 128 128 8192}
committed() { cat "$work/run/metrics.jsonl" 2>/dev/null | wc -l; }
# reach STEP: wait for it
reach() {
    while [ "$(committed)" -lt "$1" ]; do
        kill -0 $launcher 2>/dev/null || { echo "steady_bench: the run ended: $(tail -n 1 "$work/log")" >&2; exit 1; }
        sleep 0.2
    done
}
children() { cat /proc/"$1"/task/*/children; }
# used NAME PID...: seconds of processor time of their threads, of those of that name where it is not empty
used() {
    name=$1
    shift
    for pid; do
        for thread in /proc/"$pid"/task/*; do
            [ -z "$name" ] || [ "$(cat "$thread/comm")" = "$name" ] && cat "$thread/schedstat"
        done
    done | awk '{ s += $1 } END { printf "%.6f", s * 1e-9 }'
}
# part: steps, seconds by the clock, by the control plane, by the workers so far
part() { echo "$(committed) $(date +%s.%N) $(used "" $launcher $agents) $(used keel-inbox $workers) $(used "" $workers)"; }
# steady SAMPLES
# shellcheck disable=SC2086 # words
steady() {
    gpt_job steady "$layers" "$heads" "$width" "$block" "$vocab" "$steps" "$1" | grep -v timeout_s >"$work/job.conf"
    rm -rf "$work/run" "$work/perf"
    "$KEEL" run "$work/job.conf" --ranks 3 --out "$work/run" --set job.shards=3 >"$work/log" 2>&1 &
    launcher=$! perf=
    reach $((steps / 4))
    agents=$(children $launcher)
    workers=$(for agent in $agents; do children "$agent"; done)
    if perf record -e cpu-clock -o "$work/probe" true >/dev/null 2>&1; then
        perf record -q -e cpu-clock -F 997 -p "$(echo $workers | tr ' ' ,)" -o "$work/perf" >"$work/perf.log" 2>&1 &
        perf=$!
    else
        echo "steady_bench: perf is not there, or may not sample: nothing is told of the workers" >&2
    fi
    part >"$work/parts"
    for number in 1 2 3; do
        reach $((steps / 4 + number * (steps - steps / 4 - 1) / 3))
        part >>"$work/parts"
    done
    [ -z "$perf" ] || { kill -INT $perf && wait $perf; }
    wait $launcher || { echo "steady_bench: $(tail -n 1 "$work/log")" >&2; exit 1; }
    [ -z "$perf" ] || perf report -i "$work/perf" --stdio -q -n -t '|' --sort comm,symbol 2>/dev/null >"$work/symbols"
    tell $(($1 * block)) "$perf"
}
# tell TOKENS PERF
tell() {
    awk -v tokens="$1" -v perf="${2:-0}" -v processors="$(nproc)" -v symbols="$work/symbols" '
    function middle(v,   i, low, high, sum) { # of three; spread: half of what lies between the others
        low = high = v[2]
        for (i = 2; i <= 4; i++) { low = v[i] < low ? v[i] : low; high = v[i] > high ? v[i] : high; sum += v[i] }
        spread = (high - low) / 2
        return sum - low - high
    }
    function row(figure, value, unit, goal) {
        printf "{\"room\":\"runtime\",\"figure\":\"protection, %d tokens a rank: %s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":null,\"peer_value\":null,\"ratio\":null,\"goal\":%s,\"met\":%s}\n",
            tokens, figure, value, unit, goal == "" ? "null" : goal, goal == "" ? "null" : value <= goal ? "true" : "false"
    }
    NR > 1 { step[NR] = ($5 - compute) / ($1 - at); share[NR] = ($3 + $4 - control) / ($2 - since) / processors * 100 }
    { at = $1; since = $2; control = $3 + $4; compute = $5 }
    END {
        row("processor of a step", middle(step), "s", "")
        row("control plane", all = middle(share), "%", "")
        noise = spread
        if (!perf) exit
        while ((getline line < symbols) > 0) {
            split(line, f, "|")
            samples += f[2]
            if (f[4] ~ /digest/) digests += f[2]
            else if (f[4] ~ /keel_tape_(record|look|check)|check_(kept|said|copies)|count_saying/) records += f[2]
            else if (f[4] ~ /keel_hang|doubt|name_command|append_last|keel_queue_(late|progress)/) watch += f[2]
        }
        row("digests", 200 * digests / samples, "%", "")
        row("step records", 100 * records / samples, "%", "")
        row("watch for hangs", 100 * watch / samples, "%", "")
        row("all", all + 100 * (2 * digests + records + watch) / samples, "%", 0.5)
        row("noise of that", noise + 100 * sqrt(4 * digests + records + watch) / samples, "%", "")
    }' "$work/parts"
}
layers=$1 heads=$2 width=$3 block=$4 vocab=$5
for samples in ${STEADY_BATCH:-8 32}; do steady "$samples"; done
