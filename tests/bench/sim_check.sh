#!/bin/sh
# How well keel sim predicts: RUNS real runs (8) of four ranks and a spare, from SEED (1) on, whose workers and agents are
# killed at drawn moments. What the first half lost, by its events, gives the costs; the other half's failures go to keel
# sim with these. Prints lost seconds of each, measured and predicted, and the median error. By the clock of a machine
# that others use: repeat it on a quiet one before you believe it.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=${ROOT:-$BUILD/sim-check}
runs=${RUNS:-8} state=${SEED:-1} steps=${STEPS:-700} job=$(dirname "$0")/../demo/drill.conf
rm -rf "$root"
mkdir -p "$root"
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$root/text"
draw() { # draw N: a number in [0, N) into $drawn
    state=$(((state * 1103515245 + 12345) % 2147483648))
    drawn=$((state / 65536 % $1))
}
children() { for parent; do cat "/proc/$parent/task/$parent/children" 2>/dev/null; done; }
lines_of() { cat "$1" 2>/dev/null | wc -l; }
settings="--set data.path=$root/text --set cluster.device=host --set job.shards=4 --set train.microbatches=2 --set model.width=64 --set model.heads=4 --set model.block=32 --set train.steps=$steps --set train.eval_every=0 --set snapshot.every=50"

# One run: kill somebody every so many steps, and note when.
run_one() {
    out=$root/$1
    # shellcheck disable=SC2086
    "$KEEL" run "$job" --out "$out" --ranks 4 --spares 1 $settings >"$out.log" 2>&1 &
    launcher=$!
    at=8
    while kill -0 $launcher 2>/dev/null; do
        if [ "$(lines_of "$out/metrics.jsonl")" -ge $at ]; then
            agents=$(children $launcher)
            # shellcheck disable=SC2086
            set -- $(children $agents)
            draw 4
            # shellcheck disable=SC2086
            [ $drawn -gt 0 ] || set -- $agents
            if [ $# -gt 0 ]; then
                draw $#
                shift $drawn
                kill -KILL "$1" 2>/dev/null && date +%s%N >>"$out.kills"
            fi
            draw 20
            at=$((at + 20 + drawn))
        fi
        sleep 0.1
    done
    wait $launcher || { echo "sim_check: a run failed; see $out.log" >&2; exit 1; }
}
# Recoveries of runs: fields NAME... of each, a line each.
recoveries() { # recoveries FILE...
    grep -h '"event":"recovery"' "$@" | sed 's/[{}"]//g' | awk -F, '
        { split("", of); for (i = 1; i <= NF; i++) { split($i, at, ":"); of[at[1]] = at[2] }
          print of["total_s"], of["detect_s"], of["reconfigure_s"] + of["sync_s"], of["heal_s"], of["before_s"] }'
}
# Until a killed worker's place has one again that says which board it has: of each kill the next such event.
back_again() { # back_again RUN...
    for run; do
        { sed 's/$/ kill/' "$root/$run.kills"; sed -n 's/.*"event":"board".*"wall_ns":\([0-9]*\).*/\1 board/p' "$root/$run/events.jsonl"; } | sort -n |
            awk '$2 == "kill" { at = $1 } $2 == "board" && at { print ($1 - at) / 1e9; at = 0 }'
    done
}
median() { sort -g | awk '{ v[NR] = $1 } END { print NR ? (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 : 0 }'; }
step_of() { sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' "$@" | median; }

for run in $(seq "$runs"); do run_one "$run"; done
half=$((runs / 2)) first=
for run in $(seq "$half"); do first="$first $root/$run/events.jsonl"; done
# shellcheck disable=SC2086
recoveries $first >"$root/costs"
step=$(for run in $(seq "$half"); do cat "$root/$run/metrics.jsonl"; done | step_of -)
{
    echo "[detect]"
    echo "exit_s = $(awk '{ print $2 }' "$root/costs" | median)"
    echo "[recover]"
    echo "reconfigure_s = $(awk '{ print $3 }' "$root/costs" | median)"
    echo "heal_s = $(awk '{ print $4 }' "$root/costs" | median)"
    echo "redo = $(awk -v step="$step" '{ kept += $1 - step - $2 - $3 - $4 } END { redo = kept / NR / (step / 2); print (redo < 0 ? 0 : redo > 1 ? 1 : redo) }' "$root/costs")"
    echo "[run]"
    echo "step_s = $step"
    echo "overhead = 0"
} >"$root/costs.conf"
cat "$root/costs.conf"
# shellcheck disable=SC2046
back=$(back_again $(seq "$half") | median)
echo "a killed one is back after $back s"
# Healing was measured with its bytes: the state counts as one byte.
echo "run failures measured_s predicted_s error"
for run in $(seq $((half + 1)) "$runs"); do
    step=$(step_of "$root/$run/metrics.jsonl")
    begun=$(sed -n 's/.*"event":"view".*"wall_ns":\([0-9]*\).*/\1/p' "$root/$run/events.jsonl" | head -n 1)
    # Who was a spare, or not there, cost nothing: of kills those count that a recovery followed before the next one.
    { sed 's/$/ kill/' "$root/$run.kills"; sed -n 's/.*"event":"recovery".*"wall_ns":\([0-9]*\).*/\1 recovery/p' "$root/$run/events.jsonl"; } | sort -n |
        awk -v begun="$begun" -v back="$back" '$2 == "kill" { at = $1 } $2 == "recovery" && at { printf "%.9f %d process %s\n", (at - begun) / 1e9, NR % 4, back; at = 0 }' >"$root/$run.failures"
    # A recovery lasts from commit to commit, one step of which is no loss.
    measured=$(recoveries "$root/$run/events.jsonl" | awk -v step="$step" '{ sum += $1 - step } END { print sum + 0 }')
    predicted=$("$KEEL" sim "$job" --set "data.path=$root/text" --nodes 4 --spares 4 --days 2h --quick --json --tiers none \
        --costs "$root/costs.conf" --cost run.state_bytes=1 --failures "$root/$run.failures" |
        python3 -c 'import json, sys; f = json.load(sys.stdin)["lost_seconds"]; print(sum(f[k] for k in ("detect", "reconfigure", "heal", "redo")))')
    echo "$run $(wc -l <"$root/$run.failures") $measured $predicted" |
        awk '{ error = ($4 - $3) / $3; print $0, error < 0 ? -error : error }' | tee -a "$root/errors"
done
recoveries "$root"/[0-9]*/events.jsonl | sort -g | awk '{ total[NR] = $1 } END { print NR " losses, from commit to commit: median " total[int((NR + 1) / 2)] " s, 99th percentile " total[int(NR * 0.99)] ", longest " total[NR] }'
recoveries "$root"/[0-9]*/events.jsonl | awk '{ print $2 }' | sort -g | awk '{ seen[NR] = $1 } END { print "noticed after: median " seen[int((NR + 1) / 2)] " s, 99th percentile " seen[int(NR * 0.99)] ", longest " seen[NR] }'
echo "median error: $(awk '{ print $5 }' "$root/errors" | median)"
awk '{ measured += $3; predicted += $4 } END { print "all together: measured " measured " s, predicted " predicted " s, error " (predicted > measured ? predicted - measured : measured - predicted) / measured }' "$root/errors"
