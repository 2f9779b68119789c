#!/bin/sh
# This build beside an older one, in turn: a step of the demo and of a GPT of GPT-2's width through a trainer of one rank, an
# all-reduce, a save. Seconds of processor over all processes, since other programs on the machine disturb those less; steps
# and saves are what a longer run has more than a shorter one, so starting is in none. Ratios of pairs, and their median.
#   BEFORE=/tmp/before/build   of an older commit: git worktree add /tmp/before COMMIT && make -C /tmp/before
#   RACE_ROUNDS=3              pairs of each
#   BEFORE_ONLY=word           those whose name has it
# room: runtime
set -u
. "$(dirname "$0")/racers/race.sh"
[ -x "${BEFORE:-}/keel" ] || { left_out "an older build" "BEFORE names no folder with one"; exit 0; }

# train BUILD SECONDS-FILE ARGUMENTS...
train() {
    rm -rf "$work/run"
    keel=$1/keel
    shift
    spent "$keel" run "$@" --ranks 1 --out "$work/run" --set cluster.timeout_s=60 --set train.eval_every=0 4>&1 >"$work/log" 2>&1
}
# steps BUILD COUNT ARGUMENTS...: of one of COUNT steps
steps() {
    in=$1 count=$2
    shift 2
    short=$(train "$in" "$@" --set snapshot.every=0 --set train.steps=2) &&
        long=$(train "$in" "$@" --set snapshot.every=0 --set train.steps=$((count + 2))) &&
        awk -v a="$short" -v b="$long" -v n="$count" 'BEGIN { print (b - a) / n }'
}
demo() { steps "$1" 60 runtime/jobs/demo.conf; }
gpt2() {
    steps "$1" 4 runtime/jobs/demo.conf --set model.width=768 --set model.heads=12 --set model.layers=4 \
        --set model.vocab=8192 --set train.batch=1 --set job.shards=4
}
# A save waits for the one before it, so that there is one a step.
save() {
    none=$(train "$1" runtime/jobs/demo.conf --set snapshot.every=0 --set train.steps=20) &&
        all=$(train "$1" runtime/jobs/demo.conf --set snapshot.every=1 --set snapshot.background=no --set train.steps=20) &&
        awk -v a="$none" -v b="$all" -v n="$(grep -c '"event": *"snapshot' "$work/run/events.jsonl")" 'BEGIN { print (b - a) / n }'
}
reduce() {
    spent "$1/keel" net bench --ranks 2 --min 4M --max 4M --iterations 400 4>&1 >"$work/log" 2>&1 | awk '{ print $1 / 400 }'
}

for what in demo gpt2 save reduce; do
    case $what in *"${BEFORE_ONLY:-}"*) ;; *) continue ;; esac
    for build in "$BEFORE" "$BUILD"; do # kernels are compiled once
        $what "$build" >"$work/warm" || { tail -1 "$work/log" >&2; exit 1; }
    done
    for round in $(seq "$rounds"); do
        before=$($what "$BEFORE") && now=$($what "$BUILD") || { tail -1 "$work/log" >&2; exit 1; }
        echo "$before $now" >>"$work/pairs.$what"
        echo "before_bench: $what, pair $round: before $before s, now $now s" >&2
    done
    awk '{ print $2 / $1 }' "$work/pairs.$what" >"$work/ratios.$what"
    printf '{"room":"runtime","figure":"processor time of %s over before, median of pairs","value":%.4g,"unit":"","peer":"before","peer_value":1,"ratio":%.4g,"goal":null,"met":null}\n' \
        "$what" "$(median 1 "$work/ratios.$what")" "$(median 1 "$work/ratios.$what")"
done
